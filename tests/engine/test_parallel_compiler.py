# SPDX-License-Identifier: Apache-2.0
"""When kernels are missing from the cache, and when not; tests/kernels has the tests of the compiler processes."""

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest
import torch

from polyvox.engine import parallel_compiler
from polyvox.engine.parallel_compiler import DeviceCalls, ParallelCompiler, max_compilers
from polyvox.kernels import cuda_source
from polyvox.kernels.compiler_pool import WORKER_BYTES
from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.launches import Launch

LAUNCHES = [Launch("module:kernel", str(number), 90) for number in range(3)]
CALLS = [DeviceCalls(torch.device("cpu"), [lambda: None])]


class FakePool:
    """A pool that compiles at once, with the errors of the test."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers, self.errors, self.closed = num_workers, list[str](), False
        self.compiled: list[Launch] = []

    def compile(self, launches: Sequence[Launch], on_compiled: Callable[[int], None]) -> list[str]:
        for number, launch in enumerate(launches, 1):
            self.compiled.append(launch)
            on_compiled(number)
        return self.errors

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[FakePool]:
    """The pools that a test starts; all calls have LAUNCHES."""
    started: list[FakePool] = []

    def start(num_workers: int) -> FakePool:
        started.append(FakePool(num_workers))
        return started[-1]

    monkeypatch.setattr(parallel_compiler, "CompilerPool", start)
    monkeypatch.setattr(parallel_compiler, "record_launches", lambda _calls, _gpu: LAUNCHES)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    return started


def compile_kernel(cache_hit: bool) -> None:
    """What Triton reports when a kernel is launched for the first time."""
    from triton import knobs

    listener = knobs.compilation.listener
    assert listener is not None
    listener(src=None, metadata={}, metadata_group={}, times=None, cache_hit=cache_hit)


def test_with_a_warm_cache_no_process_starts(pools: list[FakePool]) -> None:
    with ParallelCompiler(CALLS, 4) as compiler:
        compile_kernel(cache_hit=True)
        assert compiler.compile_missing(lambda *_: None) == 0
    assert pools == []


def test_a_missing_kernel_starts_processes_that_compile_all_of_them_once(pools: list[FakePool]) -> None:
    reports: list[tuple[int, int]] = []
    with ParallelCompiler(CALLS, 4) as compiler:
        compile_kernel(cache_hit=False)
        compile_kernel(cache_hit=False)
        assert compiler.compile_missing(lambda *report: reports.append(report)) == 3
        compile_kernel(cache_hit=False)
        assert compiler.compile_missing(lambda *report: reports.append(report)) == 0
    [pool] = pools
    assert pool.num_workers == 4
    assert pool.compiled == LAUNCHES
    assert pool.closed
    assert reports == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_a_failure_is_logged_and_the_start_goes_on(
    pools: list[FakePool], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with ParallelCompiler(CALLS, 4) as compiler:
        compile_kernel(cache_hit=False)
        pools[0].errors = ["SyntaxError: 1"]
        compiler.compile_missing(lambda *_: None)
    assert "SyntaxError: 1" in caplog.text

    def fail(*_: object) -> list[Launch]:
        raise NotImplementedError("an operation without shapes")

    monkeypatch.setattr(parallel_compiler, "record_launches", fail)
    with ParallelCompiler(CALLS, 4) as compiler:
        compile_kernel(cache_hit=False)
        assert compiler.compile_missing(lambda *_: None) == 0
    assert "an operation without shapes" in caplog.text
    assert all(pool.closed for pool in pools)


def test_a_machine_that_cannot_start_processes_compiles_in_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: int) -> FakePool:
        raise OSError("no more processes")

    monkeypatch.setattr(parallel_compiler, "CompilerPool", fail)
    with ParallelCompiler(CALLS, 4) as compiler:
        compile_kernel(cache_hit=False)
        compile_kernel(cache_hit=False)
        assert compiler.compile_missing(lambda *_: None) == 0
    assert caplog.text.count("no more processes") == 1


def test_a_file_that_a_call_compiles_itself_counts_in_the_progress(
    pools: list[FakePool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cuda_source, "_nvrtc", mock.Mock())
    monkeypatch.setattr(cuda_source, "_compile", lambda *_: b"code")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    reported: list[tuple[int, int]] = []
    with ParallelCompiler(CALLS, 4) as compiler:
        compiler.begin_call(lambda *counts: reported.append(counts))
        for _ in range(2):  # the second time it is in the cache
            CudaSource("wgmma_conv.cu", "90a").compile()
        assert reported == [(0, 1), (1, 1)]
        compile_kernel(cache_hit=False)
        assert compiler.compile_missing(lambda *counts: reported.append(counts)) == 1 + len(LAUNCHES)
        assert reported[2:] == [(1, 4), (2, 4), (3, 4), (4, 4)]
        compiler.begin_call(lambda *counts: reported.append(counts))
        assert compiler.compile_missing(lambda *counts: reported.append(counts)) == 0
    assert len(reported) == 6
    assert len(pools) == 1


def test_the_number_of_processes_is_limited_by_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    assert max_compilers(400 * WORKER_BYTES) == 8
    assert max_compilers(12 * WORKER_BYTES) == 3
    assert max_compilers(WORKER_BYTES) == 1
