"""What a frame leaves in its slots beside the talker's next input: codes, counters, whether speech stands still.

    codes [B,G] int64 · slots [B] int64 · by slot: kept [S,R,G] a ring of frames, position, frame, still [S] int64,
    seen [S,V] bool -> flags [B] int64; all but codes and slots are changed in place

A slot whose code 0 is `end` keeps zeros for its frame and gets the flag ENDED. Speech stands still in a frame whose
code 0 is that of one of the last LAGS frames of the slot; after FRAMES such frames
in a row the flag REPETITION_LOOP is set.

Types: whole numbers.
Roundings: none.
Bytes: codes twice, a few numbers a row.
One program, of one warp, a row. Instead of some 25 launches of a few numbers each: predicted 2 µs instead of 50.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.launch_overlap import overlap, wait
from polyvox.kernels.lazy_triton import Kernel, power_of_2

if TYPE_CHECKING:
    import triton.language as tl

LAGS, FRAMES = 4, 48  # about 4 s
ENDED, REPETITION_LOOP = 1, 2  # flags: no frame was made, speech is over; speech stands still


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """What slots hold of the frames so far."""

    kept: Tensor  # [S, ring, groups]
    seen: Tensor  # [S, vocab]
    still: Tensor  # [S]
    position: Tensor  # [S]
    frame: Tensor  # [S]


def finish_frame(codes: Tensor, slots: Tensor, record: Record, end: int) -> Tensor:
    """Writes these slots' frame to the record, and moves them on to the next; the flags of each."""
    if not kernels.active(codes):
        return finish_frame_plain(codes, slots, record, end)
    rows, groups = codes.shape
    flags = torch.empty_like(slots)
    if not rows:
        return flags
    for tensor in (codes, slots, record.kept, record.seen, record.still, record.position, record.frame):
        assert tensor.is_contiguous()
    finish_kernel[(rows,)](
        codes, slots, record.kept, record.seen, record.still, record.position, record.frame, flags,
        record.kept.shape[1], record.seen.shape[1], end,
        GROUPS=groups, GROUP_BLOCK=power_of_2(groups), MAX_LAGS=LAGS, MAX_STILL=FRAMES,
        ENDED_FLAG=ENDED, STILL_FLAG=REPETITION_LOOP, **overlap(codes), num_warps=1,
    )  # fmt: skip
    return flags


def finish_frame_plain(codes: Tensor, slots: Tensor, record: Record, end: int) -> Tensor:
    """The twin."""
    first, frame, ring = codes[:, 0], record.frame[slots], record.kept.shape[1]
    ended = first == end
    lags = torch.arange(1, LAGS + 1, device=codes.device)
    recent = record.kept[slots[:, None], (frame[:, None] - lags) % ring, 0]
    again = ((recent == first[:, None]) & (frame[:, None] >= lags)).any(1)
    still = torch.where(again, record.still[slots] + 1, 0)
    # What is no frame is never decoded; were it, it must still be a code.
    record.kept[slots, frame % ring] = codes.masked_fill(ended[:, None], 0)
    record.seen[slots, first] = first >= 0  # a constant would come from the host
    record.still[slots] = still
    record.position[slots] += 1
    record.frame[slots] = frame + 1
    return ended * ENDED + (still >= FRAMES) * REPETITION_LOOP


@Kernel
def finish_kernel(
    codes, slots, kept, seen, still, position, frame, flags, ring, vocab, end,
    GROUPS: tl.constexpr, GROUP_BLOCK: tl.constexpr, MAX_LAGS: tl.constexpr, MAX_STILL: tl.constexpr,
    ENDED_FLAG: tl.constexpr, STILL_FLAG: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if OVERLAP:
        wait()
    group = tl.arange(0, GROUP_BLOCK)
    there = group < GROUPS
    all_codes = tl.load(codes + row * GROUPS + group, mask=there, other=0)
    first = tl.load(codes + row * GROUPS)
    now, place = tl.load(frame + slot), tl.load(position + slot)
    again = first < 0
    for lag in tl.static_range(1, MAX_LAGS + 1):
        past = now >= lag
        recent = tl.load(kept + (slot * ring + (now - lag) % ring) * GROUPS, mask=past, other=-1)
        again = again | (recent == first)
    stood = tl.where(again, tl.load(still + slot) + 1, 0)
    ended = first == end
    tl.debug_barrier()  # nothing is written before all of it was read
    tl.store(kept + (slot * ring + now % ring) * GROUPS + group, tl.where(ended, 0, all_codes), mask=there)
    tl.store(seen + slot * vocab + first, first >= 0)
    tl.store(still + slot, stood)
    tl.store(position + slot, place + 1)
    tl.store(frame + slot, now + 1)
    tl.store(flags + row, tl.where(ended, ENDED_FLAG, 0).to(tl.int64) + tl.where(stood >= MAX_STILL, STILL_FLAG, 0))
