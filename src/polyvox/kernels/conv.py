"""Causal convolution with its past in slots, as one matrix product; transposed convolution, too.

    x [B,C,T], columns contiguous in memory ([B,T,C]) · state [S,C,H] likewise · slots [B] int64
    y[b,:,t] = bias + Σ_tap weight[tap] · x[b,:, t - (taps-1-tap)·dilation]  (+ add[b,:,t]),   H = (taps-1)·dilation

Columns before the first come from the stream's row of the state, which is read where it lies. A transposed convolution
of stride r with a kernel of 2r makes r columns from each column and the one before it: two taps with r·outputs
channels, which are in memory r columns of `outputs` channels. Linear maps are the case of one tap.

The product has M = B·T rows, K = taps · C, N = outputs. A tile's last act adds bias and residual and stores the sum,
its Snake (snake.py), or both: whoever makes a column knows which activation is read next.

Types: x, weight, add, state of one type (bfloat16, float16, float32); bias and Snake's waves float32.
Roundings: products summed in float32 (TF32 for float32 only where cuDNN may use it), bias and residual added in
float32; the sum is rounded once when stored, and Snake is taken of the unrounded sum and rounded once.
Bytes: x once from memory (its taps from cache), weight once, add, y and Snake(y) once each. Offsets are 64-bit by row.
A row's bits depend on the tile's shape, which follows from M and N, and on nothing else of the batch.

`remember` then moves the state on: the last H columns of the past and x.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox.kernels.lazy_triton import Kernel, power_of_2
from polyvox.kernels.snake import snaked
from polyvox.kernels.tiles import card, choose_tile

if TYPE_CHECKING:
    import triton.language as tl

REMEMBER_CHANNELS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Taps:
    """The weights of a convolution as the kernel reads them."""

    weight: Tensor  # [taps · inputs, rate · outputs]
    bias: Tensor  # [rate · outputs], float32
    inputs: int
    outputs: int
    rate: int  # columns that one column becomes
    taps: int
    dilation: int

    @property
    def history(self) -> int:
        return (self.taps - 1) * self.dilation


def pack_conv(weight: Tensor, bias: Tensor, dilation: int) -> Taps:
    """Of nn.Conv1d: weight [outputs, inputs, taps]."""
    outputs, inputs, taps = weight.shape
    packed = weight.permute(2, 1, 0).reshape(taps * inputs, outputs).contiguous()
    return Taps(packed, bias.float(), inputs, outputs, 1, taps, dilation)


def pack_upsample(weight: Tensor, bias: Tensor, rate: int) -> Taps:
    """Of nn.ConvTranspose1d: weight [inputs, outputs, taps · rate]; its first part belongs to the newest column."""
    inputs, outputs, kernel = weight.shape
    taps = kernel // rate
    parts = weight.unflatten(2, (taps, rate)).flip(2)  # [inputs, outputs, taps, rate], the oldest first
    packed = parts.permute(2, 0, 3, 1).reshape(taps * inputs, rate * outputs).contiguous()
    return Taps(packed, bias.float().repeat(rate), inputs, outputs, rate, taps, 1)


def causal_conv_plain(x: Tensor, past: Tensor | None, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
    """The twin: x [B,C,T] after its past [B,C,H]; fewer input channels in weight than in x are groups."""
    if past is not None:
        x = torch.cat([past, x], dim=-1)
    return F.conv1d(x, weight, bias, dilation=dilation, groups=x.shape[1] // weight.shape[1])


def causal_upsample_plain(x: Tensor, past: Tensor | None, weight: Tensor, bias: Tensor, rate: int) -> Tensor:
    """The twin of the transposed case: x [B,C,T] after its last column [B,C,1]."""
    if past is None:
        return F.conv_transpose1d(x, weight, bias, rate)
    return F.conv_transpose1d(torch.cat([past, x], dim=-1), weight, bias, rate)[..., rate:-rate]


def last_columns(past: Tensor, x: Tensor) -> Tensor:
    """Of the past [B,C,H] and x behind it, the last H columns."""
    history = past.shape[-1]
    return torch.cat([past, x[..., -history:]], dim=-1)[..., -history:].clone()


def columns_first(x: Tensor) -> Tensor:
    """[B,C,T] -> [B,T,C], contiguous; no work where memory is so already."""
    return x.transpose(1, 2).contiguous()


def causal_conv(
    x: Tensor,
    taps: Taps,
    state: Tensor | None,
    slots: Tensor,
    add: Tensor | None = None,
    snake: tuple[Tensor, Tensor] | None = None,
    keep: bool = True,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """The sum and its Snake, [B, outputs, rate · T] each; without keep or without snake the two are one tensor.

    state is moved on in place. snake: its waves (snake.py). dtype: of the sum, where it is not that of x.
    """
    rows = columns_first(x)
    batch, columns, inputs = rows.shape
    width = taps.weight.shape[1]
    assert (inputs, rows.dtype) == (taps.inputs, taps.weight.dtype)
    assert keep or snake is not None
    if state is not None:
        past = state.transpose(1, 2)
        assert (past.shape[1:], past.dtype) == ((taps.history, inputs), rows.dtype)
        assert past.is_contiguous()
    else:
        assert not taps.history
        past = rows
    shape = (batch, columns * taps.rate, taps.outputs)
    raw = torch.empty(shape, dtype=dtype or x.dtype, device=x.device) if keep else rows
    act = torch.empty(shape, dtype=x.dtype, device=x.device) if snake is not None else raw
    added = columns_first(add) if add is not None else rows
    rate, height = snake if snake is not None else (taps.bias, taps.bias)
    tile = choose_tile(batch * columns, width, inputs, rows.dtype, card(rows.device))
    tile_rows, tile_columns = -(-batch * columns // tile.rows), -(-width // tile.columns)
    ieee = rows.dtype != torch.float32 or not torch.backends.cudnn.allow_tf32
    conv_kernel[(tile_rows * tile_columns,)](
        rows, past, slots, taps.weight, taps.bias, added, rate, height, raw, act,
        batch * columns, columns, inputs, width, taps.outputs, taps.taps, taps.dilation,
        PAST=taps.history > 0, ADD=add is not None, RAW=keep, SNAKE=snake is not None,
        BLOCK_M=tile.rows, BLOCK_N=tile.block, EXTRA_N=tile.extra, BLOCK_K=tile.depth, EVEN_K=inputs % tile.depth == 0,
        EVEN_N=width % tile.columns == 0, PRECISION="ieee" if ieee else "tf32",
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if state is not None:
        remember(rows, past, slots)
    summed = raw.transpose(1, 2) if keep else act.transpose(1, 2)
    return summed, act.transpose(1, 2)


def remember(rows: Tensor, past: Tensor, slots: Tensor) -> None:
    """past [S,H,C]: of these slots, the last H columns of what they were and rows [B,T,C]."""
    batch, columns, channels = rows.shape
    history = past.shape[1]
    remember_kernel[(batch, -(-channels // REMEMBER_CHANNELS))](
        rows, past, slots, columns, channels, history, H_BLOCK=power_of_2(history), BLOCK=REMEMBER_CHANNELS,
        num_warps=4,
    )  # fmt: skip


def remember_plain(rows: Tensor, past: Tensor, slots: Tensor) -> None:
    """The twin."""
    past[slots] = last_columns(past[slots].transpose(1, 2), rows.transpose(1, 2)).transpose(1, 2)


@partial(Kernel, plain=("rows", "columns", "taps", "dilation"))
def conv_kernel(
    x, state, slots, weight, bias, add, rate, height, raw, act,
    rows, columns, inputs, outputs, channels, taps, dilation,
    PAST: tl.constexpr, ADD: tl.constexpr, RAW: tl.constexpr, SNAKE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EXTRA_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr,
    EVEN_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # Tiles of the same rows are neighbours, so that what they read of x is still in cache.
    tiles = tl.cdiv(outputs, BLOCK_N + EXTRA_N)
    program = tl.program_id(0)
    m = (program // tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (program % tiles) * (BLOCK_N + EXTRA_N) + tl.arange(0, BLOCK_N)
    # Rows past the end read the last one and store nothing, which spares the loop a mask.
    row = tl.minimum(m, rows - 1)
    column = row % columns
    here = x + row.to(tl.int64) * inputs
    if PAST:
        slot = tl.load(slots + row // columns)
        history = (taps - 1) * dilation
        before = state + (slot * history + history + column) * inputs
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if EXTRA_N:
        n_extra = (program % tiles) * (BLOCK_N + EXTRA_N) + BLOCK_N + tl.arange(0, EXTRA_N)
        sums_extra = tl.zeros([BLOCK_M, EXTRA_N], tl.float32)

    parts = tl.cdiv(inputs, BLOCK_K)
    tap, part = 0, 0  # counted, as a division in every step is not free
    for _ in range(taps * parts):
        k = part * BLOCK_K + tl.arange(0, BLOCK_K)
        shift = (taps - 1 - tap) * dilation
        if PAST:  # noqa: SIM108
            source = tl.where(column >= shift, here, before) - shift * inputs
        else:
            source = here
        lines = weight + (tap * inputs + k).to(tl.int64)[:, None] * outputs
        if EVEN_K:
            values = tl.load(source[:, None] + k[None, :])
        else:
            values = tl.load(source[:, None] + k[None, :], mask=(k < inputs)[None, :], other=0.0)
        if EVEN_K and EVEN_N:
            matrix = tl.load(lines + n[None, :])
        else:
            matrix = tl.load(lines + n[None, :], mask=(k < inputs)[:, None] & (n < outputs)[None, :], other=0.0)
        sums = tl.dot(values, matrix, sums, input_precision=PRECISION)
        if EXTRA_N:
            if EVEN_K and EVEN_N:
                matrix = tl.load(lines + n_extra[None, :])
            else:
                there = (k < inputs)[:, None] & (n_extra < outputs)[None, :]
                matrix = tl.load(lines + n_extra[None, :], mask=there, other=0.0)
            sums_extra = tl.dot(values, matrix, sums_extra, input_precision=PRECISION)
        part += 1
        tap = tl.where(part == parts, tap + 1, tap)
        part = tl.where(part == parts, 0, part)

    finish(sums, m, n, bias, add, rate, height, raw, act, rows, outputs, channels, ADD, RAW, SNAKE)
    if EXTRA_N:
        finish(sums_extra, m, n_extra, bias, add, rate, height, raw, act, rows, outputs, channels, ADD, RAW, SNAKE)


@Kernel
def finish(
    sums, m, n, bias, add, rate, height, raw, act, rows, outputs, channels,
    ADD: tl.constexpr, RAW: tl.constexpr, SNAKE: tl.constexpr,
):  # fmt: skip
    """What is done to a tile of sums before it is stored."""
    at = m.to(tl.int64)[:, None] * outputs + n[None, :]
    there = (m < rows)[:, None] & (n < outputs)[None, :]
    y = sums + tl.load(bias + n, mask=n < outputs, other=0.0)[None, :]
    if ADD:
        y += tl.load(add + at, mask=there, other=0.0).to(tl.float32)
    if RAW:
        tl.store(raw + at, narrowed(y, raw.dtype.element_ty), mask=there)
    if SNAKE:
        channel = n % channels
        y = snaked(y, tl.load(rate + channel), tl.load(height + channel))
        tl.store(act + at, narrowed(y, act.dtype.element_ty), mask=there)


@Kernel
def narrowed(y, kind: tl.constexpr):
    """What is too large for float16 becomes its largest: an infinity would stay in the stream's state."""
    if kind == tl.float16:
        y = tl.minimum(tl.maximum(y, -65504.0), 65504.0)
    return y.to(kind)


@partial(Kernel, plain=("columns", "history"))
def remember_kernel(x, state, slots, columns, channels, history, H_BLOCK: tl.constexpr, BLOCK: tl.constexpr):
    stream = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    h = tl.arange(0, H_BLOCK)
    past = state + tl.load(slots + stream) * history * channels
    source = h + columns - history  # column of x; before 0 it is one of the past
    there = (h < history)[:, None] & (c < channels)[None, :]
    new = x + (stream * columns + source)[:, None] * channels + c[None, :]
    old = past + (h + columns)[:, None] * channels + c[None, :]
    values = tl.load(tl.where((source >= 0)[:, None], new, old), mask=there, other=0.0)
    # All of it is read before any of it is overwritten.
    tl.debug_barrier()
    tl.store(past + h[:, None] * channels + c[None, :], values, mask=there)
