# SPDX-License-Identifier: Apache-2.0
"""A thread that computes calls beside the engine's thread: on a CPU, what a CUDA stream is on a GPU."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import torch

from polyvox.engine.cpu_threads import use_threads

T = TypeVar("T")


class CallThread:
    """Runs calls one after another, in the order in which they are launched."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name, initializer=_leave_one_core)
        self._last: Future[Any] | None = None

    def launch(self, call: Callable[[], T]) -> "Future[T]":
        """Starts a call in inference mode after all launched before it."""
        future = self._executor.submit(torch.inference_mode()(call))
        self._last = future
        return future

    def wait(self) -> None:
        """Until all launched calls have completed or failed."""
        if self._last is not None:
            wait([self._last])

    def close(self) -> None:
        """Ends the thread after the call in progress. Idempotent."""
        self._executor.shutdown(wait=True, cancel_futures=True)


def _leave_one_core() -> None:
    """Large calls are shared by all cores but one, on which the engine's thread computes frames."""
    use_threads(max(1, torch.get_num_threads() - 1))
