# SPDX-License-Identifier: Apache-2.0
"""Compiles kernel launches in several processes, into Triton's cache.

A compilation takes about a second of one core, and a model has more than a hundred. The processes use no GPU, and end
when the process that started them ends.
"""

import json
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict

from polyvox.kernels.launches import Launch

COMMAND = (sys.executable, "-P", "-m", "polyvox.kernels.compile_worker")  # -P: no imports from this folder
WORKER_BYTES = 1 << 30  # memory of a worker process
ANSWER_TIMEOUT = 120.0  # seconds within which one of the workers must answer
CLOSE_TIMEOUT = 5.0  # seconds

Worker = subprocess.Popen[bytes]


class CompilerPool:
    """Worker processes that start at once; each compiles one launch at a time."""

    def __init__(self, num_workers: int, command: Sequence[str] = COMMAND, timeout: float = ANSWER_TIMEOUT) -> None:
        self.num_workers, self._timeout = num_workers, timeout
        self._workers = [
            Worker(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            for _ in range(num_workers)
        ]

    def compile(self, launches: Sequence[Launch], on_compiled: Callable[[int], None]) -> list[str]:
        """Compiles all launches; on_compiled gets the number of those that are done. Returns the errors."""
        waiting, errors, num_answers = deque(launches), [], 0
        with selectors.DefaultSelector() as selector:
            for worker in self._workers[: len(launches)]:
                assert worker.stdout is not None
                selector.register(worker.stdout, selectors.EVENT_READ, worker)
                _send(worker, waiting.popleft())
            while selector.get_map():
                ready = selector.select(self._timeout)
                if not ready:
                    errors.append(f"no kernel was compiled within {self._timeout:g} s")
                    break
                for key, _ in ready:
                    worker = key.data
                    answer = worker.stdout.readline()
                    num_answers += 1
                    on_compiled(num_answers)
                    error = json.loads(answer).get("error") if answer else "a compiler process ended"
                    errors += [error] if error else []
                    if answer and waiting:
                        _send(worker, waiting.popleft())
                    else:
                        selector.unregister(worker.stdout)
        if num_answers < len(launches):
            errors.append(f"{len(launches) - num_answers} kernels were not compiled")
        return errors

    def close(self) -> None:
        """Ends all workers, also those that still compile."""
        for worker in self._workers:
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.kill()
            worker.stdout.close()
            with suppress(OSError):
                worker.stdin.close()
        for worker in self._workers:
            with suppress(subprocess.TimeoutExpired):
                worker.wait(CLOSE_TIMEOUT)


def _send(worker: Worker, launch: Launch) -> None:
    """Writes a launch to a worker; if the worker has ended, reading its answer shows it."""
    assert worker.stdin is not None
    with suppress(OSError):
        worker.stdin.write(json.dumps(asdict(launch)).encode() + b"\n")
        worker.stdin.flush()
