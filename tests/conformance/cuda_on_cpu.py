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

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.cuda_source import Argument

COMPILER = shutil.which("g++")
NVCC = shutil.which("nvcc")
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


class CpuSource:
    """In place of a CudaSource: launches run on the CPU."""

    def __init__(self, compiled: ctypes.CDLL) -> None:
        self._compiled = compiled

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
