# SPDX-License-Identifier: Apache-2.0
"""A depthwise causal convolution with its history in slots, fused with the layer norm that follows it.

    x [B,C,T], channels contiguous in memory · state [S,C,taps-1] likewise · slots [B] int64 -> [B,T,C]

weight [C,1,taps] and bias [C] of nn.Conv1d with groups = C; gain and shift [C] of nn.LayerNorm. Updates the state.
Types: bfloat16, float16, float32; one type for all tensors. Roundings: sums, mean and variance in float32, one rounding
at the end. Bytes: x once from memory (its taps from cache), weights from cache, the result once.
Grid: one program per column.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox.kernels.conv import UpdateHistory, causal_conv_reference, channels_last, update_history
from polyvox.kernels.lazy_triton import Kernel, power_of_2

if TYPE_CHECKING:
    import triton.language as tl


def depthwise_norm(
    x: Tensor, state: Tensor, slots: Tensor, weight: Tensor, bias: Tensor, gain: Tensor, shift: Tensor, eps: float,
    update: UpdateHistory = update_history,
) -> Tensor:  # fmt: skip
    """update: instead of conv.update_history."""
    rows, past = channels_last(x), state.transpose(1, 2)
    batch, columns, channels = rows.shape
    taps = weight.shape[2]
    assert past.shape[1:] == (taps - 1, channels)
    assert past.is_contiguous()
    assert weight.is_contiguous()
    out = torch.empty_like(rows)
    depthwise_kernel[(batch * columns,)](
        rows, past, slots, weight, bias, gain, shift, out, columns, channels, eps,
        TAPS=taps, BLOCK=power_of_2(channels), num_warps=4,
    )  # fmt: skip
    update(rows, past, slots)
    return out


def depthwise_norm_reference(
    x: Tensor, past: Tensor, weight: Tensor, bias: Tensor, gain: Tensor, shift: Tensor, eps: float
) -> Tensor:
    """Reference implementation, given the history [B,C,taps-1]."""
    y = causal_conv_reference(x, past, weight, bias, 1).transpose(1, 2)
    return F.layer_norm(y, y.shape[-1:], gain, shift, eps)


@partial(Kernel, do_not_specialize=("columns",))
def depthwise_kernel(
    x, state, slots, weight, bias, gain, shift, out, columns, channels, eps, TAPS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = row % columns
    c = tl.arange(0, BLOCK)
    mask = c < channels
    past = state + tl.load(slots + row // columns) * (TAPS - 1) * channels
    sums = tl.load(bias + c, mask=mask, other=0.0).to(tl.float32)
    for tap in tl.static_range(TAPS):
        age = TAPS - 1 - tap
        source = tl.where(column >= age, x + (row - age) * channels, past + (TAPS - 1 + column - age) * channels)
        value = tl.load(source + c, mask=mask, other=0.0).to(tl.float32)
        sums += value * tl.load(weight + c * TAPS + tap, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(sums, 0) / channels
    centred = tl.where(mask, sums - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / channels + eps)
    y = centred * scale * tl.load(gain + c, mask=mask, other=0.0).to(tl.float32)
    y += tl.load(shift + c, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * channels + c, y.to(out.dtype.element_ty), mask=mask)
