# SPDX-License-Identifier: Apache-2.0
"""Roofline bound of a model call: its memory traffic and FLOPs against the measured peaks of the device."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from polyvox.kernels.quantized_rows import is_quantized

COPY_BYTES = {"cuda": 2 << 30, "cpu": 128 << 20}  # much larger than any cache
MATMUL_SIZE = {"cuda": 8192, "cpu": 1024}
REPEATS = 20
WARM_UP_CALLS = 2
# Operations that read a whole weight matrix.
WEIGHT_OPERATIONS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "linear", "matmul")


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """Measured peaks: copy bandwidth in bytes (read and written) per second, matmul FLOP/s by dtype."""

    name: str
    bandwidth: float
    rates: dict[torch.dtype, float]

    def __str__(self) -> str:
        rates = (f"{rate / 1e12:.3g} TFLOP/s in {str(dtype)[6:]}" for dtype, rate in self.rates.items())
        return f"{self.name}: copy {self.bandwidth / 1e9:.4g} GB/s, matmul {', '.join(rates)}"


@dataclass(frozen=True, slots=True)
class Work:
    """The minimum work of one call: bytes of weights and state, each read or written once, and FLOPs.

    The bound excludes activations: an ideal program keeps them on the chip. activations: their bytes in a program with
    one launch for each product, which reads its rows and writes its result once. operations: launched operations.
    """

    bytes: int
    flops: int
    operations: int
    activations: int = 0

    def bound(self, peaks: DevicePeaks, dtype: torch.dtype) -> float:
        """The shortest possible time on this device, in seconds."""
        return max(self.bytes / peaks.bandwidth, self.flops / peaks.rates[dtype])


def time_calls(call: Callable[[], object], repeats: int, device: torch.device) -> list[float]:
    """Seconds of each call after the warm-up, including the wait for the device."""
    times = []
    for _ in range(repeats + WARM_UP_CALLS):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return times[WARM_UP_CALLS:]


def measure_peaks(device: torch.device, dtypes: set[torch.dtype]) -> DevicePeaks:
    """The fastest of several large copies and matmuls, so that other work on the machine does not lower the peaks."""
    cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else f"CPU, {torch.get_num_threads()} threads"
    return DevicePeaks(name, _copy_rate(device), {dtype: _matmul_rate(device, dtype) for dtype in dtypes})


def _copy_rate(device: torch.device) -> float:
    size = COPY_BYTES[device.type]
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / min(time_calls(lambda: target.copy_(source), REPEATS, device))


def _matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    side = MATMUL_SIZE[device.type]
    left = torch.rand(side, side, device=device).to(dtype)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True  # convolutions may use it
    try:
        seconds = min(time_calls(lambda: left @ left, REPEATS, device))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return 2 * side**3 / seconds


class _WeightReads(TorchDispatchMode):
    """Counts the bytes of weights that operations read, those of products' other operands, and all but views.

    Quantised weights are read when they are converted for the product that follows.
    """

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.operations = self.activations = 0
        self._weights = {_storage(parameter): parameter.dtype for parameter in weights}
        self._converted: torch.Tensor | None = None  # kept, so that no other tensor gets its memory

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operations += not func.is_view
        name = func.overloadpacket.__name__
        if name == "_to_copy" and is_quantized(self._weights.get(_storage(args[0]), out.dtype)):
            self.bytes += args[0].nbytes
            self._converted = out
        if name in WEIGHT_OPERATIONS:
            converted = None if self._converted is None else _storage(self._converted)
            tensors = [arg for arg in args if isinstance(arg, torch.Tensor) and _storage(arg) != converted]
            read = sum(t.nbytes for t in tensors if _storage(t) in self._weights)
            self.bytes += read
            self.activations += sum(t.nbytes for t in (*tensors, out)) - read
        return out


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _attention_flops(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], *_: Any, **__: Any) -> int:
    """FLOPs by shapes [B,H,T,D] without causal savings. Some versions of torch do not count grouped-query attention."""
    batch, heads, rows, width = q
    return 2 * batch * heads * rows * k[2] * (width + v[3])


ATTENTION_FLOPS = {
    getattr(torch.ops.aten, f"_scaled_dot_product_{kind}"): _attention_flops
    for kind in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
}


def count_work(call: Callable[[], object], weights: Iterable[torch.Tensor], state_bytes: int) -> Work:
    """Counts the work of one call; state_bytes: traffic beside the weights, which the counters cannot attribute."""
    with _WeightReads(weights) as reads, FlopCounterMode(display=False, custom_mapping=ATTENTION_FLOPS) as flops:
        call()
    return Work(reads.bytes + state_bytes, flops.get_total_flops(), reads.operations, reads.activations)
