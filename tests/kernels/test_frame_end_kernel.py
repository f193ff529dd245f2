"""The end of a frame against its twin, in Triton's interpreter."""

from dataclasses import fields

import pytest
import torch

from polyvox.kernels.frame_end import ENDED, FRAMES, LAGS, REPETITION_LOOP, Record, finish_frame, finish_frame_plain

pytestmark = pytest.mark.usefixtures("interpreted")

SLOTS, GROUPS, VOCAB, END = 6, 5, 40, 37


def record(ring: int) -> Record:
    """Slots at their first frames, behind the ring's first round, about to stand still."""
    generator = torch.Generator().manual_seed(ring)
    return Record(
        kept=torch.randint(20, (SLOTS, ring, GROUPS), generator=generator),
        seen=torch.rand(SLOTS, VOCAB, generator=generator) < 0.2,
        still=torch.tensor([0, FRAMES - 1, 3, 7, FRAMES, 0]),
        position=torch.tensor([9, 80, 3, 500, 77, 1]),
        frame=torch.tensor([0, 50, 2, 400, 61, 3]),
    )


def copy(given: Record) -> Record:
    return Record(*(getattr(given, field.name).clone() for field in fields(given)))


def assert_same(ours: Record, theirs: Record) -> None:
    for field in fields(ours):
        assert torch.equal(getattr(ours, field.name), getattr(theirs, field.name)), field.name


@pytest.mark.parametrize("ring", [8, LAGS, 3])
@pytest.mark.parametrize("lag", range(1, LAGS + 2))
def test_it_equals_the_twin_and_writes_only_its_slots(lag: int, ring: int) -> None:
    slots = torch.tensor([4, 0, 3, 1, 2])
    ours = record(ring)
    codes = torch.randint(20, (5, GROUPS), generator=torch.Generator().manual_seed(lag))
    codes[:, 0] = ours.kept[slots, (ours.frame[slots] - lag) % ring, 0]
    codes[2, 0] = END
    theirs, before = copy(ours), copy(ours)
    assert torch.equal(finish_frame(codes, slots, ours, END), finish_frame_plain(codes, slots, theirs, END))
    assert_same(ours, theirs)
    assert torch.equal(ours.frame - before.frame, torch.tensor([1, 1, 1, 1, 1, 0]))
    assert torch.equal(ours.kept[5], before.kept[5])


def test_the_flags_say_that_speech_is_over_and_that_it_stands_still() -> None:
    given = record(8)
    codes = torch.zeros(3, GROUPS, dtype=torch.int64)
    codes[:, 0] = torch.tensor([END, 21, 22])
    given.kept[1, (50 - 2) % 8, 0] = 21
    assert finish_frame(codes, torch.tensor([3, 1, 4]), given, END).tolist() == [ENDED, REPETITION_LOOP, 0]
    assert given.kept[3, 400 % 8].tolist() == [0] * GROUPS
    assert given.still[[3, 1, 4]].tolist() == [0, FRAMES, 0]
    assert given.seen[1, 21]


def test_no_rows_are_no_launch() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    assert finish_frame(nothing.view(0, GROUPS), nothing, record(8), END).shape == (0,)
