# SPDX-License-Identifier: Apache-2.0
"""The thread of calls beside the engine's: their order, their failures and its end."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest
import torch

from polyvox.engine.call_thread import CallThread

TIMEOUT = 60


@pytest.fixture
def thread() -> Iterator[CallThread]:
    thread = CallThread("calls")
    yield thread
    thread.close()


def test_calls_run_in_order_and_without_gradients(thread: CallThread) -> None:
    made: list[int] = []
    for number in range(100):
        thread.launch(lambda number=number: made.append(number))  # type: ignore[misc]
    assert thread.launch(torch.is_inference_mode_enabled).result(TIMEOUT)
    assert made == list(range(100))


def test_a_call_that_fails_raises_for_its_reader_only(thread: CallThread) -> None:
    failed = thread.launch(lambda: 1 / 0)
    assert thread.launch(lambda: 5).result(TIMEOUT) == 5
    thread.wait()
    with pytest.raises(ZeroDivisionError):
        failed.result(TIMEOUT)


def test_close_waits_for_the_call_in_progress_and_cancels_those_behind_it(thread: CallThread) -> None:
    started, finish = threading.Event(), threading.Event()

    def call() -> int:
        started.set()
        assert finish.wait(TIMEOUT)
        return 5

    running, behind = thread.launch(call), thread.launch(lambda: 6)
    assert started.wait(TIMEOUT)
    closing = threading.Thread(target=thread.close)
    closing.start()
    with pytest.raises(CancelledError):
        behind.result(TIMEOUT)
    finish.set()
    closing.join(TIMEOUT)
    assert running.result(TIMEOUT) == 5
    thread.close()
    with pytest.raises(RuntimeError, match="closed"):
        thread.launch(lambda: 7)


AT_EXIT = """
import atexit
from polyvox.engine.call_thread import CallThread
thread = CallThread("calls")
@atexit.register
def close():
    print(thread.launch(lambda: "still running").result())
    thread.close()
"""


@pytest.mark.slow
def test_calls_still_run_in_the_exit_handlers_of_python() -> None:
    ended = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=TIMEOUT, check=True)
    assert ended.stdout == "still running\n"
    assert ended.stderr == ""
