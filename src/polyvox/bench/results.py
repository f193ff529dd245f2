# SPDX-License-Identifier: Apache-2.0
"""Result files: runs with their conditions and every raw measurement, so that all metrics can be recomputed."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polyvox
from polyvox.bench.load import ClientLag, Load
from polyvox.bench.metrics import RequestTrace
from polyvox.bench.summary import START_BUFFER, Distribution, Summary, summarise, to_json
from polyvox.errors import InvalidRequest

FORMAT = "polyvox-bench/2"
TIME_DIGITS = 6  # of seconds in a file

Conditions = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One run at one load: the traces of its requests and the lag of the client."""

    load: Load
    lag: ClientLag
    traces: list[RequestTrace]
    buffer: float = START_BUFFER
    summary: Summary = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "summary", summarise(self.traces, self.buffer))

    @property
    def label(self) -> str:
        return self.load.label

    def to_json(self) -> dict[str, Any]:
        """The run without its traces."""
        lag = {"loop": to_json(self.lag.loop), "cpu": self.lag.cpu, "processes": self.lag.processes}
        return {"load": asdict(self.load), "lag": lag, "start_buffer": self.buffer, "summary": to_json(self.summary)}


def machine() -> Conditions:
    """The machine of the client, and the date."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "polyvox": polyvox.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def save(path: Path, conditions: Conditions, runs: Sequence[Run]) -> None:
    """Writes a result file atomically."""
    written = {
        "format": FORMAT,
        "conditions": conditions,
        "runs": [run.to_json() | {"traces": [_trace_to_json(trace) for trace in run.traces]} for run in runs],
    }
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(written, ensure_ascii=False), encoding="utf-8")
    part.replace(path)


def _trace_to_json(trace: RequestTrace) -> dict[str, Any]:
    """All fields except the audio; times rounded to microseconds."""
    rounded = replace(
        trace,
        scheduled=round(trace.scheduled, TIME_DIGITS),
        sent=round(trace.sent, TIME_DIGITS),
        first_byte=None if trace.first_byte is None else round(trace.first_byte, TIME_DIGITS),
        ended=round(trace.ended, TIME_DIGITS),
        arrivals=[(round(when, TIME_DIGITS), count) for when, count in trace.arrivals],
        pcm=None,
    )
    written = asdict(rounded)
    del written["pcm"]
    return written


def read(path: Path) -> tuple[Conditions, list[Run]]:
    """Reads a result file; the summaries are recomputed from the traces. Raises InvalidRequest."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest("file", str(path), f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InvalidRequest("file", str(path), f"must be a result of polyvox bench serve: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InvalidRequest("file", str(path), f"must be a result of polyvox bench serve in format {FORMAT}")
    try:
        return content["conditions"], [_run_from_json(run) for run in content["runs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(
            "file", str(path), f"must be a complete result of polyvox bench serve: {error!r}"
        ) from None


def _run_from_json(run: dict[str, Any]) -> Run:
    traces = [RequestTrace(**trace) for trace in run["traces"]]
    for trace in traces:
        trace.arrivals = [(when, count) for when, count in trace.arrivals]
        if trace.word_errors is not None:
            trace.word_errors = (trace.word_errors[0], trace.word_errors[1])
    loop = run["lag"]["loop"]
    lag = ClientLag(Distribution(**loop) if loop else None, run["lag"]["cpu"], run["lag"]["processes"])
    return Run(Load(**run["load"]), lag, traces, run["start_buffer"])
