# SPDX-License-Identifier: Apache-2.0
"""The end of a frame against its reference implementation, in Triton's interpreter."""

from dataclasses import fields

import pytest
import torch

from polyvox.kernels.flags import FRAME_ENDED, FRAME_REPETITION_LOOP
from polyvox.kernels.frame_end import (
    FRAMES,
    LAGS,
    FrameRecord,
    finish_frame,
    finish_frame_reference,
)

pytestmark = pytest.mark.usefixtures("interpreted")

SLOTS, GROUPS, VOCAB, END = 6, 5, 40, 37


def record(ring: int) -> FrameRecord:
    """Slots at their first frames, after the ring wrapped around, and close to a repetition loop."""
    generator = torch.Generator().manual_seed(ring)
    return FrameRecord(
        codes_ring=torch.randint(20, (SLOTS, ring, GROUPS), generator=generator),
        seen=torch.rand(SLOTS, VOCAB, generator=generator) < 0.2,
        repeats=torch.tensor([0, FRAMES - 1, 3, 7, FRAMES, 0]),
        position=torch.tensor([9, 80, 3, 500, 77, 1]),
        frame=torch.tensor([0, 50, 2, 400, 61, 3]),
    )


def copy(given: FrameRecord) -> FrameRecord:
    return FrameRecord(*(getattr(given, field.name).clone() for field in fields(given)))


def assert_same(ours: FrameRecord, theirs: FrameRecord) -> None:
    for field in fields(ours):
        assert torch.equal(getattr(ours, field.name), getattr(theirs, field.name)), field.name


@pytest.mark.parametrize("ring", [8, LAGS, 3])
@pytest.mark.parametrize("lag", range(1, LAGS + 2))
def test_it_equals_the_reference_and_writes_only_its_slots(lag: int, ring: int) -> None:
    slots = torch.tensor([4, 0, 3, 1, 2])
    ours = record(ring)
    codes = torch.randint(20, (5, GROUPS), generator=torch.Generator().manual_seed(lag))
    codes[:, 0] = ours.codes_ring[slots, (ours.frame[slots] - lag) % ring, 0]
    codes[2, 0] = END
    theirs, before = copy(ours), copy(ours)
    assert torch.equal(finish_frame(codes, slots, ours, END), finish_frame_reference(codes, slots, theirs, END))
    assert_same(ours, theirs)
    assert torch.equal(ours.frame - before.frame, torch.tensor([1, 1, 1, 1, 1, 0]))
    assert torch.equal(ours.codes_ring[5], before.codes_ring[5])


def test_the_flags_report_the_end_and_repetition_loops() -> None:
    given = record(8)
    codes = torch.zeros(3, GROUPS, dtype=torch.int64)
    codes[:, 0] = torch.tensor([END, 21, 22])
    given.codes_ring[1, (50 - 2) % 8, 0] = 21
    assert finish_frame(codes, torch.tensor([3, 1, 4]), given, END).tolist() == [FRAME_ENDED, FRAME_REPETITION_LOOP, 0]
    assert given.codes_ring[3, 400 % 8].tolist() == [0] * GROUPS
    assert given.repeats[[3, 1, 4]].tolist() == [0, FRAMES, 0]
    assert given.seen[1, 21]


def test_an_empty_batch_launches_nothing() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    assert finish_frame(nothing.view(0, GROUPS), nothing, record(8), END).shape == (0,)
