# SPDX-License-Identifier: Apache-2.0
"""A run as a Perfetto trace: a lane for steps, and one for each stream with a span for each status."""

import json
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyvox.errors import InvalidRequest
from polyvox.files import write_atomically

if TYPE_CHECKING:
    from polyvox.engine.stream import LocalStream
    from polyvox.engine.stream_status import StreamStatus

MAX_EVENTS = 500_000  # the oldest are dropped
STEP_LANE = 0


class TraceWriter:
    """Collects events and writes them in the Trace Event Format, which ui.perfetto.dev opens."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        if not os.access(self._path.absolute().parent, os.W_OK):
            raise InvalidRequest("trace", path, "the folder does not exist or is not writable")
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)

    def step(self, sizes: dict[str, float], now: float, num_queued: int, leads: list[float]) -> None:
        arguments = {**sizes, "queued": num_queued}
        if leads:
            arguments |= {"lead_min": leads[0], "lead_p10": leads[len(leads) // 10]}
        self._span("step", now - sizes["seconds"], now, STEP_LANE, arguments)

    def status(self, stream: "LocalStream", status: "StreamStatus", now: float) -> None:
        """The span of a status that a stream leaves now."""
        self._span(status.value, stream.status_since, now, stream.id, {})

    def stream(self, stream: "LocalStream", now: float) -> None:
        """The span of a stream that has its result."""
        result = stream.result
        assert result is not None
        arguments = {name: getattr(result, name) for name in result.__slots__}
        self._span(f"stream {stream.id}", stream.arrived_at, now, stream.id, arguments)

    def write(self) -> None:
        write_atomically(self._path, json.dumps({"traceEvents": list(self._events)}).encode())

    def _span(self, name: str, start: float, end: float, lane: int, arguments: dict[str, Any]) -> None:
        event = {"name": name, "ph": "X", "ts": start * 1e6, "dur": (end - start) * 1e6, "pid": 1, "tid": lane}
        self._events.append(event | {"args": arguments})
