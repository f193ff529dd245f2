# SPDX-License-Identifier: Apache-2.0
"""Where the rows of one forward pass are stored in the paged KV cache."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class PagedKVView:
    """Row i is position positions[i] of slot slots[i]; position p is row p % PAGE of page tables[slot, p // PAGE].

    A KV cache returns this instead of an attention function where kernels write and read its rows. Earlier positions
    of a slot have been written, and no two rows share a position of a slot.
    """

    keys: Tensor  # [layers, P, PAGE, KVH, D]
    values: Tensor  # the same
    tables: Tensor  # [S, W] int64
    slots: Tensor  # [N] int64
    positions: Tensor  # [N] int64
    decode_only: bool = False  # no two rows share a slot: one launch writes and attends
