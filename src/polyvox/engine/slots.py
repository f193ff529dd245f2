# SPDX-License-Identifier: Apache-2.0
"""The ledger of slots and KV pages: the only record of which of them are free."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush


@dataclass(slots=True, eq=False)
class SlotAllocation:
    """A slot and the KV pages that belong to it while a stream holds them."""

    slot: int
    pages: list[int]


@dataclass(slots=True)
class SlotLedger:
    """Free slots and free KV pages by id. The lowest slot is handed out first, pages last in, first out.

    Pages are numbered from 1: page 0 is the scratch page of the KV cache, which no stream owns. The ledger has no
    device state: the runner writes block tables for the allocations it is handed.
    """

    num_slots: int
    num_pages: int
    free_slots: list[int] = field(init=False)  # a heap: low slots keep the arrays of a step short
    free_pages: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.free_slots = list(range(self.num_slots))
        self.free_pages = list(range(1, self.num_pages + 1))

    def allocate(self, num_pages: int) -> SlotAllocation:
        """Takes a slot and the pages that its stream gets on admission; raises IndexError if too few are free."""
        if not self.free_slots or num_pages > len(self.free_pages):
            raise IndexError(f"{len(self.free_slots)} slots and {len(self.free_pages)} pages are free")
        pages = [self.free_pages.pop() for _ in range(num_pages)]
        return SlotAllocation(heappop(self.free_slots), pages)

    def grow(self, allocation: SlotAllocation, num_pages: int) -> None:
        """Adds pages to an allocation; raises IndexError if too few are free."""
        if num_pages > len(self.free_pages):
            raise IndexError(f"{len(self.free_pages)} pages are free")
        allocation.pages += [self.free_pages.pop() for _ in range(num_pages)]

    def shrink(self, allocation: SlotAllocation, num_pages: int) -> Sequence[int]:
        """Keeps the first `num_pages` pages of an allocation, frees the others and returns them."""
        allocation.pages, freed = allocation.pages[:num_pages], allocation.pages[num_pages:]
        self.free_pages += freed
        return freed

    def release(self, allocation: SlotAllocation) -> None:
        """Takes a slot and its pages back; no step in flight may use them."""
        heappush(self.free_slots, allocation.slot)
        self.free_pages += allocation.pages
        allocation.pages = []
