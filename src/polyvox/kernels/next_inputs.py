# SPDX-License-Identifier: Apache-2.0
"""The talker's next input: the sum of a frame's code embeddings and a text row.

    codes [B,G] int64 · first [V,SIZE]: the table of code 0 · rest [G-1,C,SIZE]: those of the others · slots [B] int64
    by slot: frame [S] int64, and of `NextText` ids [S,R] a ring buffer, end [S] int64, given [S,N,SIZE] a ring buffer
    -> into out [S,SIZE]

A slot with frame < end reads the row of id ids[slot, frame % R] in the text table, or, if that is negative, row
frame % N of its given rows; any other slot reads the row of the pad id.

Types: bfloat16, float16, float32; one type for all rows.
Roundings: embeddings are summed in float32 and rounded once; the text row is added and the sum is rounded.
Bytes: G + 1 rows read and one row written per slot.
Grid: one program per row and 512 columns.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, eq=False)
class NextText:
    """The text that slots read next."""

    table: Tensor  # [text ids, SIZE]
    pad_id: int  # read after the end of the text
    ids: Tensor  # [S,R] int64: a ring, one id per frame; negative: a given row
    end: Tensor  # [S] int64: frames that have text
    given: Tensor  # [S,N,SIZE]: a ring of rows that are not in the table


def next_inputs(
    codes: Tensor, first: Tensor, rest: Tensor, slots: Tensor, frame: Tensor, text: NextText, out: Tensor
) -> None:
    """Write the next talker inputs of these slots to out."""
    if not kernels.active(out):
        return next_inputs_reference(codes, first, rest, slots, frame, text, out)
    batch, groups = codes.shape
    size = out.shape[1]
    if not batch:
        return None
    for tensor in (codes, first, rest, slots, frame, text.table, text.ids, text.end, text.given, out):
        assert tensor.is_contiguous()
    block = min(COLUMNS, power_of_2(size))
    inputs_kernel[(batch, -(-size // block))](
        codes, first, rest, slots, frame, text.table, text.ids, text.end, text.given, out, text.ids.shape[1],
        GROUPS=groups, CODES=rest.shape[1], SIZE=size, BLOCK=block, PAD=text.pad_id, GIVEN=text.given.shape[1],
        **overlap(out), num_warps=4,
    )  # fmt: skip
    return None


def next_inputs_reference(
    codes: Tensor, first: Tensor, rest: Tensor, slots: Tensor, frame: Tensor, text: NextText, out: Tensor
) -> None:
    """Reference implementation."""
    offsets = torch.arange(len(rest), device=codes.device) * rest.shape[1]
    parts = F.embedding(codes[:, :1], first), F.embedding(codes[:, 1:] + offsets, rest.flatten(0, 1))
    now = frame[slots]
    ids = torch.where(now < text.end[slots], text.ids[slots, now % text.ids.shape[1]], text.pad_id)
    given = text.given[slots, now % text.given.shape[1]]
    read = torch.where((ids < 0)[:, None], given, F.embedding(ids.clamp(min=0), text.table))
    out[slots] = torch.cat(parts, dim=1).sum(1) + read


@Kernel
def inputs_kernel(
    codes, first, rest, slots, frame, table, ids, end, given, out, ring,
    GROUPS: tl.constexpr, CODES: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, PAD: tl.constexpr,
    GIVEN: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < SIZE
    dtype = out.dtype.element_ty
    slot = tl.load(slots + row)
    now = tl.load(frame + slot)
    text_id = tl.load(ids + slot * ring + now % ring)
    text_id = tl.where(now < tl.load(end + slot), text_id, PAD)
    known = tl.load(table + text_id * SIZE + column, mask=mask & (text_id >= 0), other=0.0)
    own = tl.load(given + (slot * GIVEN + now % GIVEN) * SIZE + column, mask=mask & (text_id < 0), other=0.0)
    read = tl.where(text_id >= 0, known, own).to(tl.float32)
    if OVERLAP:
        wait()
    total = tl.load(first + tl.load(codes + row * GROUPS) * SIZE + column, mask=mask, other=0.0).to(tl.float32)
    for group in tl.static_range(1, GROUPS):
        code = tl.load(codes + row * GROUPS + group) + (group - 1) * CODES
        total += tl.load(rest + code * SIZE + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + slot * SIZE + column, (total.to(dtype).to(tl.float32) + read).to(dtype), mask=mask)
