"""A run as a Perfetto trace: one track for steps, one line for each stream."""

import json
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyvox.engine.scheduler import Scheduler
from polyvox.errors import InvalidRequest
from polyvox.files import write_atomically

if TYPE_CHECKING:
    from polyvox.engine.stream import LocalStream

MAX_EVENTS = 500_000  # the oldest are dropped


class TraceWriter:
    """Collects events and writes them in the Trace Event Format, which ui.perfetto.dev opens."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        if not os.access(self._path.absolute().parent, os.W_OK):
            raise InvalidRequest("trace", path, "the folder does not exist or is not writable")
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)

    def step(self, sizes: dict[str, float], now: float, scheduler: Scheduler) -> None:
        leads, seconds = scheduler.leads(now), sizes["seconds"]
        arguments = {**sizes, "waiting": len(scheduler.waiting)}
        if leads:
            arguments |= {"lead_min": leads[0], "lead_p10": leads[len(leads) // 10]}
        self._add("step", "X", now - seconds, 0, dur=seconds * 1e6, args=arguments)

    def stream(self, stream: "LocalStream", now: float) -> None:
        result = stream.result
        assert result is not None
        id = stream.track.id if stream.track else 0
        arguments = {name: getattr(result, name) for name in result.__slots__}
        duration = (now - stream.arrived) * 1e6
        self._add(f"stream {id}", "X", stream.arrived, id, dur=duration, args=arguments)

    def write(self) -> None:
        write_atomically(self._path, json.dumps({"traceEvents": list(self._events)}).encode())

    def _add(self, name: str, phase: str, moment: float, thread: int, **more: Any) -> None:
        self._events.append({"name": name, "ph": phase, "ts": moment * 1e6, "pid": 1, "tid": thread, **more})
