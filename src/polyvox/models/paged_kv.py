# SPDX-License-Identifier: Apache-2.0
"""The shape of a KV cache, and where the rows of one forward pass are stored in its pages."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polyvox.kernels.kv_quantize import KVScales
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.quantized_rows import SCALE_TYPE, is_quantized


class KVShape(NamedTuple):
    """What a KV cache stores for one position: keys and values of every layer."""

    layers: int
    kv_heads: int
    head_dim: int

    def position_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of the keys and values of one position, with their scales if the type is quantised."""
        scale = SCALE_TYPE.itemsize if is_quantized(dtype) else 0
        return 2 * self.layers * self.kv_heads * (self.head_dim * dtype.itemsize + scale)


@dataclass(frozen=True, slots=True, eq=False)
class PagedKVView:
    """The rows of a pass in the pages of all layers (kernels/paged_rows.py).

    A KV cache returns this instead of an attention function where kernels write and read its rows. Earlier positions
    of a slot have been written. Rows of a slot are adjacent and at consecutive positions, in order, but for rows that
    pad a call: they share position 0 of an unused slot.
    """

    keys: Tensor  # [layers, P, PAGE, KVH, D], in memory in this order or by head
    values: Tensor  # the same
    tables: Tensor  # [S, W] int64
    slots: Tensor  # [N] int64
    positions: Tensor  # [N] int64
    decode_only: bool = False  # no two rows share a slot: one launch writes and attends
    scales: Tensor | None = None  # [2, layers, P, KVH, PAGE]: of keys and of values, if they are quantised
    is_first_pair: bool = False  # rows 2i and 2i + 1 are positions 0 and 1 of one slot, and the only ones of its page

    def layer(self, index: int) -> PagedRows:
        """The rows in one layer's pages."""
        scales = None if self.scales is None else KVScales(*self.scales[:, index])
        return PagedRows(self.keys[index], self.values[index], self.tables, self.slots, self.positions, scales)
