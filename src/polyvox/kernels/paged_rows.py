# SPDX-License-Identifier: Apache-2.0
"""One layer's pages of the KV cache and the rows of a pass over it: the input that all attention kernels share."""

from dataclasses import dataclass

from torch import Tensor

from polyvox.kernels.kv_quantize import KVScales


@dataclass(frozen=True, slots=True, eq=False)
class PagedRows:
    """Row i is position positions[i] of slot slots[i]; position p is row p % PAGE of page tables[slot, p // PAGE]."""

    keys: Tensor  # [P,PAGE,KVH,D], in memory in this order or by head
    values: Tensor  # the same
    tables: Tensor  # [S,W] int64
    slots: Tensor  # [N] int64
    positions: Tensor  # [N] int64
    scales: KVScales | None = None  # of keys and values, if they are quantised

    @property
    def page(self) -> int:
        return self.keys.shape[1]

    @property
    def kv_heads(self) -> int:
        return self.keys.shape[2]

    @property
    def dim(self) -> int:
        return self.keys.shape[3]

    @property
    def is_by_head(self) -> bool:
        """Whether pages are [KVH,PAGE,D] in memory, so that a head's positions are next to each other."""
        return self.keys.transpose(1, 2).is_contiguous()

    @property
    def max_positions(self) -> int:
        """Positions that a slot's pages hold."""
        return self.tables.shape[1] * self.page

    @property
    def is_single_page(self) -> bool:
        """Whether a slot has one page, as in the code predictor."""
        return self.tables.shape[1] == 1

    def num_heads(self, qkv: Tensor) -> int:
        """The query heads of rows [N, (H + 2·KVH)·D]."""
        return qkv.shape[1] // self.dim - 2 * self.kv_heads

    def launch_tensors(self, unused: Tensor) -> tuple[Tensor, ...]:
        """Keys, values, their scales, tables, slots and positions; `unused` in place of scales that do not exist."""
        assert self.keys.stride() == self.values.stride(), (self.keys.stride(), self.values.stride())
        assert self.keys.stride(3) == self.tables.stride(1) == self.slots.stride(0) == self.positions.stride(0) == 1
        assert self.scales is None or all(pool.is_contiguous() for pool in self.scales)
        scales = self.scales or (unused, unused)
        return self.keys, self.values, *scales, self.tables, self.slots, self.positions

    def launch_strides(self, pack: int = 1) -> tuple[int, int, int, int]:
        """Of pages, positions and heads, in words of `pack` elements, and of the rows of the tables."""
        page, position, head, _ = self.keys.stride()
        return page // pack, position // pack, head // pack, self.tables.stride(0)
