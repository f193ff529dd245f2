# SPDX-License-Identifier: Apache-2.0
"""The last step of a vocoder whose output is 16-bit PCM: rows of samples, and a flag for rows that are not finite.

    samples [B,N] -> out [B,N+1] int16: N samples, then the flag

A sample is clipped to [-1, 1], multiplied by 32,767 and rounded to the nearest integer, a tie to the even one, which
is what `audio.pcm.to_pcm` computes on the host. The flag is 1 if a sample of the row is NaN or infinite, otherwise 0;
such a sample becomes 0.

Types: bfloat16, float16, float32 -> int16.
Roundings: the product in float32, then to an integer.
Bytes: the input once, half as many as a float32 input out.
Grid: one program per row; a row's flag depends on all of its samples.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.lazy_triton import Kernel

if TYPE_CHECKING:
    import triton.language as tl

SCALE = 32767
COLUMNS = 2048  # about one frame
# A float32 of this size has no fraction: adding and subtracting it rounds to the nearest even integer.
ROUNDING = 1.5 * 2**23


def quantize(samples: Tensor, out: Tensor | None = None) -> Tensor:
    """The samples as 16-bit PCM with a flag at the end of each row; written to `out` if it is given."""
    rows, size = samples.shape
    if out is None:
        out = torch.empty(rows, size + 1, dtype=torch.int16, device=samples.device)
    if not kernels.active(samples):
        return quantize_reference(samples, out)
    samples = samples.contiguous()
    assert out.is_contiguous()
    if out.numel():
        quantize_kernel[(rows,)](
            samples, out, size, COUNT=-(-size // COLUMNS), BLOCK=COLUMNS, FULL_SCALE=SCALE, MAGIC=ROUNDING, num_warps=8
        )
    return out


def quantize_reference(samples: Tensor, out: Tensor) -> Tensor:
    """Reference implementation."""
    samples = samples.float()
    finite = samples.isfinite()
    out[:, :-1] = (torch.where(finite, samples, 0.0).clamp(-1.0, 1.0) * SCALE).round()
    out[:, -1] = ~finite.all(1)
    return out


@partial(Kernel, fuse=False)
def quantize_kernel(
    samples, out, size,
    COUNT: tl.constexpr, BLOCK: tl.constexpr, FULL_SCALE: tl.constexpr, MAGIC: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    flags = tl.zeros((BLOCK,), tl.int32)
    for block in range(COUNT):
        column = block * BLOCK + tl.arange(0, BLOCK)
        mask = column < size
        value = tl.load(samples + row * size + column, mask=mask, other=0.0).to(tl.float32)
        finite = tl.abs(value) <= 3.4028234663852886e38  # false for NaN
        flags = flags | tl.where(finite, 0, 1)
        clipped = tl.minimum(tl.maximum(tl.where(finite, value, 0.0), -1.0), 1.0)
        rounded = (clipped * FULL_SCALE + MAGIC) - MAGIC
        tl.store(out + row * (size + 1) + column, rounded.to(tl.int16), mask=mask)
    tl.store(out + row * (size + 1) + size, tl.max(flags, 0).to(tl.int16))
