# SPDX-License-Identifier: Apache-2.0
"""Decode attention of large batches against its reference implementation, in Triton's interpreter.

A cache of float8 is written on a GPU only (benchmarks/kernels.py): Triton's interpreter rounds wrongly.
"""

import pytest
import torch

from kernels.test_kv_quantize import assert_close_by_steps, assert_same_cache
from kernels.test_layer_kernels import CLOSE, assert_close, assert_close_caches, decode_case
from paged_pools import quantized
from polyvox.kernels.decode_attention import rotary_attention_reference
from polyvox.kernels.large_batch_attention import launch, supports
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.rotary import HeadRotation

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize(
    ("positions", "heads", "kv_heads", "dim", "norm"),
    [
        ([0, 33], 4, 2, 32, True),
        ([5], 4, 2, 128, True),
        ([40, 70], 2, 2, 16, False),
        ([0, 3, 14], 4, 2, 32, True),
    ],
)
def test_a_large_batch_equals_the_reference(
    positions: list[int], heads: int, kv_heads: int, dim: int, norm: bool, dtype: torch.dtype
) -> None:
    given = decode_case(positions, heads, kv_heads, dim, dtype, norm)
    plain = given.copied()
    assert_close(launch(*given), rotary_attention_reference(*plain), 3 * CLOSE[dtype])
    assert_close_caches(given.cache, plain.cache, 2 * CLOSE[dtype])


def test_a_large_batch_over_an_int8_cache_equals_the_reference() -> None:
    given = decode_case([0, 33], 4, 2, 32, torch.float32)
    given = given._replace(cache=quantized(given.cache, torch.int8))
    plain = given.copied()
    assert_close_by_steps(launch(*given), rotary_attention_reference(*plain))
    assert_same_cache(given.cache, plain.cache)


def test_every_byte_of_a_quantised_cache_is_read_exactly() -> None:
    """One earlier position with a weight of almost 1: the result is its value."""
    given = decode_case([1], 1, 1, 256, torch.float32, norm=False)
    given.qkv[:, :256] = 1.0
    given.qkv[:, 256:512] = -1.0
    given.rotation.cos.fill_(1.0)
    given.rotation.sin.fill_(0.0)
    for dtype in (torch.int8, torch.float8_e4m3fn):
        cache = quantized(given.cache, dtype)
        assert cache.scales is not None
        page = cache.tables[cache.slots[0], 0]
        numbers = torch.arange(256, dtype=torch.uint8).view(dtype)
        numbers = torch.where(numbers.float().isnan(), torch.zeros(()).to(dtype).float(), numbers.float()).to(dtype)
        cache.keys[page, 0], cache.values[page, 0] = torch.ones(256).to(dtype), numbers
        cache.scales.keys[page], cache.scales.values[page] = 1.0, 0.5
        found = launch(given.qkv, given.rotation, cache)
        torch.testing.assert_close(found[0, 0], 0.5 * numbers.float(), atol=1e-4, rtol=1e-5)


def test_a_row_of_a_large_batch_has_the_same_bits_at_any_index() -> None:
    given = decode_case([0, 17, 40], 4, 2, 32, torch.float32)
    found = launch(*given)
    assert torch.equal(launch(*given.reversed()).flip(0), found)


def test_it_is_chosen_for_many_rows_of_one_page_or_of_a_quantised_cache() -> None:
    rotation = HeadRotation(torch.empty(16, 32), torch.empty(16, 32), None, 1e-6)

    def chosen(rows: int, heads: int, pages: int, dtype: torch.dtype) -> bool:
        pool, slots = torch.empty(9, 16, 2, 32, dtype=dtype), torch.arange(rows)
        cache = PagedRows(pool, pool, torch.zeros(rows, pages, dtype=torch.int64), slots, slots)
        return supports(torch.empty(rows, (heads + 4) * 32), rotation, cache)

    assert chosen(64, 4, 1, torch.bfloat16)
    assert chosen(64, 4, 9, torch.int8)
    assert not chosen(64, 4, 9, torch.bfloat16)
    assert not chosen(16, 4, 1, torch.bfloat16)
    assert not chosen(64, 16, 1, torch.bfloat16)
