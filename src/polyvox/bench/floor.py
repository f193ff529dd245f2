"""The physical floor of a device: what a call must read and multiply, against what the device can at best."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

COPY_BYTES = {"cuda": 2 << 30, "cpu": 128 << 20}  # far more than any cache
MATMUL_SIZE = {"cuda": 8192, "cpu": 1024}
REPEATS = 20
# Operations that multiply by a matrix, and so read all of it.
READS_WEIGHTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "linear", "matmul")


@dataclass(frozen=True, slots=True)
class Device:
    """What a device can do, as measured: bytes a second of a copy (read and written), FLOP a second of a matmul."""

    name: str
    bandwidth: float
    rates: dict[torch.dtype, float]

    def __str__(self) -> str:
        rates = (f"{rate / 1e12:.3g} TFLOP/s in {str(dtype)[6:]}" for dtype, rate in self.rates.items())
        return f"{self.name}: copies {self.bandwidth / 1e9:.4g} GB/s, multiplies {', '.join(rates)}"


@dataclass(frozen=True, slots=True)
class Work:
    """What one call must do at least: weights and state that are read and written once, multiplications.

    Activations are not in it: a perfect program would keep them on the chip. operations: how many were launched.
    """

    bytes: int
    flops: int
    operations: int

    def floor(self, device: Device, dtype: torch.dtype) -> float:
        """Seconds below which no program on this device can do it."""
        return max(self.bytes / device.bandwidth, self.flops / device.rates[dtype])


def timed(call: Callable[[], object], repeats: int, device: torch.device, warm: int = 2) -> list[float]:
    """Seconds of each call after some that warm up; waits for the device."""
    times = []
    for _ in range(repeats + warm):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return times[warm:]


def measure_device(device: torch.device, dtypes: set[torch.dtype]) -> Device:
    """The fastest of some large copies and matmuls: a floor is what the device can, not what neighbours leave of it."""
    cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else f"CPU, {torch.get_num_threads()} threads"
    return Device(name, _copy_rate(device), {dtype: _matmul_rate(device, dtype) for dtype in dtypes})


def _copy_rate(device: torch.device) -> float:
    size = COPY_BYTES[device.type]
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / min(timed(lambda: target.copy_(source), REPEATS, device))


def _matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    side = MATMUL_SIZE[device.type]
    left = torch.rand(side, side, device=device).to(dtype)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True  # convolutions may use it, so the floor must
    try:
        seconds = min(timed(lambda: left @ left, REPEATS, device))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return 2 * side**3 / seconds


class _Reads(TorchDispatchMode):
    """Counts the bytes of weights that operations read, and the operations that are not mere views."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.operations = 0
        self._weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operations += not func.is_view
        if func.overloadpacket.__name__ in READS_WEIGHTS:
            tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
            self.bytes += sum(t.nbytes for t in tensors if t.untyped_storage().data_ptr() in self._weights)
        return out


def _attention_flops(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], *_: Any, **__: Any) -> int:
    """By shapes [B,H,T,D]: every query meets every key. Some torch refuses to count where heads share keys."""
    batch, heads, rows, width = q
    return 2 * batch * heads * rows * k[2] * (width + v[3])


ATTENTION = {
    getattr(torch.ops.aten, f"_scaled_dot_product_{kind}"): _attention_flops
    for kind in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
}


def work_of(call: Callable[[], object], model: nn.Module, state: int) -> Work:
    """Counts one call; state: bytes that it reads and writes beside weights, which no counter sees apart."""
    with _Reads(model) as reads, FlopCounterMode(display=False, custom_mapping=ATTENTION) as flops:
        call()
    return Work(reads.bytes + state, flops.get_total_flops(), reads.operations)
