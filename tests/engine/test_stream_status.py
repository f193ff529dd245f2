# SPDX-License-Identifier: Apache-2.0
"""The allowed transitions of a stream, and the table that enforces them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.schedulers import new_stream
from polyvox.engine.slots import SlotAllocation, SlotLedger
from polyvox.engine.stream_state import StreamState
from polyvox.engine.stream_status import ENDED, HOLDS_SLOT, TRANSITIONS, ForbiddenTransition, StreamStatus
from polyvox.engine.stream_table import StreamTable

STATUSES = st.sampled_from(list(StreamStatus))


def test_every_status_can_be_reached_and_leads_to_finished() -> None:
    assert set(TRANSITIONS) == set(StreamStatus)
    initial = {StreamStatus.AWAITING_TEXT, StreamStatus.QUEUED}
    assert initial | {status for targets in TRANSITIONS.values() for status in targets} == set(StreamStatus)
    for status in StreamStatus:
        reached = {status}
        for _ in StreamStatus:
            reached |= {target for one in reached for target in TRANSITIONS[one]}
        assert StreamStatus.FINISHED in reached
    assert not TRANSITIONS[StreamStatus.FINISHED]


def test_a_stream_with_a_slot_is_finished_only_after_its_release() -> None:
    to_finished = {status for status, targets in TRANSITIONS.items() if StreamStatus.FINISHED in targets}
    assert to_finished & HOLDS_SLOT == {StreamStatus.RELEASING}


@given(st.lists(STATUSES, max_size=30))
def test_only_allowed_transitions_succeed_and_the_table_follows_them(targets: list[StreamStatus]) -> None:
    spans: list[tuple[StreamStatus, float]] = []
    table: StreamTable[StreamState] = StreamTable(1, lambda _, status, now: spans.append((status, now)))
    stream = new_stream(status=StreamStatus.AWAITING_TEXT, allocation=SlotAllocation(0, []))
    table.add(stream)
    for i, target in enumerate(targets):
        before, now = stream.status, float(i)
        if target in TRANSITIONS[before]:
            table.transition(stream, target, now)
            assert spans[-1][0] is before
            assert spans[-1][1] == stream.status_since == now
        else:
            with pytest.raises(ForbiddenTransition, match=f"from {before} to {target}"):
                table.transition(stream, target, now)
        assert stream.ended == (stream.status in ENDED)
        assert (stream in table.active) == (stream.status in HOLDS_SLOT)
        finished = stream.status is StreamStatus.FINISHED
        assert list(table) == ([] if finished else [stream])
        assert sum(table.counts().values()) == len(table) == (not finished)


@given(sizes=st.lists(st.integers(0, 5), max_size=4), keep=st.integers(0, 5))
def test_the_ledger_hands_out_every_slot_and_page_once_and_takes_all_back(sizes: list[int], keep: int) -> None:
    ledger = SlotLedger(num_slots=4, num_pages=20)
    allocations = [ledger.allocate(size) for size in sizes]
    slots = [allocation.slot for allocation in allocations] + ledger.free_slots
    pages = [page for allocation in allocations for page in allocation.pages] + ledger.free_pages
    assert sorted(slots) == list(range(4))
    assert sorted(pages) == list(range(1, 21)), "page 0 is the scratch page"
    for allocation, size in zip(allocations, sizes, strict=True):
        before = list(allocation.pages)
        assert [*allocation.pages[:keep], *ledger.shrink(allocation, keep)] == before
        assert len(allocation.pages) == min(keep, size)
        ledger.release(allocation)
    assert sorted(ledger.free_slots) == list(range(4))
    assert sorted(ledger.free_pages) == list(range(1, 21))


def test_the_ledger_raises_instead_of_a_partial_allocation() -> None:
    ledger = SlotLedger(num_slots=1, num_pages=2)
    with pytest.raises(IndexError):
        ledger.allocate(3)
    ledger.allocate(2)
    with pytest.raises(IndexError):
        ledger.allocate(0)
    assert (ledger.free_slots, ledger.free_pages) == ([], [])
