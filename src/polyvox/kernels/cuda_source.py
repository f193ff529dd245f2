# SPDX-License-Identifier: Apache-2.0
"""Kernels in CUDA C++, for what Triton cannot express; compiled by NVRTC, which PyTorch's CUDA packages contain.

A file NAME.cu beside its launcher is compiled in about two seconds, and kept in Triton's cache under the hash of its
source, the architecture and the version of NVRTC. That is done with the kernels of Triton when an engine starts
(launches.py), otherwise when `available` is first called. Launches go to PyTorch's current stream, so they can be
captured in a CUDA graph.
"""

import ctypes
import hashlib
import logging
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from polyvox.kernels import cuda_driver
from polyvox.kernels.lazy_triton import interceptor
from polyvox.kernels.tensor_map import TensorMap

log = logging.getLogger(__name__)

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_…: the launch may start before the previous one has ended
# Pointers, matrices to copy, 32-bit integers, float32 and structures.
Argument = Tensor | TensorMap | int | float | bytes | None
OnCompile = Callable[[bool], None]  # called before a compilation (False) and after it (True)


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute of the CUDA driver, with a value of one integer."""

    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of the CUDA driver."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("num_attributes", ctypes.c_uint),
    )


class CudaSource:
    """The kernels of one file in this folder, for one architecture, such as "90a"."""

    def __init__(self, file: str, architecture: str) -> None:
        self.file, self.architecture = file, architecture
        self._functions: dict[tuple[int, str], ctypes.c_void_p] = {}
        self._modules: dict[int, ctypes.c_void_p] = {}
        self._available: bool | None = None

    def available(self) -> bool:
        """Whether the kernels can be compiled here; logs a warning once if PyTorch is for CUDA and they cannot.

        While launches are intercepted, NVRTC need only be present: what is listed then is compiled afterwards.
        """
        if self._available is None:
            try:
                _nvrtc()
                if interceptor() is not None:
                    return True
                self.compile()
                self._available = True
            except (OSError, RuntimeError) as error:
                self._available = False
                if torch.version.cuda:
                    log.warning(
                        "CUDA kernels cannot be compiled; using Triton kernels file=%s error=%r",
                        self.file, str(error),
                    )  # fmt: skip
        return self._available

    def launch(
        self,
        name: str,
        num_programs: int,
        threads: int,
        shared: int,
        arguments: Sequence[Argument],
        overlaps: bool = False,
    ) -> None:
        """Launches a kernel on the current device with this many bytes of shared memory.

        overlaps: the kernel starts before the previous launch has ended, and waits itself (launch_overlap.py).
        """
        if (intercept := interceptor()) is not None:
            intercept(self, arguments, {"name": name, "overlaps": overlaps})
            return
        values = [_to_c(value) for value in arguments]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        function = self._function(name, shared)
        if overlaps:
            attribute = ctypes.pointer(LaunchAttribute(id=PROGRAMMATIC_STREAM_SERIALIZATION, value=1))
            config = LaunchConfig((num_programs, 1, 1), (threads, 1, 1), shared, stream, attribute, 1)
            cuda_driver.call("cuLaunchKernelEx", ctypes.byref(config), function, addresses, None)
        else:
            cuda_driver.call(
                "cuLaunchKernel", function, num_programs, 1, 1, threads, 1, 1, shared, stream, addresses, None
            )

    def compile(self) -> bytes:
        """The machine code, from the cache if it was compiled before. Needs no GPU."""
        source = _read(self.file).encode()
        version = ctypes.c_int(), ctypes.c_int()
        _nvrtc().nvrtcVersion(ctypes.byref(version[0]), ctypes.byref(version[1]))
        words = [source, *_options(self.architecture), f"{version[0].value}.{version[1].value}".encode()]
        from triton.runtime.cache import get_cache_manager

        manager = get_cache_manager(hashlib.sha256(b"\0".join(words)).hexdigest())
        file = f"{Path(self.file).stem}.cubin"
        if (found := manager.get_file(file)) is not None:
            return Path(found).read_bytes()
        listener = _listener or (lambda _: None)
        listener(False)
        code = _compile(source, self.file, self.architecture)
        manager.put(code, file, binary=True)
        listener(True)
        return code

    def _function(self, name: str, shared: int) -> ctypes.c_void_p:
        device = torch.cuda.current_device()
        if (device, name) not in self._functions:
            if device not in self._modules:
                torch.cuda.current_stream()  # creates the device's context
                module = ctypes.c_void_p()
                cuda_driver.call("cuModuleLoadData", ctypes.byref(module), self.compile())
                self._modules[device] = module
            function = ctypes.c_void_p()
            cuda_driver.call("cuModuleGetFunction", ctypes.byref(function), self._modules[device], name.encode())
            self._functions[device, name] = function
        function = self._functions[device, name]
        cuda_driver.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, shared)
        return function


_listener: OnCompile | None = None


def set_listener(listener: OnCompile | None) -> None:
    """Reports the compilations of this process, one of which takes seconds."""
    global _listener
    _listener = listener


def _read(file: str) -> str:
    """A file of this folder, with the files of this folder (NAME.cuh) that it includes."""
    text = (Path(__file__).parent / file).read_text()
    return re.sub(r'^#include "(\w+\.cuh)"$', lambda found: _read(found[1]), text, flags=re.MULTILINE)


def _to_c(value: Argument) -> ctypes.c_int | ctypes.c_float | ctypes.c_uint64 | ctypes.Array[ctypes.c_char]:
    if isinstance(value, TensorMap):
        return value.encoded()
    if isinstance(value, int):
        return ctypes.c_int(value)
    if isinstance(value, float):
        return ctypes.c_float(value)
    if isinstance(value, bytes):
        return ctypes.create_string_buffer(value, len(value))
    return ctypes.c_uint64(0 if value is None else value.data_ptr())


def _options(architecture: str) -> list[bytes]:
    return [f"--gpu-architecture=sm_{architecture}".encode(), b"--std=c++17"]


def _compile(source: bytes, name: str, architecture: str) -> bytes:
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    given = _options(architecture)
    options = (ctypes.c_char_p * len(given))(*given)
    created = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, name.encode(), 0, None, None)
    if created:
        raise RuntimeError(f"NVRTC cannot compile {name}: error {created}")
    try:
        size = ctypes.c_size_t()
        if nvrtc.nvrtcCompileProgram(program, len(options), options):
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            text = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, text)
            raise RuntimeError(f"NVRTC cannot compile {name}: {text.value.decode(errors='replace')}")
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, code)
        return code.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


@cache
def _nvrtc() -> ctypes.CDLL:
    if not torch.version.cuda:
        raise OSError("PyTorch is not built for CUDA")
    return ctypes.CDLL(f"libnvrtc.so.{torch.version.cuda.partition('.')[0]}")
