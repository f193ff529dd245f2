# SPDX-License-Identifier: Apache-2.0
"""The codec's convolutions in CUDA C++ for sm_90 (H100, H200): a residual unit in one launch, and large convolutions.

    active, x [B,C,T], channels contiguous in memory ([B,T,C]) · state [S,C,H] likewise · slots [B] int64

    residual unit:  y = x + bias2 + weight2 · snake(bias1 + Σ_tap weight1[tap] · active[.., t - (6-tap)·dilation])
    convolution:    as conv.py, with Snake
    upsampling:     as conv.py, with Snake: 192 to 96 channels, two taps

Why not Triton: its convolution copies a column to shared memory once for each tap, which the L2 cache limits, and it
cannot start an operand at any row. Here a tile's columns are copied once (wgmma_conv.cu), and the values between the
two convolutions of a unit stay in registers: a third fewer bytes. For 96 channels all weights stay on the
multiprocessor, too; other weights are copied in stages, each once for two programs on adjacent multiprocessors.

Types: float16; biases and Snake's coefficients float32. Roundings: as conv.py; the sine is the hardware's (error 1e-6,
1e-5 at arguments of 100), which is below the rounding of the result. Needs sm_90 exactly (`supports_...`), NVRTC, and
columns that are a multiple of 64; elsewhere conv.py computes the same, within rounding.
Bytes: x, active and add once from memory, y and Snake(y) once each; weights from cache. A row's bits depend on nothing
else of the batch. Registers: no more than 168 per thread and 3 warpgroups, or 160 and a fourth warpgroup with 32 that
copies weights; shared memory: `unit_shared`, `conv_shared`, `upsample_shared`.

A program of the upsampling has the weights of one output column of each input column, 74 KB, in shared memory. It
copies a window of all channels once, and no weights in its loop. The programs of the other output columns find the
window in the cache.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from polyvox.kernels import cuda_source
from polyvox.kernels.conv import PackedConv, UpdateHistory, causal_conv_reference, channels_last, update_history
from polyvox.kernels.gpu import GPUS, gpu_of
from polyvox.kernels.snake import snake_reference

SOURCE = cuda_source.CudaSource("wgmma_conv.cu", "90a")
ARCHITECTURE = 90  # no other one has these instructions
TILE_ROWS = 64
MAX_WARPGROUPS = 3
THREADS = 128  # of a warpgroup
UNIT_TAPS = 7
UNIT_CHANNELS = (96, 192)  # all weights of a unit of 96 are in shared memory, others are copied in stages
RESIDENT_CHANNELS = 96
UNIT_HALF = 96  # outputs of the second convolution at a time
CHUNK = 64  # input channels of a stage and of a convolution's window
MIN_STAGES, MAX_STAGES = 3, 6  # of weights in shared memory
CLUSTER = 2  # programs that share copies of weights
FEW_TAPS = 2  # a convolution with more has large windows
CONV_WIDTH = 192  # output channels per tile; tiles of 96 are slower than Triton's
UPSAMPLE_INPUTS, UPSAMPLE_OUTPUTS, UPSAMPLE_TAPS = 192, 96, 2
BARRIER_BYTES = 512
MIN_SHARED, TILE_COST = 2, 0.25  # copying weights takes as long as two tiles; the rest of a program's turn

Coefficients = tuple[Tensor, Tensor]  # Snake's, per channel


@dataclass(frozen=True, slots=True, eq=False)
class PackedStages:
    """Weights in the order in which the kernel copies them, and float32 values per output channel."""

    weights: Tensor
    coefficients: Tensor  # of each convolution: bias, Snake's frequency and amplitude


def supports_architecture(architecture: int) -> bool:
    """Whether a GPU of this architecture runs these kernels; compiles them at the first call."""
    return architecture == ARCHITECTURE and SOURCE.available()


def supports_unit(active: Tensor, dilation: int) -> bool:
    """Whether `residual_unit` runs for these signals [B,C,T], and is faster than two convolutions.

    A program that copies its weights in stages needs several tiles to share them.
    """
    batch, channels, columns = active.shape
    if channels not in UNIT_CHANNELS or not _supports(active):
        return False
    gpu = gpu_of(active.device)
    if channels == RESIDENT_CHANNELS:
        return unit_shared(channels, dilation, MAX_WARPGROUPS) <= gpu.shared
    return batch * columns // TILE_ROWS >= 2 * gpu.multiprocessors and unit_stages(channels, dilation) >= MIN_STAGES


def supports_conv(x: Tensor, layer: PackedConv) -> bool:
    """Whether `convolution` runs for these signals, and is faster: there is a tile for every multiprocessor."""
    if layer.inputs % CHUNK or layer.weight.shape[1] % CONV_WIDTH or not _supports(x):
        return False
    gpu = gpu_of(x.device)
    tiles = -(-x.shape[0] * x.shape[2] // (TILE_ROWS * MAX_WARPGROUPS)) * (layer.weight.shape[1] // CONV_WIDTH)
    return tiles >= gpu.multiprocessors and conv_stages(layer.taps, layer.history) >= MIN_STAGES


def supports_upsample(x: Tensor, layer: PackedConv) -> bool:
    """Whether `upsample` runs for these signals; never where `convolution` may run."""
    shape = layer.inputs, layer.outputs, layer.taps, layer.dilation
    if shape != (UPSAMPLE_INPUTS, UPSAMPLE_OUTPUTS, UPSAMPLE_TAPS, 1) or not _supports(x):
        return False
    if layer.rate == 1 or layer.weight.shape[1] % CONV_WIDTH == 0:
        return False
    gpu = gpu_of(x.device)
    return layer.rate <= gpu.multiprocessors and upsample_shared(MAX_WARPGROUPS) <= gpu.shared


def _supports(x: Tensor) -> bool:
    return (
        x.dtype == torch.float16
        and x.shape[2] % TILE_ROWS == 0
        and x.device.type != "cpu"
        and supports_architecture(gpu_of(x.device).architecture)
    )


def unit_stages(channels: int, dilation: int) -> int:
    """Stages of weights in shared memory; 0 if all weights are."""
    if channels == RESIDENT_CHANNELS:
        return 0
    window = (TILE_ROWS + (UNIT_TAPS - 1) * dilation) | 1
    used = BARRIER_BYTES + 6 * channels * 4 + MAX_WARPGROUPS * window * channels * 2
    return min(MAX_STAGES, (GPUS[ARCHITECTURE].shared - used) // (2 * CHUNK * channels))


def unit_shared(channels: int, dilation: int, warpgroups: int) -> int:
    """Bytes of shared memory of a residual unit's program."""
    stages = unit_stages(channels, dilation)
    weights = 2 * CHUNK * channels * stages if stages else 2 * (UNIT_TAPS + 1) * channels**2
    window = (TILE_ROWS + (UNIT_TAPS - 1) * dilation) | 1
    return BARRIER_BYTES + 6 * channels * 4 + weights + warpgroups * window * channels * 2


def conv_buffers(taps: int) -> int:
    """Windows of a warpgroup in shared memory; those of many taps are large, and products with one take longer."""
    return 5 if taps <= FEW_TAPS else 2


def conv_stages(taps: int, history: int) -> int:
    """Stages of weights in shared memory."""
    used = BARRIER_BYTES + MAX_WARPGROUPS * conv_buffers(taps) * _conv_window(history)
    return min(MAX_STAGES, (GPUS[ARCHITECTURE].shared - used) // (2 * CHUNK * CONV_WIDTH))


def conv_shared(taps: int, history: int, warpgroups: int) -> int:
    """Bytes of shared memory of a convolution's program."""
    windows = warpgroups * conv_buffers(taps) * _conv_window(history)
    return BARRIER_BYTES + conv_stages(taps, history) * 2 * CHUNK * CONV_WIDTH + windows


def _conv_window(history: int) -> int:
    return ((TILE_ROWS + history) | 1) * CHUNK * 2


def upsample_shared(warpgroups: int) -> int:
    """Bytes of shared memory of an upsampling's program: values, weights, two windows per warpgroup."""
    weights = UPSAMPLE_TAPS * UPSAMPLE_INPUTS * UPSAMPLE_OUTPUTS * 2
    return BARRIER_BYTES + 3 * UPSAMPLE_OUTPUTS * 4 + weights + warpgroups * (TILE_ROWS + 1) * UPSAMPLE_INPUTS * 4


def pack_unit(conv1: PackedConv, conv2: PackedConv, snake1: Coefficients, snake2: Coefficients) -> PackedStages:
    """The first convolution tap by tap, then UNIT_HALF outputs of the second at a time; groups of 8 inputs."""
    order = _column_order(conv1.outputs, conv1.weight.device)  # also of the second convolution's inputs
    first = conv1.weight[:, order].unflatten(0, (-1, 8)).transpose(1, 2)  # [groups of 8 inputs, outputs, 8]
    second = conv2.weight[order][:, order].unflatten(0, (-1, 8)).unflatten(2, (-1, UNIT_HALF)).permute(2, 0, 3, 1)
    weights = torch.cat([first.flatten(), second.flatten()])
    return PackedStages(weights, torch.cat([conv1.bias, *snake1, conv2.bias, *snake2]).float())


def pack_convolution(layer: PackedConv, snake: Coefficients) -> PackedStages:
    """A stage for each tile of CONV_WIDTH outputs, CHUNK inputs and tap; 8 inputs of an output together."""
    weights = layer.weight.view(layer.taps, -1, CHUNK // 8, 8, layer.weight.shape[1] // CONV_WIDTH, CONV_WIDTH)
    weights = weights[..., _column_order(CONV_WIDTH, weights.device)].permute(4, 1, 0, 2, 5, 3).contiguous()
    repeated = [values.repeat(layer.rate) for values in snake]
    return PackedStages(weights, torch.cat([layer.bias, *repeated]).float())


def pack_upsampling(layer: PackedConv, snake: Coefficients) -> PackedStages:
    """For each output column of an input column, and tap; 8 inputs of an output together."""
    weights = layer.weight.view(layer.taps, layer.inputs // 8, 8, layer.rate, layer.outputs)
    weights = weights[..., _column_order(layer.outputs, weights.device)].permute(3, 0, 1, 4, 2).contiguous()
    repeated = [values.repeat(layer.rate) for values in snake]
    return PackedStages(weights, torch.cat([layer.bias, *repeated]).float())


def _column_order(width: int, device: torch.device) -> Tensor:
    """The output channel of each column of a product.

    A thread has columns 2i and 2i+1 of every 8, i = 0 to 3; of 32 columns these become 8 consecutive channels.
    """
    return torch.arange(width, device=device).view(-1, 4, 4, 2).transpose(1, 2).reshape(-1)


def residual_unit(
    x: Tensor,
    active: Tensor,
    packed: PackedStages,
    dilation: int,
    state: Tensor,
    slots: Tensor,
    return_sum: bool,
    absent: Tensor | None,
    update: UpdateHistory = update_history,
) -> tuple[Tensor, Tensor]:
    """Return the sum and its Snake, [B,C,T] each, one tensor twice without return_sum; active is the Snake of x.

    Updates state in place. absent [B]: the first columns of each stream that are zero. update: instead of
    conv.update_history.
    """
    rows, added, past = channels_last(active), channels_last(x), state.transpose(1, 2)
    batch, columns, channels = rows.shape
    assert past.shape[1:] == ((UNIT_TAPS - 1) * dilation, channels)
    assert past.is_contiguous()
    act = torch.empty_like(rows)
    raw = torch.empty_like(rows) if return_sum else None
    tiles = batch * columns // TILE_ROWS
    stages = unit_stages(channels, dilation)
    grid = _Grid(tiles, 1, stages > 0, rows.device)
    SOURCE.launch(
        f"residual_unit_{channels}", grid.programs, grid.threads, unit_shared(channels, dilation, grid.warpgroups),
        [rows, added, past, slots, packed.weights, packed.coefficients, raw, act, absent,
         tiles, columns, dilation, stages],
    )  # fmt: skip
    update(rows, past, slots)
    return (act if raw is None else raw).transpose(1, 2), act.transpose(1, 2)


def residual_unit_reference(
    x: Tensor, active: Tensor, past: Tensor, conv1: tuple[Tensor, Tensor], conv2: tuple[Tensor, Tensor],
    snake1: Coefficients, snake2: Coefficients, dilation: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Reference implementation: weights and biases of nn.Conv1d, logarithms of Snake's coefficients."""
    inner = snake_reference(causal_conv_reference(active, past, *conv1, dilation), *snake1)
    y = x + causal_conv_reference(inner, None, *conv2, 1)
    return y, snake_reference(y, *snake2)


def convolution(
    x: Tensor,
    layer: PackedConv,
    packed: PackedStages,
    state: Tensor | None,
    slots: Tensor,
    add: Tensor | None,
    return_sum: bool = True,
    absent: Tensor | None = None,
    update: UpdateHistory = update_history,
) -> tuple[Tensor, Tensor]:
    """As conv.causal_conv with snake, whose reference implementations it shares."""
    rows, past = channels_last(x), None if state is None else state.transpose(1, 2)
    batch, columns, inputs = rows.shape
    assert past is None or (past.shape[1:] == (layer.history, inputs) and past.is_contiguous())
    outputs = layer.weight.shape[1]
    act = torch.empty(batch, columns * layer.rate, layer.outputs, dtype=x.dtype, device=x.device)
    raw = torch.empty_like(act) if return_sum else None
    added = None if add is None else channels_last(add)
    tiles = batch * columns // TILE_ROWS
    grid = _Grid(tiles, outputs // CONV_WIDTH, True, rows.device)
    assert add is None or layer.taps <= FEW_TAPS
    SOURCE.launch(
        "convolution_192", grid.programs, grid.threads, conv_shared(layer.taps, layer.history, grid.warpgroups),
        [rows, past, slots, packed.weights, packed.coefficients, added, raw, act, absent,
         tiles, columns, inputs, outputs, layer.taps, layer.dilation, layer.rate,
         conv_stages(layer.taps, layer.history), conv_buffers(layer.taps)],
    )  # fmt: skip
    if past is not None:
        update(rows, past, slots)
    return (act if raw is None else raw).transpose(1, 2), act.transpose(1, 2)


def upsample(
    x: Tensor,
    layer: PackedConv,
    packed: PackedStages,
    state: Tensor,
    slots: Tensor,
    return_sum: bool = True,
    absent: Tensor | None = None,
    update: UpdateHistory = update_history,
) -> tuple[Tensor, Tensor]:
    """As conv.causal_conv with snake and without add, whose reference implementations it shares."""
    rows, past = channels_last(x), state.transpose(1, 2)
    batch, columns, inputs = rows.shape
    assert past.shape[1:] == (layer.history, inputs)
    assert past.is_contiguous()
    act = torch.empty(batch, columns * layer.rate, layer.outputs, dtype=x.dtype, device=x.device)
    raw = torch.empty_like(act) if return_sum else None
    tiles = batch * columns // TILE_ROWS
    warpgroups = _Grid(tiles, layer.rate, False, rows.device).warpgroups
    groups = min(gpu_of(rows.device).multiprocessors // layer.rate, -(-tiles // warpgroups))
    SOURCE.launch(
        f"upsampling_{UPSAMPLE_INPUTS}_{UPSAMPLE_OUTPUTS}", groups * layer.rate, warpgroups * THREADS,
        upsample_shared(warpgroups),
        [rows, past, slots, packed.weights, packed.coefficients, raw, act, absent, tiles, columns, layer.rate],
    )  # fmt: skip
    update(rows, past, slots)
    return (act if raw is None else raw).transpose(1, 2), act.transpose(1, 2)


class _Grid:
    """Programs of a launch with `across` tiles of outputs for each tile of rows.

    staged: an extra warpgroup copies weights in stages for a cluster of programs with adjacent rows.
    """

    def __init__(self, tiles: int, across: int, staged: bool, device: torch.device) -> None:
        cluster = CLUSTER if staged else 1
        clusters = gpu_of(device).multiprocessors // cluster

        def num_items(warpgroups: int) -> int:
            return -(-tiles // (warpgroups * cluster)) * across

        def cost(warpgroups: int) -> float:
            time = max(warpgroups, MIN_SHARED) if staged else warpgroups
            return -(-num_items(warpgroups) // clusters) * (time + TILE_COST)

        self.warpgroups = min(range(MAX_WARPGROUPS, 0, -1), key=cost)
        self.programs = cluster * min(clusters, num_items(self.warpgroups))
        self.threads = (self.warpgroups + staged) * THREADS
