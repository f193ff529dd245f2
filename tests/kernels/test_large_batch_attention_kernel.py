# SPDX-License-Identifier: Apache-2.0
"""Decode attention of large batches against its reference implementation, in Triton's interpreter.

A cache of float8 is written on a GPU only (benchmarks/kernels.py): Triton's interpreter rounds wrongly.
"""

import pytest
import torch

from kernels.test_kv_quantize import assert_same_cache, quantized
from kernels.test_layer_kernels import CLOSE, assert_close, rotary_case, with_a_past
from polyvox.kernels.decode_attention import rotary_attention_reference
from polyvox.kernels.kv_quantize import KVScales
from polyvox.kernels.large_batch_attention import launch, supports

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
    given, cache = rotary_case(positions, heads, kv_heads, dim, dtype, norm, 16)
    cache = with_a_past(given, cache)
    plain_cache = cache.clone()
    found = launch(**given, keys=cache[0], values=cache[1])
    plain = rotary_attention_reference(**given, keys=plain_cache[0], values=plain_cache[1])
    assert_close(found, plain, 3 * CLOSE[dtype])
    assert_close(cache, plain_cache, 2 * CLOSE[dtype])


def test_a_large_batch_over_an_int8_cache_equals_the_reference() -> None:
    given, cache = rotary_case([0, 33], 4, 2, 32, torch.float32)
    cache = with_a_past(given, cache)
    keys, values, scales = quantized(cache[0], cache[1], torch.int8)
    plain = [pool.clone() for pool in (keys, values, *scales)]
    found = launch(**given, keys=keys, values=values, scales=scales)
    expected = rotary_attention_reference(**given, keys=plain[0], values=plain[1], scales=KVScales(*plain[2:]))
    # A rounding of the row's own key may differ by one step.
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)
    assert (found - expected).square().mean() < 1e-4 * expected.square().mean()
    assert_same_cache((keys, values, *scales), plain)


def test_every_byte_of_a_quantised_cache_is_read_exactly() -> None:
    """One earlier position with a weight of almost 1: the result is its value."""
    given, cache = rotary_case([1], 1, 1, 256, torch.float32, norm=False)
    given["qkv"][:, :256] = 1.0
    given["qkv"][:, 256:512] = -1.0
    given["cos"].fill_(1.0)
    given["sin"].fill_(0.0)
    for dtype in (torch.int8, torch.float8_e4m3fn):
        past = with_a_past(given, cache.clone())
        keys, values, scales = quantized(past[0], past[1], dtype)
        page = given["tables"][given["slots"][0], 0]
        numbers = torch.arange(256, dtype=torch.uint8).view(dtype)
        numbers = torch.where(numbers.float().isnan(), torch.zeros(()).to(dtype).float(), numbers.float()).to(dtype)
        keys[page, 0], values[page, 0] = torch.ones(256).to(dtype), numbers
        scales.keys[page], scales.values[page] = 1.0, 0.5
        found = launch(**given, keys=keys, values=values, scales=scales)
        torch.testing.assert_close(found[0, 0], 0.5 * numbers.float(), atol=1e-4, rtol=1e-5)


def test_a_row_of_a_large_batch_has_the_same_bits_at_any_index() -> None:
    given, cache = rotary_case([0, 17, 40], 4, 2, 32, torch.float32)
    cache = with_a_past(given, cache)
    found = launch(**given, keys=cache[0], values=cache[1])
    for name in ("qkv", "slots", "positions"):
        given[name] = given[name].flip(0).contiguous()
    assert torch.equal(launch(**given, keys=cache[0], values=cache[1]).flip(0), found)


def test_it_is_chosen_for_many_rows_of_one_page_or_of_a_quantised_cache() -> None:
    def chosen(rows: int, heads: int, pages: int, dtype: torch.dtype) -> bool:
        qkv, keys = torch.empty(rows, (heads + 4) * 32), torch.empty(9, 16, 2, 32, dtype=dtype)
        return supports(qkv, keys, torch.zeros(rows, pages, dtype=torch.int64))

    assert chosen(64, 4, 1, torch.bfloat16)
    assert chosen(64, 4, 9, torch.int8)
    assert not chosen(64, 4, 9, torch.bfloat16)
    assert not chosen(16, 4, 1, torch.bfloat16)
    assert not chosen(64, 16, 1, torch.bfloat16)
