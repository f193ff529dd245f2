"""Runs and their conditions as a file, with every raw sample, so that anyone can compute anything anew."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polyvox
from polyvox.bench.load import Lag, Load, rounded
from polyvox.bench.metrics import Trace
from polyvox.bench.summary import START_BUFFER, Spread, Summary, plain, summarise
from polyvox.errors import InvalidRequest

FORMAT = "polyvox-bench/1"

Conditions = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One load, what became of it, and what the client took."""

    load: Load
    lag: Lag
    traces: list[Trace]
    buffer: float = START_BUFFER
    summary: Summary = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "summary", summarise(self.traces, self.buffer))

    @property
    def label(self) -> str:
        return self.load.label


def machine() -> Conditions:
    """Where the client ran, and when."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "polyvox": polyvox.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "busy": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,  # processes that ran before
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def save(path: Path, conditions: Conditions, runs: Sequence[Run]) -> None:
    """Writes all of it, whole or not at all."""
    told = {
        "format": FORMAT,
        "conditions": conditions,
        "runs": [
            {
                "load": asdict(run.load),
                "lag": {"loop": plain(run.lag.loop), "cpu": run.lag.cpu, "processes": run.lag.processes},
                "start_buffer": run.buffer,
                "summary": plain(run.summary),
                "traces": [_written(trace) for trace in rounded(run.traces)],
            }
            for run in runs
        ],
    }
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(told, ensure_ascii=False), encoding="utf-8")
    part.replace(path)


def _written(trace: Trace) -> dict[str, Any]:
    told = asdict(replace(trace, sound=None))
    del told["sound"]
    return told


def read(path: Path) -> tuple[Conditions, list[Run]]:
    """What `save` has written; the summary is computed anew from the samples."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest("file", str(path), f"must be a result of polyvox bench serve: {error}") from None
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise InvalidRequest("file", str(path), f"must be a result of polyvox bench serve in format {FORMAT}")
    runs = []
    try:
        for run in told["runs"]:
            traces = [Trace(**trace) for trace in run["traces"]]
            for trace in traces:
                trace.arrivals = [(when, count) for when, count in trace.arrivals]
                if trace.misheard is not None:
                    trace.misheard = (trace.misheard[0], trace.misheard[1])
            loop = run["lag"]["loop"]
            lag = Lag(Spread(**loop) if loop else None, run["lag"]["cpu"], run["lag"]["processes"])
            runs.append(Run(Load(**run["load"]), lag, traces, run["start_buffer"]))
        return told["conditions"], runs
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(
            "file", str(path), f"must be a complete result of polyvox bench serve: {error!r}"
        ) from None
