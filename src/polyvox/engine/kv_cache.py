"""The talker's keys and values in pages: a stream owns pages, a table says which, and pages change hands by index."""

import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox import kernels
from polyvox.engine.config import PAGE
from polyvox.kernels.paged_kv import PagedKVView
from polyvox.models.protocol import Attend, PrefillMetadata

SCRATCH = 0  # the page that rows which are not meant to be kept are written to; nobody owns it


class KVCache:
    """Keys and values [layers, pages, page, kv_heads, head_dim], and the pages of each slot.

    Page 0 belongs to nobody. What a slot has not yet written is never read, whatever it holds.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        pages: int,
        slots: int,
        max_pages: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        layers, kv_heads, head_dim = shape
        self.keys = torch.zeros(layers, pages + 1, PAGE, kv_heads, head_dim, device=device, dtype=dtype)
        self.values = torch.zeros_like(self.keys)
        self.table = torch.full((slots, max_pages), SCRATCH, dtype=torch.int64, device=device)
        self._owned = [0] * slots  # pages of each

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes + self.table.nbytes

    def set_block_table(self, slot: int, pages: list[int]) -> None:
        """These pages, in order, are the slot's; an empty list takes all of them back."""
        before, self._owned[slot] = self._owned[slot], len(pages)
        if pages:
            given = torch.tensor(pages, pin_memory=self.table.is_cuda)
            self.table[slot, : len(pages)].copy_(given, non_blocking=True)
        if before > len(pages):
            self.table[slot, len(pages) : before].fill_(SCRATCH)

    def poison(self, pages: list[int]) -> None:
        """Fills free pages with NaN, so that whoever reads them is found out."""
        self.keys[:, pages], self.values[:, pages] = torch.nan, torch.nan

    def at(
        self,
        slots: Tensor,
        positions: Tensor,
        span: int,
        pack: PrefillMetadata | None = None,
        decode_only: bool = False,
    ) -> Attend | PagedKVView:
        """Attention for rows at positions [N] of these slots [N]; pack is there where a slot may have several."""
        if kernels.active(self.keys):
            return PagedKVView(self.keys, self.values, self.table, slots, positions, decode_only=decode_only)
        tables = self.table[:, : -(-span // PAGE)][slots if pack is None else pack.slots]
        owned = tables if pack is None else tables[pack.owner]
        page, offset = owned.gather(1, positions[:, None] // PAGE)[:, 0], positions % PAGE
        columns = torch.arange(tables.shape[1] * PAGE, device=positions.device)
        asked = _spread(positions, pack)
        seen = (columns <= asked[:, :, None])[:, None]
        unwritten = (columns > asked.amax(1, keepdim=True))[:, :, None, None]

        def past(pool: Tensor, new: Tensor) -> Tensor:
            pool[page, offset] = new.flatten(0, 1)
            return pool[tables].flatten(1, 2).masked_fill(unwritten, 0).transpose(1, 2)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = past(self.keys[layer], k), past(self.values[layer], v)
            queries = _spread(q.flatten(0, 1), pack).transpose(1, 2)
            heard = F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen, enable_gqa=True)
            heard = heard.transpose(1, 2)
            return (heard if pack is None else heard[pack.owner, pack.column]).view_as(q)

        return attend


def _spread(rows: Tensor, pack: PrefillMetadata | None) -> Tensor:
    """Rows [N, ...] by their slots, [B, T, ...]; places that no row has are zero."""
    if pack is None:
        return rows[:, None]
    spread = rows.new_zeros(len(pack.slots), pack.width, *rows.shape[1:])
    spread[pack.owner, pack.column] = rows
    return spread
