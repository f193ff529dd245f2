# SPDX-License-Identifier: Apache-2.0
"""Compile a CUDA file for a CPU: cuda_on_cpu.hpp has a thread for each thread of a program."""

import ctypes
import shutil
import subprocess
from pathlib import Path

from polyvox import kernels

COMPILER = shutil.which("g++")
COMPILER_SECONDS = 300


def compile_for_cpu(program: str, folder: Path, optimization: str = "-O1") -> ctypes.CDLL:
    """The functions of a C++ program that includes a file of kernels/; `folder` receives the compiled library."""
    source, library = folder / "program.cpp", folder / "kernels.so"
    source.write_text(program)
    included = [f"-I{path}" for path in (Path(kernels.__file__).parent, Path(__file__).parent)]
    command = [str(COMPILER), "-std=c++20", optimization, "-fPIC", "-shared", "-pthread", "-DON_CPU"]
    command += ["-Wno-unknown-pragmas", *included, "-o", str(library), str(source)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=COMPILER_SECONDS)
    assert made.returncode == 0, made.stderr[-3000:]
    return ctypes.CDLL(str(library))
