# SPDX-License-Identifier: Apache-2.0
"""Attention of prompt rows against its reference implementation, in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from kernels.test_attention_kernel import in_float32, some_rows
from kernels.test_kv_quantize import quantized
from polyvox.kernels.attention import paged_attention_reference
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.prefill_attention import prompt_attention

pytestmark = pytest.mark.usefixtures("interpreted")

PAGE = 16


def prompts(
    parts: list[tuple[int, int]], heads: int, kv_heads: int, dim: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, PagedRows]:
    """Rows of one slot for each (start, stop): its positions. Later positions and unowned pages are NaN."""
    generator = torch.Generator().manual_seed(dim)
    width = max(stop for _, stop in parts) // PAGE + 1
    tables = (torch.randperm(len(parts) * width, generator=generator) + 1).view(len(parts), width)
    pool = torch.full((2, len(parts) * width + 1, kv_heads, PAGE, dim), torch.nan, dtype=dtype)
    pool = pool.transpose(2, 3)  # by head, as on a GPU
    for slot, (_, stop) in enumerate(parts):
        written = torch.randn(2, stop, kv_heads, dim, generator=generator).to(dtype)
        position = torch.arange(stop)
        pool[:, tables[slot, position // PAGE], position % PAGE] = written
    slots = torch.cat([torch.full((stop - start,), slot) for slot, (start, stop) in enumerate(parts)])
    positions = torch.cat([torch.arange(start, stop) for start, stop in parts])
    q = torch.randn(len(slots), heads, dim, generator=generator).to(dtype)
    return q, PagedRows(pool[0], pool[1], tables, slots, positions)


@pytest.mark.parametrize(
    ("parts", "heads", "kv_heads", "dim"),
    [
        ([(0, 5), (3, 4), (10, 80), (64, 84)], 4, 2, 32),
        ([(0, 40)], 16, 2, 24),
        ([(0, 3), (0, 33)], 3, 1, 16),
        ([(0, 33)], 4, 2, 128),
    ],
)
def test_prompt_rows_equal_the_reference_and_read_nothing_unwritten(
    parts: list[tuple[int, int]], heads: int, kv_heads: int, dim: int
) -> None:
    given = prompts(parts, heads, kv_heads, dim)
    torch.testing.assert_close(prompt_attention(*given), paged_attention_reference(*given), atol=2e-6, rtol=2e-6)


def test_a_prompt_row_has_the_same_bits_in_another_tile_with_other_slots() -> None:
    q, cache = prompts([(0, 20), (0, 45), (7, 12)], 4, 2, 32)
    together = prompt_attention(q, cache)
    for first, stop in ((0, 20), (20, 65), (33, 40), (65, 70)):
        rows = slice(first, stop)
        alone = prompt_attention(q[rows], some_rows(cache, rows))
        assert torch.equal(alone, together[rows])


def test_a_slot_with_nan_does_not_change_the_rows_of_other_slots() -> None:
    q, cache = prompts([(0, 10), (0, 10)], 4, 2, 32)
    before = prompt_attention(q, cache)
    cache.keys[cache.tables[0, 0]] = torch.nan
    cache.values[cache.tables[0, 0]] = torch.nan
    after = prompt_attention(q, cache)
    assert after[:10].isnan().all()
    assert torch.equal(after[10:], before[10:])


def test_half_precision_is_rounded_at_the_end() -> None:
    given = prompts([(0, 9), (0, 70)], 4, 2, 32, torch.float16)
    wide = paged_attention_reference(*in_float32(*given))
    torch.testing.assert_close(prompt_attention(*given).float(), wide, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_prompt_rows_over_a_quantised_cache_equal_the_reference(dtype: torch.dtype) -> None:
    q, cache = prompts([(0, 9), (5, 40)], 4, 2, 32)
    cache = quantized(cache, dtype)
    torch.testing.assert_close(prompt_attention(q, cache), paged_attention_reference(q, cache), atol=2e-5, rtol=2e-5)


def test_an_empty_prefill_launches_nothing() -> None:
    q, cache = prompts([(0, 3)], 4, 2, 32)
    assert prompt_attention(q[:0], some_rows(cache, slice(0))).shape == (0, 4, 32)
