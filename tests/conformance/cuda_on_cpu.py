# SPDX-License-Identifier: Apache-2.0
"""Compile a CUDA file for a CPU: cuda_on_cpu.hpp has a thread for each thread of a program."""

import ctypes
import mmap
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.launch_hazards import cuda_signature
from polyvox import kernels
from polyvox.kernels.cuda_source import Argument
from polyvox.kernels.gpu import GPUS
from polyvox.kernels.tensor_map import TensorMap

COMPILER = shutil.which("g++")
NVCC = shutil.which("nvcc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs g++ with C++20")
COMPILER_SECONDS = 300
FLAGS_VARIABLE = "CUDA_ON_CPU_FLAGS"  # of the environment: more flags for the compiler (test_races_on_cpu.py)
PAGE = mmap.PAGESIZE


def compile_for_cpu(program: str, folder: Path, optimization: str = "-O1") -> ctypes.CDLL:
    """The functions of a C++ program that includes a file of kernels/; `folder` receives the compiled library."""
    source, library = folder / "program.cpp", folder / "kernels.so"
    source.write_text(program)
    included = [f"-I{path}" for path in (Path(kernels.__file__).parent, Path(__file__).parent)]
    command = [str(COMPILER), "-std=c++20", optimization, "-fPIC", "-shared", "-pthread", "-DON_CPU"]
    command += ["-Wno-unknown-pragmas", *os.environ.get(FLAGS_VARIABLE, "").split(), *included]
    command += ["-o", str(library), str(source)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=COMPILER_SECONDS)
    assert made.returncode == 0, made.stderr[-3000:]
    return ctypes.CDLL(str(library))


def set_previous_launch(compiled: ctypes.CDLL, file: str, name: str, arguments: Sequence[Argument]) -> None:
    """Lets a thread beside the programs use what the kernel may use after its wait only; for ThreadSanitizer.

    It writes what the kernel may not read before, and reads what the kernel may not write before.
    """
    if "-fsanitize=thread" not in os.environ.get(FLAGS_VARIABLE, ""):
        return
    signature = cuda_signature(file, name)
    used: list[tuple[Tensor, bool]] = []
    for parameter, given in zip(signature.parameters, arguments, strict=True):
        tensor = given.matrix if isinstance(given, TensorMap) else given
        if isinstance(tensor, Tensor) and not any(tensor is each for each, _ in used):
            is_early, is_written = parameter in signature.effects.early, parameter in signature.effects.written
            if is_written or not is_early:
                used.append((tensor, not is_early))
    count = len(used)
    spans = [sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True)) + 1 for t, _ in used]
    compiled.set_previous_launch(
        count,
        (ctypes.c_void_p * count)(*(tensor.data_ptr() for tensor, _ in used)),
        (ctypes.c_longlong * count)(*(span * t.itemsize for span, (t, _) in zip(spans, used, strict=True))),
        (ctypes.c_int * count)(*(is_written for _, is_written in used)),
    )


class CpuSource:
    """In place of a CudaSource: launches run on the CPU. file: of the kernel, if it waits for the previous launch."""

    def __init__(self, compiled: ctypes.CDLL, file: str | None = None) -> None:
        self._compiled, self._file = compiled, file

    def launch(
        self,
        name: str,
        num_programs: int,
        threads: int,
        shared: int,
        arguments: Sequence[Argument],
        overlaps: bool = False,
    ) -> None:
        assert not overlaps
        if self._file is not None:
            set_previous_launch(self._compiled, self._file, name, arguments)
        others = (value for value in arguments if not isinstance(value, int | float))
        pointers = [value.data_ptr() if isinstance(value, Tensor) else 0 for value in others]
        numbers = [
            struct.unpack("i", struct.pack("f" if isinstance(value, float) else "i", value))[0]
            for value in arguments
            if isinstance(value, int | float)
        ]
        getattr(self._compiled, f"launch_{name}")(
            num_programs, threads, shared,
            (ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_int * len(numbers))(*numbers),
        )  # fmt: skip


class HostMap(ctypes.Structure):
    """TensorMap of wgmma_bfloat16_on_cpu.hpp."""

    _fields_ = (("values", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("rows", "columns", "row", "box")))


class MappedCpuSource:
    """CpuSource for kernels of sm_90 that copy two matrices by their tensor maps. overlaps: as each launch asks for."""

    def __init__(self, compiled: ctypes.CDLL, file: str, overlaps: bool) -> None:
        self._compiled, self._file, self._overlaps = compiled, file, overlaps

    def launch(
        self,
        name: str,
        num_programs: int,
        threads: int,
        shared: int,
        arguments: Sequence[Argument],
        overlaps: bool = False,
    ) -> None:
        assert overlaps == self._overlaps
        assert shared <= GPUS[90].shared
        set_previous_launch(self._compiled, self._file, name, arguments)
        maps = [each for each in arguments if isinstance(each, TensorMap)]
        hosts = [
            HostMap(each.matrix.data_ptr(), *each.matrix.shape, each.matrix.stride(0), each.box_rows) for each in maps
        ]
        given = [each for each in arguments if each is None or isinstance(each, Tensor)]
        tensors = [0 if each is None else each.data_ptr() for each in given]
        numbers = [each for each in arguments if isinstance(each, int)]
        floats = [each for each in arguments if isinstance(each, float)]
        getattr(self._compiled, f"launch_{name}")(
            num_programs, threads, shared, (HostMap * 2)(*hosts), (ctypes.c_void_p * len(tensors))(*tensors),
            (ctypes.c_int * len(numbers))(*numbers), (ctypes.c_float * len(floats))(*floats),
        )  # fmt: skip


def registers_of(source: Path, architecture: int | str, folder: Path) -> list[int]:
    """Registers per thread of each kernel of a CUDA file, compiled by nvcc for a GPU; none of them may spill."""
    target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    command = [str(NVCC), target, "-cubin", "-Xptxas", "-v", "-std=c++17", "-o", str(folder / "made"), str(source)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert made.returncode == 0, made.stderr[-3000:]
    assert not any(int(stored) for stored in re.findall(r"(\d+) bytes spill stores", made.stderr))
    return [int(used) for used in re.findall(r"Used (\d+) registers", made.stderr)]


class GuardedMemory:
    """Tensors between two pages that no one may read or write, which end the process."""

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []

    def copy(self, values: Tensor, at_end: bool) -> Tensor:
        """A copy that ends before, or else begins after, a page without access; NaN or -1 elsewhere in its pages."""
        count = -(-values.nbytes // PAGE) * PAGE
        area = mmap.mmap(-1, count + 2 * PAGE)
        self._maps.append(area)
        whole = torch.frombuffer(area, dtype=values.dtype)
        whole.fill_(torch.nan if values.is_floating_point() else -1)
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for page in (0, PAGE + count):
            assert protect(ctypes.c_void_p(whole.data_ptr() + page), ctypes.c_size_t(PAGE), 0) == 0
        first = (PAGE + (count - values.nbytes if at_end else 0)) // values.itemsize
        return whole[first : first + values.numel()].view(values.shape).copy_(values)
