"""Where the rows of one pass through a stack of layers are kept."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Pages:
    """Row i is position positions[i] of slot slots[i]; position p lies in page tables[slot, p // PAGE], row p % PAGE.

    What a cache returns instead of a function that attends where its rows are to be written and read by kernels.
    A slot's positions before its rows here have been written, and no two rows are the same position of a slot.
    """

    keys: Tensor  # [layers, P, PAGE, KVH, D]
    values: Tensor  # the same
    tables: Tensor  # [S, W] int64
    slots: Tensor  # [N] int64
    positions: Tensor  # [N] int64
    alone: bool = False  # no two rows are of one slot, as in a decoding step: one launch writes and attends
