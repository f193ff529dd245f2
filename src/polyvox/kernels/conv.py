# SPDX-License-Identifier: Apache-2.0
"""Causal convolution with its history in slots, as one matrix product; transposed convolution too.

    x [B,C,T], channels contiguous in memory ([B,T,C]) · state [S,C,H] likewise · slots [B] int64
    y[b,:,t] = bias + Σ_tap weight[tap] · x[b,:, t - (taps-1-tap)·dilation]  (+ add[b,:,t]),   H = (taps-1)·dilation

Columns before the first are read from the stream's row of the state. A transposed convolution of stride r with a kernel
of 2r computes r columns from each column and the one before it: two taps with r·outputs channels, which in memory are
r columns of `outputs` channels. A linear layer is the case of one tap.

The product has M = B·T rows, K = taps · C, N = outputs. The epilogue adds bias and residual and stores the sum, its
Snake (snake.py), or both, so that the next layer reads its activation directly.

Types: x, weight, add, state of one type (bfloat16, float16, float32); bias and Snake's coefficients float32.
Roundings: products summed in float32 (TF32 for float32 only where cuDNN may use it), bias and residual added in
float32; the sum is rounded once when stored, and Snake is computed from the unrounded sum and rounded once.
Bytes: x once from memory (its taps from cache), weight once, add, y and Snake(y) once each. Row offsets are 64-bit.
A row's bits depend on the tile's shape, which follows from M and N, and on nothing else of the batch.

`update_history` then writes the last H columns of the state and x to the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox.kernels.gpu import gpu_of
from polyvox.kernels.lazy_triton import Kernel, power_of_2
from polyvox.kernels.snake import apply_snake
from polyvox.kernels.tiles import choose_tile

if TYPE_CHECKING:
    import triton.language as tl

HISTORY_CHANNELS = 64
UpdateHistory = Callable[[Tensor, Tensor, Tensor], None]  # as update_history


@dataclass(frozen=True, slots=True, eq=False)
class PackedConv:
    """The weights of a convolution in the kernel's layout."""

    weight: Tensor  # [taps · inputs, rate · outputs]
    bias: Tensor  # [rate · outputs], float32
    inputs: int
    outputs: int
    rate: int  # output columns per input column
    taps: int
    dilation: int

    @property
    def history(self) -> int:
        return (self.taps - 1) * self.dilation


def pack_conv(weight: Tensor, bias: Tensor, dilation: int) -> PackedConv:
    """Pack the weights of nn.Conv1d: weight [outputs, inputs, taps]."""
    outputs, inputs, taps = weight.shape
    packed = weight.permute(2, 1, 0).reshape(taps * inputs, outputs).contiguous()
    return PackedConv(packed, bias.float(), inputs, outputs, 1, taps, dilation)


def pack_upsample(weight: Tensor, bias: Tensor, rate: int) -> PackedConv:
    """Pack nn.ConvTranspose1d: weight [inputs, outputs, taps · rate]; the first part applies to the newest column."""
    inputs, outputs, kernel = weight.shape
    taps = kernel // rate
    parts = weight.unflatten(2, (taps, rate)).flip(2)  # [inputs, outputs, taps, rate], the oldest first
    packed = parts.permute(2, 0, 3, 1).reshape(taps * inputs, rate * outputs).contiguous()
    return PackedConv(packed, bias.float().repeat(rate), inputs, outputs, rate, taps, 1)


def causal_conv_reference(x: Tensor, past: Tensor | None, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
    """Reference implementation: x [B,C,T] after its history [B,C,H]; grouped if weight has fewer inputs than x."""
    if past is not None:
        x = torch.cat([past, x], dim=-1)
    return F.conv1d(x, weight, bias, dilation=dilation, groups=x.shape[1] // weight.shape[1])


def causal_upsample_reference(x: Tensor, past: Tensor | None, weight: Tensor, bias: Tensor, rate: int) -> Tensor:
    """Reference implementation of the transposed case: x [B,C,T] after the previous column [B,C,1]."""
    if past is None:
        return F.conv_transpose1d(x, weight, bias, rate)
    return F.conv_transpose1d(torch.cat([past, x], dim=-1), weight, bias, rate)[..., rate:-rate]


def causal_product(x: Tensor, past: Tensor | None, taps: PackedConv) -> Tensor:
    """The same as both reference implementations up to rounding, as one matrix product over windows of columns.

    On a CPU it is faster for few columns. The result is contiguous: the layers after it are slower otherwise.
    """
    rows = channels_last(x if past is None else torch.cat([past, x], dim=-1))
    windows = rows.unfold(1, taps.history + 1, 1)[..., :: taps.dilation].transpose(2, 3)  # [B,T,taps,inputs]
    product = torch.addmm(taps.bias, windows.reshape(-1, len(taps.weight)), taps.weight)
    return product.view(len(x), -1, taps.outputs).transpose(1, 2).contiguous()


def last_columns(past: Tensor, x: Tensor) -> Tensor:
    """The last H columns of the history [B,C,H] followed by x; a view of x if it has as many."""
    history, new = past.shape[-1], x.shape[-1]
    return x[..., -history:] if new >= history else torch.cat([past[..., new:], x], dim=-1)


def channels_last(x: Tensor) -> Tensor:
    """[B,C,T] -> [B,T,C], contiguous; free if the memory already has that layout."""
    return x.transpose(1, 2).contiguous()


def update_history(rows: Tensor, past: Tensor, slots: Tensor) -> None:
    """Shift rows [B,T,C] into the history past [S,H,C] of these slots."""
    batch, columns, channels = rows.shape
    history = past.shape[1]
    update_history_kernel[(batch, -(-channels // HISTORY_CHANNELS))](
        rows, past, slots, columns, channels, history, H_BLOCK=power_of_2(history), BLOCK=HISTORY_CHANNELS,
        num_warps=4,
    )  # fmt: skip


def causal_conv(
    x: Tensor,
    taps: PackedConv,
    state: Tensor | None,
    slots: Tensor,
    add: Tensor | None = None,
    snake: tuple[Tensor, Tensor] | None = None,
    return_sum: bool = True,
    dtype: torch.dtype | None = None,
    absent: Tensor | None = None,
    update: UpdateHistory = update_history,
) -> tuple[Tensor, Tensor]:
    """Return the sum and its Snake, [B, outputs, rate · T] each; one tensor twice without return_sum or without snake.

    Updates state in place. snake: its coefficients (snake.py). dtype: of the sum, by default that of x. absent [B]: the
    first output columns of each stream, a multiple of the rate, that are zero. update: instead of update_history.
    """
    rows = channels_last(x)
    batch, columns, inputs = rows.shape
    width = taps.weight.shape[1]
    assert (inputs, rows.dtype) == (taps.inputs, taps.weight.dtype)
    assert return_sum or snake is not None
    if state is not None:
        past = state.transpose(1, 2)
        assert (past.shape[1:], past.dtype) == ((taps.history, inputs), rows.dtype)
        assert past.is_contiguous()
    else:
        assert not taps.history
        past = rows
    shape = (batch, columns * taps.rate, taps.outputs)
    raw = torch.empty(shape, dtype=dtype or x.dtype, device=x.device) if return_sum else rows
    act = torch.empty(shape, dtype=x.dtype, device=x.device) if snake is not None else raw
    added = channels_last(add) if add is not None else rows
    rate, height = snake if snake is not None else (taps.bias, taps.bias)
    tile = choose_tile(batch * columns, width, inputs, rows.dtype, gpu_of(rows.device))
    tile_rows, tile_columns = -(-batch * columns // tile.rows), -(-width // tile.columns)
    ieee = rows.dtype != torch.float32 or not torch.backends.cudnn.allow_tf32
    conv_kernel[(tile_rows * tile_columns,)](
        rows, past, slots, taps.weight, taps.bias, added, rate, height, raw, act,
        slots if absent is None else absent,
        batch * columns, columns, inputs, width, taps.outputs, taps.taps, taps.dilation, taps.rate,
        PAST=taps.history > 0, ADD=add is not None, RAW=return_sum, SNAKE=snake is not None, ABSENT=absent is not None,
        BLOCK_M=tile.rows, BLOCK_N=tile.block, EXTRA_N=tile.extra, BLOCK_K=tile.depth, EVEN_K=inputs % tile.depth == 0,
        EVEN_N=width % tile.columns == 0, PRECISION="ieee" if ieee else "tf32",
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if state is not None:
        update(rows, past, slots)
    summed = raw.transpose(1, 2) if return_sum else act.transpose(1, 2)
    return summed, act.transpose(1, 2)


def update_history_reference(rows: Tensor, past: Tensor, slots: Tensor) -> None:
    """Reference implementation."""
    past[slots] = last_columns(past[slots].transpose(1, 2), rows.transpose(1, 2)).transpose(1, 2)


@partial(Kernel, do_not_specialize=("rows", "columns", "taps", "dilation"))
def conv_kernel(
    x, state, slots, weight, bias, add, rate, height, raw, act, absent,
    rows, columns, inputs, outputs, channels, taps, dilation, upsampling,
    PAST: tl.constexpr, ADD: tl.constexpr, RAW: tl.constexpr, SNAKE: tl.constexpr, ABSENT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EXTRA_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr,
    EVEN_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # Tiles of the same rows are adjacent, so that x stays in cache.
    tiles = tl.cdiv(outputs, BLOCK_N + EXTRA_N)
    program = tl.program_id(0)
    m = (program // tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (program % tiles) * (BLOCK_N + EXTRA_N) + tl.arange(0, BLOCK_N)
    # Rows past the end load the last row and store nothing, so the loop needs no mask.
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
    tap, part = 0, 0  # counters instead of a division per iteration
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
                mask = (k < inputs)[:, None] & (n_extra < outputs)[None, :]
                matrix = tl.load(lines + n_extra[None, :], mask=mask, other=0.0)
            sums_extra = tl.dot(values, matrix, sums_extra, input_precision=PRECISION)
        part += 1
        tap = tl.where(part == parts, tap + 1, tap)
        part = tl.where(part == parts, 0, part)

    exists = column >= 0
    if ABSENT:
        exists = column * upsampling >= tl.load(absent + row // columns)
    store_tile(sums, m, n, bias, add, rate, height, raw, act, exists, rows, outputs, channels, ADD, RAW, SNAKE, ABSENT)
    if EXTRA_N:
        store_tile(
            sums_extra, m, n_extra, bias, add, rate, height, raw, act, exists, rows, outputs, channels,
            ADD, RAW, SNAKE, ABSENT,
        )  # fmt: skip


@Kernel
def store_tile(
    sums, m, n, bias, add, rate, height, raw, act, exists, rows, outputs, channels,
    ADD: tl.constexpr, RAW: tl.constexpr, SNAKE: tl.constexpr, ABSENT: tl.constexpr,
):  # fmt: skip
    """The epilogue of a tile: bias, residual, Snake, stores."""
    at = m.to(tl.int64)[:, None] * outputs + n[None, :]
    mask = (m < rows)[:, None] & (n < outputs)[None, :]
    y = sums + tl.load(bias + n, mask=n < outputs, other=0.0)[None, :]
    if ADD:
        y += tl.load(add + at, mask=mask, other=0.0).to(tl.float32)
    if ABSENT:
        y = tl.where(exists[:, None], y, 0.0)
    if RAW:
        tl.store(raw + at, saturating_cast(y, raw.dtype.element_ty), mask=mask)
    if SNAKE:
        channel = n % channels
        y = apply_snake(y, tl.load(rate + channel), tl.load(height + channel))
        tl.store(act + at, saturating_cast(y, act.dtype.element_ty), mask=mask)


@Kernel
def saturating_cast(y, dtype: tl.constexpr):
    """Saturate to the range of float16: an infinity would persist in the stream's state."""
    if dtype == tl.float16:
        y = tl.minimum(tl.maximum(y, -65504.0), 65504.0)
    return y.to(dtype)


@partial(Kernel, do_not_specialize=("columns", "history"))
def update_history_kernel(x, state, slots, columns, channels, history, H_BLOCK: tl.constexpr, BLOCK: tl.constexpr):
    stream = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    h = tl.arange(0, H_BLOCK)
    past = state + tl.load(slots + stream) * history * channels
    source = h + columns - history  # column of x; negative indices are in the history
    mask = (h < history)[:, None] & (c < channels)[None, :]
    new = x + (stream * columns + source)[:, None] * channels + c[None, :]
    old = past + (h + columns)[:, None] * channels + c[None, :]
    values = tl.load(tl.where((source >= 0)[:, None], new, old), mask=mask, other=0.0)
    # All loads precede the stores.
    tl.debug_barrier()
    tl.store(past + h[:, None] * channels + c[None, :], values, mask=mask)
