# SPDX-License-Identifier: Apache-2.0
"""Paged attention against its reference implementation, in Triton's interpreter."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from polyvox.kernels.attention import paged_attention, paged_attention_reference
from polyvox.kernels.paged_rows import PagedRows

pytestmark = pytest.mark.usefixtures("interpreted")


def case(
    positions: list[int], heads: int, kv_heads: int, dim: int, page: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, PagedRows]:
    """One row per slot; entries after a slot's position and unowned pages are NaN."""
    generator = torch.Generator().manual_seed(len(positions) + dim)
    width = max(positions) // page + 2
    count = len(positions) * width + 3
    order = torch.randperm(count - 1, generator=generator) + 1
    tables = order[: len(positions) * width].view(len(positions), width)
    slots = torch.randperm(len(positions), generator=generator)
    pool = torch.full((2, count, kv_heads, page, dim), torch.nan, dtype=dtype).transpose(2, 3)  # by head, as on a GPU
    for slot, position in zip(slots.tolist(), positions, strict=True):
        for p in range(position + 1):
            written = torch.randn(2, kv_heads, dim, generator=generator)
            pool[:, tables[slot, p // page], p % page] = written.to(dtype)
    q = torch.randn(len(positions), heads, dim, generator=generator).to(dtype)
    return q, PagedRows(pool[0], pool[1], tables, slots, torch.tensor(positions))


def some_rows(cache: PagedRows, rows: slice | Tensor) -> PagedRows:
    return replace(cache, slots=cache.slots[rows], positions=cache.positions[rows])


def in_float32(q: Tensor, cache: PagedRows) -> tuple[Tensor, PagedRows]:
    return q.float(), replace(cache, keys=cache.keys.float(), values=cache.values.float())


@pytest.mark.parametrize(
    ("positions", "heads", "kv_heads", "dim", "page"),
    [
        ([0, 15, 16, 63, 64, 130], 4, 2, 32, 16),
        ([70, 3], 6, 2, 24, 16),
        ([2, 0, 1, 3], 4, 4, 8, 4),
        ([9, 14], 4, 2, 16, 15),
        ([100], 16, 8, 128, 16),
    ],
)
def test_it_equals_the_reference_and_reads_nothing_unwritten(
    positions: list[int], heads: int, kv_heads: int, dim: int, page: int
) -> None:
    given = case(positions, heads, kv_heads, dim, page)
    torch.testing.assert_close(paged_attention(*given), paged_attention_reference(*given), atol=2e-6, rtol=2e-6)


def test_half_precision_is_rounded_at_the_end() -> None:
    given = case([5, 80], 4, 2, 32, 16, torch.float16)
    wide = paged_attention_reference(*in_float32(*given))
    torch.testing.assert_close(paged_attention(*given).float(), wide, atol=2e-3, rtol=2e-3)


def test_a_row_has_the_same_bits_at_any_index_of_any_batch() -> None:
    q, cache = case([7, 90, 33], 4, 2, 32, 16)
    together = paged_attention(q, cache)
    for i in range(3):
        alone = paged_attention(q[i:][:1], some_rows(cache, slice(i, i + 1)))
        assert torch.equal(alone[0], together[i])
    turned = paged_attention(q.flip(0), some_rows(cache, torch.tensor([2, 1, 0])))
    assert torch.equal(turned.flip(0), together)


def test_rows_may_be_strided() -> None:
    q, cache = case([7, 20], 4, 2, 32, 16)
    wider = torch.cat([q.flatten(1), torch.full((2, 10), torch.nan)], dim=1)
    assert torch.equal(paged_attention(wider[:, :128].unflatten(1, (4, 32)), cache), paged_attention(q, cache))


def test_an_empty_batch_launches_nothing() -> None:
    q, cache = case([7], 4, 2, 32, 16)
    assert paged_attention(q[:0], some_rows(cache, slice(0))).shape == (0, 4, 32)
