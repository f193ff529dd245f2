# SPDX-License-Identifier: Apache-2.0
"""The talker's next input: the sum of a frame's code embeddings and a text row.

    codes [B,G] int64 · first [V,SIZE]: the table of code 0 · rest [G-1,C,SIZE]: those of the others · slots [B] int64
    by slot: text [S,R,SIZE] a ring buffer, text_end [S], frame [S] int64 · pad [SIZE] -> into out [S,SIZE]

A slot with frame < text_end reads row frame % R of its text, any other slot reads the pad row.

Types: bfloat16, float16, float32; one type for all tensors.
Roundings: embeddings are summed in float32 and rounded once; the text row is added and the sum is rounded.
Bytes: G + 1 rows read and one row written per slot.
Grid: one program per row and 512 columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox import kernels
from polyvox.kernels.launch_overlap import overlap, wait
from polyvox.kernels.lazy_triton import Kernel, power_of_2

if TYPE_CHECKING:
    import triton.language as tl

COLUMNS = 512


def next_inputs(
    codes: Tensor,
    first: Tensor,
    rest: Tensor,
    slots: Tensor,
    text: Tensor,
    text_end: Tensor,
    frame: Tensor,
    pad: Tensor,
    out: Tensor,
) -> None:
    """Write the next talker inputs of these slots to out."""
    if not kernels.active(out):
        return next_inputs_reference(codes, first, rest, slots, text, text_end, frame, pad, out)
    batch, groups = codes.shape
    size = out.shape[1]
    if not batch:
        return None
    for tensor in (codes, first, rest, slots, text, text_end, frame, pad, out):
        assert tensor.is_contiguous()
    block = min(COLUMNS, power_of_2(size))
    inputs_kernel[(batch, -(-size // block))](
        codes, first, rest, slots, text, text_end, frame, pad, out, text.shape[1],
        GROUPS=groups, CODES=rest.shape[1], SIZE=size, BLOCK=block, **overlap(out), num_warps=4,
    )  # fmt: skip
    return None


def next_inputs_reference(
    codes: Tensor,
    first: Tensor,
    rest: Tensor,
    slots: Tensor,
    text: Tensor,
    text_end: Tensor,
    frame: Tensor,
    pad: Tensor,
    out: Tensor,
) -> None:
    """Reference implementation."""
    offsets = torch.arange(len(rest), device=codes.device) * rest.shape[1]
    parts = F.embedding(codes[:, :1], first), F.embedding(codes[:, 1:] + offsets, rest.flatten(0, 1))
    now = frame[slots]
    read = torch.where((now < text_end[slots])[:, None], text[slots, now % text.shape[1]], pad)
    out[slots] = torch.cat(parts, dim=1).sum(1) + read


@Kernel
def inputs_kernel(
    codes, first, rest, slots, text, text_end, frame, pad, out, ring,
    GROUPS: tl.constexpr, CODES: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < SIZE
    dtype = out.dtype.element_ty
    slot = tl.load(slots + row)
    now = tl.load(frame + slot)
    if OVERLAP:
        wait()
    total = tl.load(first + tl.load(codes + row * GROUPS) * SIZE + column, mask=mask, other=0.0).to(tl.float32)
    for group in tl.static_range(1, GROUPS):
        code = tl.load(codes + row * GROUPS + group) + (group - 1) * CODES
        total += tl.load(rest + code * SIZE + column, mask=mask, other=0.0).to(tl.float32)
    has_text = now < tl.load(text_end + slot)
    own = tl.load(text + (slot * ring + now % ring) * SIZE + column, mask=mask & has_text, other=0.0)
    filler = tl.load(pad + column, mask=mask, other=0.0)
    read = tl.where(has_text, own, filler).to(tl.float32)
    tl.store(out + slot * SIZE + column, (total.to(dtype).to(tl.float32) + read).to(dtype), mask=mask)
