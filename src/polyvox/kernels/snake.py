# SPDX-License-Identifier: Apache-2.0
"""Snake, the codec's activation: x + sin²(e^alpha · x) / (e^beta + 1e-9), per channel.

It has no launch of its own: the convolution that produces x applies it before the store (conv.py), so it moves no
bytes. `apply_snake` computes it in float32 from the per-channel values of `snake_coefficients`. The sine is a
polynomial, a third of the instructions of the exact one: the argument is reduced to [-π/2, π/2] in two steps of π,
where the odd polynomial of degree 9 is within 4e-9 of the sine; squaring removes the sign that the reduction loses. The
error is below 1e-6 up to arguments of 100. Exponentials, a division and a rounding instruction per element would double
the cost: the first two are computed per channel, and rounding to an integer adds and subtracts 1.5 · 2^23, which is
exact up to 4 million half turns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polyvox.kernels.lazy_triton import Kernel

SNAKE_EPS = 1e-9


def snake_reference(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Reference implementation: [B,C,T] with the logarithms alpha, beta [C]; one rounding at the end."""
    rate, height = snake_columns(alpha, beta)
    return (x + height * torch.sin(x * rate).square()).to(x.dtype)


def snake_columns(alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The reference implementation's frequency and amplitude, [C,1], in the type of the logarithms."""
    return alpha.exp()[:, None], (1.0 / (beta.exp() + SNAKE_EPS))[:, None]


def snake_coefficients(alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel's per-channel frequency and amplitude, from the logarithms alpha, beta [C]."""
    return alpha.float().exp(), 1.0 / (beta.float().exp() + SNAKE_EPS)


@Kernel
def apply_snake(x, rate, height):
    """x [M,N] float32; rate, height [N] float32."""
    angle = x * rate[None, :]
    turns = (angle * 0.3183098861837907 + 12582912.0) - 12582912.0  # 1.5 · 2^23
    # 3.140625 has few significant bits, so its product with an integer is exact.
    rest = (angle - turns * 3.140625) - turns * 0.0009676535897932
    square = rest * rest
    sine = 2.5904884975518196e-06 * square - 0.00019800897761188593
    sine = sine * square + 0.008332899823322987
    sine = sine * square - 0.1666664763463777
    sine = (sine * square + 0.9999999765898768) * rest
    return x + sine * sine * height[None, :]
