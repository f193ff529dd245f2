# SPDX-License-Identifier: Apache-2.0
"""Progress of an engine's start. Stages are reported here, and listeners show, log, time or forward them."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # server processes do not import rich
    from rich.console import Console
    from rich.progress import Progress, TaskID

log = logging.getLogger(__name__)

Stage = Literal["import", "load", "compile", "capture", "calibrate"]
OnProgress = Callable[[Stage, int, int], None]  # stage, done, total

DESCRIPTIONS: dict[Stage, str] = {
    "import": "Importing PyTorch",
    "load": "Loading weights",
    "compile": "Compiling kernels",
    "capture": "Capturing CUDA graphs",
    "calibrate": "Measuring step times",
}
LOG_INTERVAL = 5.0  # seconds between two log lines of one stage

_listeners: list[OnProgress] = []
_lock = threading.Lock()  # stages are reported by the thread that starts the engine and by the engine's own


def report(stage: Stage, done: int, total: int) -> None:
    """Reports that `done` of `total` parts of a stage are complete. A new stage ends the one before it."""
    with _lock:
        for listener in _listeners:
            listener(stage, done, total)


@contextmanager
def listening(*listeners: OnProgress) -> Iterator[None]:
    """Calls the listeners for all reports in this process."""
    with _lock:
        _listeners.extend(listeners)
    try:
        yield
    finally:
        with _lock:
            for listener in listeners:
                _listeners.remove(listener)


class StageTimes:
    """Measures stages: each lasts until the next one begins, the last one until `seconds` is called."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: dict[str, float] = {}

    def __call__(self, stage: Stage, done: int, total: int) -> None:  # noqa: ARG002
        self._began.setdefault(stage, self._clock())

    def seconds(self) -> dict[str, float]:
        moments = [*self._began.values(), self._clock()]
        return {stage: end - began for stage, (began, end) in zip(self._began, pairwise(moments), strict=True)}


class ProgressBar:
    """Draws a transient bar on stderr."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._stage: Stage | None = None
        self._bar: Progress | None = None
        self._task: TaskID

    def __call__(self, stage: Stage, done: int, total: int) -> None:
        if stage != self._stage:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self.close()
            self._stage = stage
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task(DESCRIPTIONS[stage], total=total)
            self._bar.start()
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)
        if done >= total:
            self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar = None


class ProgressLog:
    """Logs the start of each stage, and its progress every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stage: Stage | None = None
        self._logged_at = 0.0

    def __call__(self, stage: Stage, done: int, total: int) -> None:
        now = self._clock()
        if stage != self._stage or (now - self._logged_at >= LOG_INTERVAL and done < total):
            self._stage, self._logged_at = stage, now
            log.info("engine starting", extra={"stage": stage, "progress": f"{done / max(total, 1):.0%}"})

    def close(self) -> None:
        """Has nothing to close."""


def progress_display() -> ProgressBar | ProgressLog:
    """A bar if stderr is a terminal, else log lines."""
    from rich.console import Console

    console = Console(stderr=True)
    return ProgressBar(console) if console.is_terminal else ProgressLog()


@contextmanager
def showing_progress(enabled: bool) -> Iterator[None]:
    """Shows a bar on stderr for all reports in this process, if stderr is a terminal."""
    display = progress_display()
    if not enabled or not isinstance(display, ProgressBar):
        yield
        return
    try:
        with listening(display):
            yield
    finally:
        display.close()
