"""Snake, the codec's activation: x + sin²(e^alpha · x) / (e^beta + 1e-9), a channel at a time.

It has no launch of its own: the convolution that makes x applies it before it stores (conv.py), so that it costs no
bytes, only arithmetic. `snaked` is that arithmetic, in float32, from what `waves` works out once for each channel. Its
sine is a polynomial, a third of the instructions of the exact one: the argument is brought to [-π/2, π/2] in two parts
of π, and the odd polynomial of degree 9 is within 4e-9 of the sine there; the sign that the reduction loses is squared
away. Off by less than 1e-6 up to arguments of 100. Exponentials, a division and a rounding instruction of every element
would take as long as all the rest: the first two are of the channel, and a number is made whole by adding one that is
so large that nothing behind its point is left, which holds up to 4 million half turns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polyvox.kernels.lazy_triton import Kernel

SNAKE_EPS = 1e-9


def snake_plain(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """The twin: [B,C,T] with the logarithms alpha, beta [C]; rounds to the type of x once, at the end."""
    scale = 1.0 / (beta.exp() + SNAKE_EPS)
    return (x + scale[:, None] * torch.sin(x * alpha.exp()[:, None]).square()).to(x.dtype)


def waves(alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Of the logarithms [C], what the kernel reads: how fast the sine goes, and how high it is."""
    return alpha.float().exp(), 1.0 / (beta.float().exp() + SNAKE_EPS)


@Kernel
def snaked(x, rate, height):
    """x [M,N] float32; rate, height [N] float32."""
    angle = x * rate[None, :]
    turns = (angle * 0.3183098861837907 + 12582912.0) - 12582912.0  # 1.5 · 2^23
    # 3.140625 has so few bits that its product with a whole number is exact.
    rest = (angle - turns * 3.140625) - turns * 0.0009676535897932
    square = rest * rest
    sine = 2.5904884975518196e-06 * square - 0.00019800897761188593
    sine = sine * square + 0.008332899823322987
    sine = sine * square - 0.1666664763463777
    sine = (sine * square + 0.9999999765898768) * rest
    return x + sine * sine * height[None, :]
