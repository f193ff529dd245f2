# SPDX-License-Identifier: Apache-2.0
"""Lists the kernel launches of calls without running them, and compiles them without a GPU.

A kernel is compiled for the types, alignments and constants of its arguments. `record_launches` runs calls on the meta
device, whose tensors have shapes but no memory, and collects these specialisations as Triton serialises them.
`compile_launch` compiles one in any process and puts it into Triton's cache, where the process with the GPU finds it.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.gpu import Gpu, assume
from polyvox.kernels.lazy_triton import Kernel, intercepting_launches

ALIGNMENT = 16  # bytes: Triton distinguishes pointers that are multiples of it
WARP_SIZE = 32
META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class Launch:
    """One compilation: a kernel (module:function), what it is specialised for (JSON), and the GPU's architecture.

    All kernels of a file in CUDA C++ are one compilation: file.cu:architecture, without a specialisation.
    """

    kernel: str
    specialization: str
    architecture: int

    @property
    def name(self) -> str:
        return self.kernel.partition(":")[2]


class AbsentTensor:
    """What Triton reads of a tensor argument: its type and the alignment of its address."""

    def __init__(self, tensor: Tensor) -> None:
        self.dtype = tensor.dtype
        self._offset = int(tensor.storage_offset()) * tensor.itemsize % ALIGNMENT

    def data_ptr(self) -> int:
        """An address of the same alignment: allocations begin at aligned addresses."""
        return self._offset

    @property
    def key(self) -> object:
        return self.dtype, self._offset


class AbsentDriver:
    """Triton's driver for a GPU that is not present, or that this process does not use."""

    def __init__(self, architecture: int) -> None:
        self.architecture = architecture

    def get_current_device(self) -> int:
        return self.architecture  # Triton keeps compiled kernels by device

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.architecture, WARP_SIZE)


@contextmanager
def absent_gpu(architecture: int) -> Iterator[None]:
    """Lets Triton compile for an architecture without a GPU."""
    from triton.runtime import driver

    before = driver._active
    driver.set_active(AbsentDriver(architecture))
    try:
        yield
    finally:
        driver._active = before


def record_launches(calls: Sequence[Callable[[], object]], gpu: Gpu) -> list[Launch]:
    """The distinct launches of these calls on a GPU that this process has not compiled.

    Neither the calls' kernels nor their other operations run, and no tensor changes.
    """
    from triton import knobs

    thread = threading.get_ident()
    seen: set[object] = set()
    launches: dict[Launch, None] = {}

    def skip_compilation(*, fn: Any, compile: dict[str, Any], **_: object) -> bool:
        """Called by Triton before it compiles a kernel; True prevents that."""
        if threading.get_ident() != thread:
            return False
        launches.setdefault(Launch(f"{fn.module}:{fn.name}", compile["specialization_data"], gpu.architecture))
        return True

    def record(kernel: Kernel | CudaSource, arguments: Sequence[object], named: dict[str, object]) -> None:
        if isinstance(kernel, CudaSource):
            launches.setdefault(Launch(f"{kernel.file}:{kernel.architecture}", "", gpu.architecture))
            return
        values = [AbsentTensor(value) if isinstance(value, Tensor) else value for value in arguments]
        key = (kernel, *(value.key if isinstance(value, AbsentTensor) else value for value in values), *named.items())
        if key not in seen:  # Triton's own check takes far longer
            seen.add(key)
            kernel.jit.run(*values, grid=None, warmup=True, **named)

    before, knobs.runtime.jit_cache_hook = knobs.runtime.jit_cache_hook, skip_compilation
    try:
        with OnMetaDevice(), assume(gpu), intercepting_launches(record):
            for call in calls:
                call()
    finally:
        knobs.runtime.jit_cache_hook = before
    return list(launches)


class OnMetaDevice(TorchDispatchMode):
    """Runs all operations on the meta device; tensors of other devices are replaced by tensors without memory."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._replaced: dict[int, tuple[Tensor, Tensor]] = {}  # by id; keeps the tensor, so that no other gets its id

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's default makes every operation slower, and imports 900 modules for the first."""
        return False

    def __torch_dispatch__(
        self, func: Any, _types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = {name: self._replace(value) for name, value in (kwargs or {}).items()}
        if "device" in named:
            named["device"] = META
        # Inference mode requires that the view of an ordinary tensor is one, too.
        with torch.inference_mode(False):
            return func(*map(self._replace, args), **named)

    def _replace(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(self._replace, value))
        if not isinstance(value, Tensor) or value.is_meta:
            return value
        if id(value) not in self._replaced:
            storage = torch.empty(value.untyped_storage().nbytes() // value.itemsize, dtype=value.dtype, device=META)
            shaped = storage.as_strided(value.shape, value.stride(), value.storage_offset())
            self._replaced[id(value)] = value, shaped
        return self._replaced[id(value)][1]


def compile_launch(launch: Launch) -> Any:
    """Compiles a launch, or finds it in Triton's cache; returns Triton's compiled kernel, or the machine code."""
    module, _, name = launch.kernel.partition(":")
    if module.endswith(".cu"):
        return CudaSource(module, name).compile()
    kernel: Kernel = getattr(import_module(module), name)
    with absent_gpu(launch.architecture):
        return kernel.jit.preload(launch.specialization)
