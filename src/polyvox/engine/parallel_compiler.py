# SPDX-License-Identifier: Apache-2.0
"""Compiles the kernels of an engine's calls in parallel, if they are not in the cache.

At the first kernel that is missing, compiler processes are started, which import Triton while the call with the missing
kernel continues. Then the launches of all calls are listed and distributed to the processes, and the remaining calls
find their kernels in the cache. With a warm cache nothing of this happens.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from polyvox import kernels
from polyvox.kernels import cuda_source
from polyvox.kernels.compiler_pool import WORKER_BYTES, CompilerPool
from polyvox.kernels.gpu import gpu_of
from polyvox.kernels.launches import Launch, record_launches

log = logging.getLogger(__name__)

MAX_MEMORY_SHARE = 0.25  # of the machine's memory, for compiler processes

Report = Callable[[int, int], None]  # kernels compiled, and all kernels


@dataclass(frozen=True, slots=True)
class DeviceCalls:
    """The calls of an engine on one device."""

    device: torch.device
    calls: Sequence[Callable[[], object]]


class ParallelCompiler:
    """A context in which calls of an engine run for the first time."""

    def __init__(self, parts: Sequence[DeviceCalls], max_workers: int) -> None:
        self._parts, self._max_workers = parts, max_workers
        self._pool: CompilerPool | None = None
        self._finished = False
        self._report: Report = lambda _done, _total: None
        self._num_sources = 0  # files in CUDA C++ that the current call has compiled

    def __enter__(self) -> "ParallelCompiler":
        if kernels.installed():
            self._set_listener(self._on_compiled)
        cuda_source.set_listener(self._on_source)
        return self

    def __exit__(self, *_: object) -> None:
        if kernels.installed():
            self._set_listener(None)
        cuda_source.set_listener(None)
        if self._pool is not None:
            self._pool.close()

    def begin_call(self, report: Report) -> None:
        """Before each call: what it compiles itself is reported, with the number of compiled files and of all."""
        self._report, self._num_sources = report, 0

    def compile_missing(self, report: Report) -> int:
        """Compiles the kernels of all calls, if one was missing from the cache; returns how many.

        report gets the number of compiled kernels and the number of all. Kernels that fail here are compiled by the
        call that launches them. The files that the call before it compiled itself count, too.
        """
        num_sources, self._num_sources = self._num_sources, 0
        return num_sources + self._compile_missing(lambda done, total: report(num_sources + done, num_sources + total))

    def _compile_missing(self, report: Report) -> int:
        if self._pool is None or self._finished:
            return 0
        self._finished = True
        began = time.monotonic()
        launches: list[Launch] = []
        try:
            for part in self._parts:
                with torch.cuda.device(part.device):
                    launches += record_launches(part.calls, gpu_of(part.device))
            log.info("kernels missing from the cache count=%d processes=%d", len(launches), self._pool.num_workers)
            report(0, len(launches))
            errors = self._pool.compile(launches, lambda done: report(done, len(launches)))
        except Exception as error:
            errors = [f"{type(error).__name__}: {error}"]
        if errors:
            log.warning(
                "parallel compilation failed; the kernels are compiled one after the other errors=%d first=%r",
                len(errors), errors[0],
            )  # fmt: skip
        else:
            log.info("kernels compiled count=%d seconds=%.1f", len(launches), time.monotonic() - began)
        return len(launches)

    def _on_compiled(self, *, cache_hit: bool, **_: object) -> None:
        """Called by Triton after each kernel that it compiled or found in the cache."""
        if cache_hit or self._finished or self._pool is not None:
            return
        try:
            self._pool = CompilerPool(self._max_workers)
        except OSError as error:
            self._finished = True
            log.warning("compiler processes cannot be started error=%r", str(error))

    def _on_source(self, finished: bool) -> None:
        """Called before and after the compilation of a file in CUDA C++."""
        self._num_sources += finished
        self._report(self._num_sources, self._num_sources + (not finished))

    def _set_listener(self, listener: Callable[..., None] | None) -> None:
        from triton import knobs

        knobs.compilation.listener = listener


def max_compilers(machine_memory: int) -> int:
    """As many processes as there are cores, and memory for them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, int(machine_memory * MAX_MEMORY_SHARE) // WORKER_BYTES))
