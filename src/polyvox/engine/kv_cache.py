# SPDX-License-Identifier: Apache-2.0
"""The paged KV cache of the generator: slots have block tables, and pages are reused by index."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox import kernels
from polyvox.engine.config import PAGE
from polyvox.kernels.quantized_rows import SCALE_TYPE, dequantize_rows, is_quantized, quantize_rows
from polyvox.models.paged_kv import KVShape, PagedKVView
from polyvox.models.protocol import Attend, PrefillMetadata

SCRATCH_PAGE = 0  # rows of padded calls are written here; no slot owns it


def is_by_head(device: torch.device) -> bool:
    """Whether pages are stored by head."""
    return device.type != "cpu"


class KVCache:
    """Keys and values [layers, pages, page, kv_heads, head_dim], and the block table of each slot.

    On a GPU a page is stored by head, because an attention kernel reads one head of it at a time: a row of 128 bytes,
    which a quantised head has, is too little for the memory's bandwidth. On a CPU it is stored by position, so that
    PyTorch reads consecutive pages without a copy. A quantised type has scales, too (kv_quantize.py).
    Rows that a slot has not written are never read, whatever they contain.
    """

    def __init__(
        self,
        shape: KVShape,
        num_pages: int,
        num_slots: int,
        max_pages: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """max_pages: of one slot. dtype: of keys and values: the generator's, or a quantised one."""
        layers, kv_heads, head_dim = shape
        by_head = is_by_head(device)
        page = (kv_heads, PAGE) if by_head else (PAGE, kv_heads)
        pool = torch.zeros(2, layers, num_pages + 1, *page, head_dim, device=device, dtype=dtype)
        self._pool = pool.transpose(3, 4) if by_head else pool
        self.keys, self.values = self._pool
        self.scales: Tensor | None = None
        if is_quantized(dtype):
            # [2, layers, pages, kv_heads, page]
            self.scales = self._pool.new_zeros(2, layers, num_pages + 1, kv_heads, PAGE, dtype=SCALE_TYPE)
        self.table = torch.full((num_slots, max_pages), SCRATCH_PAGE, dtype=torch.int64, device=device)
        # The same on the host, as the engine set it last, after a column with the slot.
        self._rows = np.full((num_slots, 1 + max_pages), SCRATCH_PAGE, np.int64)
        self._rows[:, 0] = np.arange(num_slots)
        self._num_pages = [0] * num_slots  # of each slot
        self._changed: dict[int, int] = {}  # slots that `upload` sends, and how many of their pages differ at most

    @property
    def nbytes(self) -> int:
        scales = 0 if self.scales is None else self.scales.nbytes
        return self.keys.nbytes + self.values.nbytes + scales + self.table.nbytes

    def set_block_table(self, slot: int, pages: list[int]) -> None:
        """Sets the pages of a slot in order, from the next `upload` on; an empty list removes all of them."""
        before, count = self._num_pages[slot], len(pages)
        row = self._rows[slot, 1:]
        row[:count], row[count:before] = pages, SCRATCH_PAGE
        self._num_pages[slot] = count
        self._changed[slot] = max(self._changed.get(slot, 0), before, count)

    def upload(self) -> None:
        """Sends the block tables that changed to the device, in one copy; called before each prefill and frame."""
        if self._changed:
            width = max(self._changed.values())  # few columns: PyTorch copies large arrays with many threads
            rows = torch.from_numpy(self._rows[list(self._changed), : 1 + width])
            rows = (rows.pin_memory() if self.table.is_cuda else rows).to(self.table.device, non_blocking=True)
            self.table[:, :width].index_copy_(0, rows[:, 0], rows[:, 1:])
            self._changed.clear()

    def poison(self, pages: list[int]) -> None:
        """Fills free pages with NaN to expose stale reads."""
        if self.scales is not None:
            self.scales[:, :, pages] = torch.nan
        else:
            self.keys[:, pages], self.values[:, pages] = torch.nan, torch.nan

    def view(
        self,
        slots: Tensor,
        positions: Tensor,
        max_context: int,
        metadata: PrefillMetadata | None = None,
        decode_only: bool = False,
    ) -> Attend:
        """Attention for rows at positions [N] of slots [N]; metadata is required where a slot has several."""
        if kernels.active(self.keys):
            return PagedKVView(self.keys, self.values, self.table, slots, positions, decode_only, self.scales)
        if decode_only and len(slots) == 1 and self.scales is None and self.table.device.type == "cpu":
            return self._view_row(int(slots), int(positions))
        tables = self.table[:, : -(-max_context // PAGE)][slots if metadata is None else metadata.slots]
        row_tables = tables if metadata is None else tables[metadata.owner]
        page, offset = row_tables.gather(1, positions[:, None] // PAGE)[:, 0], positions % PAGE
        columns = torch.arange(tables.shape[1] * PAGE, device=positions.device)
        queried = _by_slot(positions, metadata)
        visible = (columns <= queried[:, :, None])[:, None]
        unwritten = (columns > queried.amax(1, keepdim=True))[:, :, None, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            pool, rows = self._pool[:, layer], torch.stack([k, v]).flatten(1, 2)
            if self.scales is None:
                pool[:, page, offset] = rows.to(pool.dtype)
                past = pool[:, tables].to(k.dtype)
            else:
                scales = self.scales[:, layer].transpose(2, 3)
                pool[:, page, offset], scales[:, page, offset] = quantize_rows(rows, pool.dtype)
                past = dequantize_rows(pool[:, tables], scales[:, tables], k.dtype)
            keys, values = past.flatten(2, 3).masked_fill_(unwritten, 0).transpose(2, 3)
            queries = _by_slot(q.flatten(0, 1), metadata).transpose(1, 2)
            attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=visible, enable_gqa=True)
            attended = attended.transpose(1, 2)
            return (attended if metadata is None else attended[metadata.owner, metadata.column]).view_as(q)

        return attend

    def _view_row(self, slot: int, position: int) -> Attend:
        """Attention for one row. All positions that it reads are visible, so it needs no mask and few operations."""
        pages = self.table[slot, : position // PAGE + 1].tolist()
        page, offset = pages[-1], position % PAGE
        # Consecutive pages are read without a copy.
        is_consecutive = pages == list(range(pages[0], pages[0] + len(pages)))
        used: slice | list[int] = slice(pages[0], pages[0] + len(pages)) if is_consecutive else pages

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            pool = self._pool[:, layer]
            pool[0, page, offset], pool[1, page, offset] = k[0, 0], v[0, 0]
            past = pool[:, used].flatten(1, 2)[:, None, : position + 1].transpose(2, 3).to(k.dtype)
            # The queries that share a KV head are rows of one product.
            queries = q.reshape(1, k.shape[2], -1, q.shape[3])
            return F.scaled_dot_product_attention(queries, *past).reshape(q.shape)

        return attend


def _by_slot(rows: Tensor, metadata: PrefillMetadata | None) -> Tensor:
    """Rows [N, ...] by slot, [B, T, ...], padded with zeros."""
    if metadata is None:
        return rows[:, None]
    padded = rows.new_zeros(len(metadata.slots), metadata.max_rows, *rows.shape[1:])
    padded[metadata.owner, metadata.column] = rows
    return padded
