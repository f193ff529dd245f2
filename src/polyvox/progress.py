# SPDX-License-Identifier: Apache-2.0
"""Progress of a model's start: what is reported, and a bar that shows it."""

from collections.abc import Callable
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

Stage = Literal["load", "capture", "calibrate"]
OnProgress = Callable[[Stage, int, int], None]  # stage, done, total

DESCRIPTIONS: dict[Stage, str] = {
    "load": "Loading weights",
    "capture": "Capturing CUDA graphs",
    "calibrate": "Measuring step times",
}


class ProgressBar:
    """An `OnProgress` that draws a transient bar on stderr, if stderr is a terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._stage: Stage | None = None
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __call__(self, stage: Stage, done: int, total: int) -> None:
        if not self._console.is_terminal:
            return
        if stage != self._stage:
            self._stop()
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task(DESCRIPTIONS[stage], total=total)
            self._stage = stage
            self._bar.start()
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)
        if done >= total:
            self._stop()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._stage = None
