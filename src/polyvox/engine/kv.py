"""The talker's keys and values in pages: a stream owns pages, a table says which, and pages change hands by index."""

import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox.models.protocol import Attend

PAGE = 16  # positions
SCRATCH = 0  # the page that rows which are not meant to be kept are written to; nobody owns it


class PagedKV:
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

    def give(self, slot: int, pages: list[int]) -> None:
        """These pages, in order, are the slot's; an empty list takes all of them back."""
        self.table[slot] = SCRATCH
        self.table[slot, : len(pages)] = torch.tensor(pages, dtype=torch.int64, device=self.table.device)

    def poison(self, pages: list[int]) -> None:
        """Fills free pages with NaN, so that whoever reads them is found out."""
        self.keys[:, pages], self.values[:, pages] = torch.nan, torch.nan

    def at(self, slots: Tensor, positions: Tensor, span: int, valid: Tensor | None = None) -> Attend:
        """Attention for rows of these slots [B] at positions [B,T], kept where valid [B,T] is true."""
        tables = self.table[slots][:, : -(-span // PAGE)]
        page = tables.gather(1, (positions // PAGE).clamp(max=tables.shape[1] - 1))
        if valid is not None:
            page = torch.where(valid, page, SCRATCH)
        offset = positions % PAGE
        columns = torch.arange(tables.shape[1] * PAGE, device=positions.device)
        seen = (columns <= positions[:, :, None])[:, None]
        last = positions if valid is None else torch.where(valid, positions, 0)
        unwritten = (columns > last.amax(1, keepdim=True))[:, :, None, None]

        def past(pool: Tensor, new: Tensor) -> Tensor:
            pool[page, offset] = new
            return pool[tables].flatten(1, 2).masked_fill(unwritten, 0).transpose(1, 2)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = past(self.keys[layer], k), past(self.values[layer], v)
            return F.scaled_dot_product_attention(
                q.transpose(1, 2), keys, values, attn_mask=seen, enable_gqa=True
            ).transpose(1, 2)

        return attend
