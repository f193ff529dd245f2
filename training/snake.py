# SPDX-License-Identifier: Apache-2.0
"""The Snake activation for training: channels last, with a backward pass and zero rows for the next convolution."""

from typing import Any

import torch
from torch import Tensor

EPS = 1e-9
VALUES = 4096  # of a program

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU computes the same with torch
    triton = None


def snake(x: Tensor, alpha: Tensor, beta: Tensor, padding: int, dtype: torch.dtype) -> Tensor:
    """x [B,T,C] to [B, padding + T, C]: zeros, then x + sin²(e^alpha · x) / e^beta."""
    return _Snake.apply(x.contiguous(), alpha, beta, padding, dtype)  # type: ignore[no-untyped-call]


class _Snake(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor, beta: Tensor, padding: int, dtype: torch.dtype) -> Tensor:
        rate, height = alpha.exp(), 1 / (beta.exp() + EPS)
        ctx.save_for_backward(x, rate, height)
        ctx.padding = padding
        batch, length, channels = x.shape
        if not x.is_cuda:
            y = x.float() + height * torch.sin(x.float() * rate).square()
            return torch.nn.functional.pad(y, (0, 0, padding, 0)).to(dtype)
        y = x.new_empty(batch, padding + length, channels, dtype=dtype)
        rows = VALUES // channels
        grid = (batch, triton.cdiv(padding + length, rows))
        _forward[grid](x, rate, height, y, length, padding, num_channels=channels, num_rows=rows)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, rate, height = ctx.saved_tensors
        slope = gradients[0]
        batch, length, channels = x.shape
        if not x.is_cuda:
            g, value = slope[:, ctx.padding :].float(), x.float()
            double = torch.sin(2 * value * rate)
            grad = g * (1 + height * rate * double)
            by_rate = (g * value * double * height * rate).sum((0, 1))
            by_height = -(g * torch.sin(value * rate).square() * height).sum((0, 1))
            return grad.to(x.dtype), by_rate, by_height, None, None
        grad = torch.empty_like(x)
        rows = VALUES // channels
        blocks = triton.cdiv(length, rows)
        sums = x.new_empty(2, batch * blocks, channels, dtype=torch.float32)
        _backward[(batch, blocks)](
            slope.contiguous(),
            x,
            rate,
            height,
            grad,
            sums[0],
            sums[1],
            length,
            ctx.padding,
            num_channels=channels,
            num_rows=rows,
        )
        totals = sums.sum(1)
        return grad, totals[0], totals[1], None, None


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _forward(  # type: ignore[no-untyped-def]
        x, rate, height, y, length, padding, num_channels: tl.constexpr, num_rows: tl.constexpr
    ):
        batch, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
        rows, columns = block * num_rows + tl.arange(0, num_rows), tl.arange(0, num_channels)
        inside = (rows < padding + length)[:, None]
        known = inside & (rows >= padding)[:, None]
        at = (batch * length + rows - padding)[:, None] * num_channels + columns[None, :]
        value = tl.load(x + at, mask=known, other=0.0).to(tl.float32)
        wave = tl.sin(value * tl.load(rate + columns)[None, :])
        made = value + tl.load(height + columns)[None, :] * wave * wave
        to = (batch * (padding + length) + rows)[:, None] * num_channels + columns[None, :]
        tl.store(y + to, made, mask=inside)

    @triton.jit  # type: ignore[untyped-decorator]
    def _backward(  # type: ignore[no-untyped-def]
        slope,
        x,
        rate,
        height,
        grad,
        by_rate,
        by_height,
        length,
        padding,
        num_channels: tl.constexpr,
        num_rows: tl.constexpr,
    ):
        batch, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
        rows, columns = block * num_rows + tl.arange(0, num_rows), tl.arange(0, num_channels)
        inside = (rows < length)[:, None]
        at = (batch * length + rows)[:, None] * num_channels + columns[None, :]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        given = (batch * (padding + length) + padding + rows)[:, None] * num_channels + columns[None, :]
        g = tl.load(slope + given, mask=inside, other=0.0).to(tl.float32)
        a, h = tl.load(rate + columns)[None, :], tl.load(height + columns)[None, :]
        sine, cosine = tl.sin(value * a), tl.cos(value * a)
        double = 2 * sine * cosine
        tl.store(grad + at, g * (1 + h * a * double), mask=inside)
        program = (batch * tl.num_programs(1) + block) * num_channels + columns
        tl.store(by_rate + program, tl.sum(g * value * double * h * a, 0))
        tl.store(by_height + program, -tl.sum(g * sine * sine * h, 0))
