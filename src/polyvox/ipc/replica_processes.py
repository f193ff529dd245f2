# SPDX-License-Identifier: Apache-2.0
"""Starts several engine processes, the replicas of one server, each with a supervisor of its own."""

import multiprocessing
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from polyvox.engine.interface import InProcessEngine
from polyvox.ipc.endpoint import EngineEndpoint
from polyvox.ipc.process import EngineProcessConfig, StartedEngine
from polyvox.ipc.supervisor import EngineProcess, OnStarted
from polyvox.progress import OnProgress


class ReplicaProcesses:
    """One `EngineProcess` for each factory. They start at the same time, and each is restarted by itself.

    A first start that fails is tried again as long as another replica may start or has started: one broken GPU does
    not stop the others. If all of them fail, `start_failed` becomes readable, and `check` raises the error.
    on_progress: of the first replica. on_started: called once, when the first one of them has started.
    """

    def __init__(
        self,
        factories: Sequence[Callable[[], InProcessEngine]],
        config: EngineProcessConfig | None = None,
        *,
        on_progress: OnProgress | None = None,
        on_started: OnStarted | None = None,
    ) -> None:
        self._on_started, self._num_replicas = on_started, len(factories)
        self._lock = threading.Lock()
        self._started = False
        self._failed: set[int] = set()
        self.start_failed, self._start_failed_signal = multiprocessing.Pipe(duplex=False)
        self.processes: list[EngineProcess] = []
        with ExitStack() as stack:  # if one of them cannot be created, the others are closed
            for replica, factory in enumerate(factories):
                process = EngineProcess(
                    factory,
                    config,
                    wait_for_start=False,
                    on_progress=on_progress if replica == 0 else None,
                    on_started=self._on_replica_started,
                    replica=replica if len(factories) > 1 else None,
                    on_start_failed=partial(self._on_start_failed, replica),
                )
                self.processes.append(stack.enter_context(process))
            self._stack = stack.pop_all()

    @property
    def endpoints(self) -> list[EngineEndpoint]:
        return [process.endpoint for process in self.processes]

    def check(self) -> None:
        """Raises the error of the first starts if all of them failed."""
        if self._has_failed:
            self.processes[0].check()

    def close(self) -> None:
        """Ends all processes and removes their files. Idempotent."""
        self._stack.close()
        for connection in (self.start_failed, self._start_failed_signal):
            connection.close()

    def __enter__(self) -> "ReplicaProcesses":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _has_failed(self) -> bool:
        return not self._started and len(self._failed) == self._num_replicas

    def _on_replica_started(self, started: StartedEngine, seconds: dict[str, float]) -> None:
        with self._lock:
            is_first, self._started = not self._started, True
        if is_first and self._on_started is not None:
            self._on_started(started, seconds)

    def _on_start_failed(self, replica: int) -> bool:
        """Whether this failure is final: no replica has started, and all have failed."""
        with self._lock:
            self._failed.add(replica)
            if self._has_failed:
                self._start_failed_signal.close()
            return self._has_failed
