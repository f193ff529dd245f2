# SPDX-License-Identifier: Apache-2.0
"""Threads for requests, text and clones; an event loop prepares small requests itself, for a share of its time."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from polyvox.engine.interface import Result, Stream
from polyvox.errors import NOT_SHOWN, InvalidRequest, Overloaded, PolyvoxError

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

NUM_THREADS = 4
NUM_CLONE_THREADS = 2  # an encoder takes about a second of several cores
NUM_TEXT_THREADS = 2  # a thread that waits for the engine's lock once can then apply many texts
MAX_PENDING_REQUESTS = 4096  # admission control rejects before that; this bounds the memory of a burst
MAX_PENDING_CLONES = 32  # they take about as long as a server waits for the last one
MAX_PENDING_TEXTS = 10_000  # of one stream
# Share of its time that an event loop may spend on small requests itself: a thread would take more CPU time to wake up
# and to wait for the GIL than the request takes.
MAX_INLINE_SHARE = 0.2
MAX_INLINE_CHARS = 100  # of live text that an event loop may tokenize itself: a few words
MAX_INLINE_SECONDS = 0.005  # at once, so that no audio waits for longer


class InlineBudget:
    """The time that an event loop may spend on small work itself."""

    def __init__(self) -> None:
        self._seconds, self._counted_at = MAX_INLINE_SECONDS, 0.0

    def run(self, work: Callable[[], T]) -> "Future[T] | None":
        """Does the work in the caller's thread and returns its completed outcome; None if there is no time for it."""

        def settle() -> None:
            try:
                outcome.set_result(work())
            except Exception as error:
                outcome.set_exception(error)

        outcome: Future[T] = Future()
        return outcome if self.spend(settle) else None

    def spend(self, work: Callable[[], None]) -> bool:
        """Does the work, which does not raise, in the caller's thread; False if there is no time for it."""
        began = time.monotonic()
        left = min(self._seconds + MAX_INLINE_SHARE * (began - self._counted_at), MAX_INLINE_SECONDS)
        if left <= 0:
            return False
        work()
        self._counted_at = time.monotonic()
        self._seconds = left - (self._counted_at - began)
        return True


class BoundedThreads:
    """A thread pool with a bounded queue."""

    def __init__(self, num_threads: int, max_pending: int, name: str, busy: str) -> None:
        """busy: the end of the message when the queue is full, after the number of what is pending."""
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._max_pending, self._busy = max_pending, busy
        self._lock = threading.Lock()
        self.num_pending = 0  # work that has not ended

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Runs the work in a thread; raises Overloaded if too much is pending."""
        with self._lock:
            if self.num_pending >= self._max_pending:
                raise Overloaded(f"{self.num_pending} {self._busy}", 1.0, "queue_full")
            self.num_pending += 1
        future = self._threads.submit(work, *args, **kwargs)
        future.add_done_callback(self._finished)
        return future

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _finished(self, _: "Future[T]") -> None:
        with self._lock:
            self.num_pending -= 1


class PreparationPool:
    """Threads with a bounded queue for requests, others for clones and for text, so that requests wait for neither.

    Text of accepted streams is bounded by `TextWriter`.
    """

    def __init__(self, num_threads: int = NUM_THREADS, max_pending: int = MAX_PENDING_REQUESTS) -> None:
        self._requests = BoundedThreads(
            num_threads, max_pending, "polyvox-prepare", "requests are already being prepared."
        )
        self._clones = BoundedThreads(
            NUM_CLONE_THREADS, MAX_PENDING_CLONES, "polyvox-clone", "voices are already being cloned."
        )
        self._text_threads = ThreadPoolExecutor(NUM_TEXT_THREADS, thread_name_prefix="polyvox-prepare-text")
        self._inline = InlineBudget()

    def run_inline(self, work: Callable[[], T]) -> "Future[T] | None":
        """Does small work in the caller's thread and returns its completed outcome; None if it has no time for it.

        Only the event loop calls it, while no request waits for a thread.
        """
        return None if self._requests.num_pending else self._inline.run(work)

    def run_text_inline(self, work: Callable[[], None]) -> bool:
        """Applies small text of an accepted stream in the caller's thread; False if it has no time for it.

        Only the event loop calls it, whether or not requests wait for a thread. The work does not raise.
        """
        return self._inline.spend(work)

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Prepares a request in a thread; raises Overloaded if too many requests are pending."""
        return self._requests.submit(work, *args, **kwargs)

    def submit_clone(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Clones a voice in a thread; raises Overloaded if too many clones are pending."""
        return self._clones.submit(work, *args, **kwargs)

    def submit_text(self, work: Callable[[], None]) -> None:
        """Applies text in a thread, without the bound."""
        self._text_threads.submit(work)

    def close(self) -> None:
        self._requests.close()
        self._clones.close()
        self._text_threads.shutdown(wait=False, cancel_futures=True)


class TextWriter:
    """Applies text to one stream, in order and in the pool's threads; the caller never blocks.

    No caller waits for the outcome, so text that the stream rejects ends the stream: `failure` is its result then.
    """

    def __init__(self, pool: PreparationPool, stream: Stream, on_failure: Callable[[], None] | None = None) -> None:
        self.failure: Result | None = None
        self._pool, self._stream, self._on_failure = pool, stream, on_failure
        self._lock = threading.Lock()  # guards all that follows
        self._pending: deque[Callable[[], None]] = deque()
        self._active = False  # a thread applies the pending texts

    def write(self, apply: Callable[[], None], small: bool = False) -> None:
        """apply: one call of the stream's append, append_rows, append_tokens or finish_text.

        small: the event loop that calls this may apply it itself; see `PreparationPool.run_text_inline`.
        """
        if small and not self._active and self._pool.run_text_inline(partial(self._apply, apply)):
            return
        with self._lock:
            accepted = len(self._pending) < MAX_PENDING_TEXTS
            if accepted:
                self._pending.append(apply)
                if self._active:
                    return
                self._active = True
        if accepted:
            self._pool.submit_text(self._apply_pending)
        else:
            self._fail(InvalidRequest("append", NOT_SHOWN, f"at most {MAX_PENDING_TEXTS} texts may be pending"))

    def _apply_pending(self) -> None:
        while True:
            with self._lock:
                if not self._pending:
                    self._active = False
                    return
                apply = self._pending.popleft()
            self._apply(apply)

    def _apply(self, apply: Callable[[], None]) -> None:
        if self._stream.result is None and self.failure is None:
            try:
                apply()
            except Exception as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._pending.clear()
            if self.failure is not None:
                return
            error = as_polyvox_error(error)
            self.failure = Result.of_error(error, self._stream.seed)
        if self._on_failure is not None:
            self._on_failure()
        self._stream.cancel()


def as_polyvox_error(error: Exception) -> PolyvoxError:
    """The error that a client gets; an unexpected one is logged with its traceback."""
    if isinstance(error, PolyvoxError):
        return error
    log.error("request failed", exc_info=error)
    return PolyvoxError(f"The engine failed at this request: {type(error).__name__}: {error}")
