# SPDX-License-Identifier: Apache-2.0
"""A thread that computes calls beside the engine's thread: on a CPU, what a CUDA stream is on a GPU."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, TypeVar

import torch

from polyvox.engine.cpu_threads import use_threads

T = TypeVar("T")


class CallThread:
    """Runs calls one after another, in the order in which they are launched.

    It is no executor, because Python ends executors before the exit handler that closes the engine.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._last: Future[Any] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def launch(self, call: Callable[[], T]) -> "Future[T]":
        """Starts a call in inference mode after all launched before it."""
        if self._closed:
            raise RuntimeError("the thread is closed")
        future: Future[T] = Future()
        self._calls.put((future, call))
        self._last = future
        return future

    def wait(self) -> None:
        """Until all launched calls have completed or failed."""
        if self._last is not None:
            wait([self._last])

    def close(self) -> None:
        """Ends the thread after the call in progress; calls that have not started are cancelled. Idempotent."""
        self._closed = True
        with suppress(queue.Empty):
            while (launched := self._calls.get_nowait()) is not None:
                launched[0].cancel()
                launched[0].set_running_or_notify_cancel()  # wakes what waits for it
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        _leave_one_core()
        with torch.inference_mode():
            while (launched := self._calls.get()) is not None:
                future, call = launched
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
                del launched, future, call  # while it waits, the thread keeps no results


def _leave_one_core() -> None:
    """Large calls are shared by all cores but one, on which the engine's thread computes frames."""
    use_threads(max(1, torch.get_num_threads() - 1))
