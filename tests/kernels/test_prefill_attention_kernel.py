# SPDX-License-Identifier: Apache-2.0
"""Attention of prompt rows against its reference implementation, in Triton's interpreter."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.test_attention_kernel import in_float32, some_rows
from kernels.test_kv_quantize import TYPES, assert_same_cache
from kernels.test_layer_kernels import EPS, RotaryCase, random
from paged_pools import quantized
from polyvox.kernels import prefill_attention, rotary
from polyvox.kernels.attention import paged_attention_reference
from polyvox.kernels.decode_attention import rotary_attention_reference
from polyvox.kernels.gpu import GPUS, assume
from polyvox.kernels.lazy_triton import intercepting_launches
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.prefill_attention import STAGES, STAGES_ALONE, attend_prompts, prompt_attention
from polyvox.kernels.rotary import (
    HeadRotation,
    RotatedRows,
    rotary_store,
    rotary_store_reference,
    rotate_and_store,
)

pytestmark = pytest.mark.usefixtures("interpreted")

PAGE = 16


@pytest.fixture(params=[64, 32, 16], ids=lambda size: f"blocks_of_{size}")
def _block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All sizes of blocks, in float32."""
    monkeypatch.setattr(prefill_attention, "FLOAT32_BLOCK", request.param)


each_block = pytest.mark.usefixtures("_block")


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


def rotated(q: Tensor, cache: PagedRows) -> RotatedRows:
    """The rows of a pass as rotate_and_store returns them."""
    at = cache.tables[cache.slots, cache.positions // PAGE], cache.positions % PAGE
    heads = torch.cat([q, cache.keys[at].to(q.dtype), cache.values[at].to(q.dtype)], dim=1)
    if cache.scales is None:
        return RotatedRows(heads, None, with_kv=True)
    scales = torch.cat([pool[at[0], :, at[1]] for pool in cache.scales], dim=1).T.contiguous()
    return RotatedRows(heads, scales, with_kv=True)


def attend(q: Tensor, cache: PagedRows) -> Tensor:
    return attend_prompts(rotated(q, cache), cache)


@each_block
@pytest.mark.parametrize(
    ("parts", "heads", "kv_heads", "dim"),
    [
        ([(0, 5), (3, 4), (10, 80), (64, 84)], 4, 2, 32),
        ([(0, 40)], 16, 2, 24),
        ([(0, 3), (0, 33)], 3, 1, 16),
        ([(0, 33)], 4, 2, 128),
        ([(0, 7), (60, 200), (0, 130)], 2, 1, 16),
    ],
)
def test_prompt_rows_equal_the_reference_and_read_nothing_unwritten(
    parts: list[tuple[int, int]], heads: int, kv_heads: int, dim: int
) -> None:
    given = prompts(parts, heads, kv_heads, dim)
    torch.testing.assert_close(attend(*given), paged_attention_reference(*given), atol=2e-6, rtol=2e-6)


@each_block
@pytest.mark.parametrize("dtype", [None, torch.int8])
def test_a_prompt_row_has_the_same_bits_in_another_tile_with_other_slots(dtype: torch.dtype | None) -> None:
    q, cache = prompts([(0, 20), (0, 45), (7, 12)], 4, 2, 32)
    cache = cache if dtype is None else quantized(cache, dtype)
    together = attend(q, cache)
    for first, stop in ((0, 20), (20, 65), (33, 40), (65, 70)):
        rows = slice(first, stop)
        alone = attend(q[rows], some_rows(cache, rows))
        assert torch.equal(alone, together[rows])


@each_block
@pytest.mark.parametrize("dtype", [None, *TYPES])
@pytest.mark.parametrize("first", [1, 63, 64, 65, 130])
def test_a_prompt_row_has_the_same_bits_if_an_earlier_pass_read_the_first_rows(
    first: int, dtype: torch.dtype | None
) -> None:
    q, cache = prompts([(0, 150)], 2, 1, 16)
    cache = cache if dtype is None else quantized(cache, dtype)
    later = slice(first, 150)
    assert torch.equal(attend(q[later], some_rows(cache, later)), attend(q, cache)[later])


@pytest.mark.parametrize(
    ("multiprocessors", "dtype", "stages"),
    [
        (4, torch.float16, STAGES_ALONE),
        (3, torch.float16, STAGES),
        (4, torch.float32, STAGES),
    ],
)
def test_programs_with_a_multiprocessor_each_copy_further_ahead(
    multiprocessors: int, dtype: torch.dtype, stages: int
) -> None:
    q, cache = prompts([(0, 33)], 4, 2, 32, dtype)  # four programs: two tiles, two KV heads
    launched: list[object] = []
    gpu = replace(GPUS[90], multiprocessors=multiprocessors)
    with assume(gpu), intercepting_launches(lambda _kernel, _arguments, named: launched.append(named["STAGES"])):
        attend(q, cache)
    assert launched == [stages]


@each_block
def test_blocks_of_the_pass_are_read_from_its_rows_and_earlier_ones_from_the_cache() -> None:
    q, cache = prompts([(0, 20), (60, 140)], 4, 2, 32)
    rows, expected = rotated(q, cache), attend(q, cache)
    of_second = cache.tables[1]
    for pages in (cache.tables[0], of_second[64 // PAGE :]):
        cache.keys[pages], cache.values[pages] = torch.nan, torch.nan
    assert torch.equal(attend_prompts(rows, cache), expected)
    cache.values[of_second[0]] = torch.nan
    found = attend_prompts(rows, cache)
    assert torch.equal(found[:20], expected[:20])
    assert found[20:].isnan().all()


@each_block
@pytest.mark.parametrize("dtype", [None, *TYPES])
def test_without_keys_and_values_in_its_rows_a_pass_reads_them_from_the_cache(dtype: torch.dtype | None) -> None:
    q, cache = prompts([(0, 20), (60, 140)], 4, 2, 32)
    cache = cache if dtype is None else quantized(cache, dtype)
    assert torch.equal(attend_prompts(RotatedRows(q, None, with_kv=False), cache), attend(q, cache))


@pytest.mark.parametrize(
    ("architecture", "dtype", "with_kv"), [(90, torch.int8, 2), (80, torch.int8, 0), (80, None, 2)]
)
def test_rows_of_a_pass_are_read_where_the_gpu_adds_in_the_same_order(
    architecture: int, dtype: torch.dtype | None, with_kv: int
) -> None:
    given = prompt_case([(0, 20)])
    if dtype is not None:
        given = given._replace(cache=quantized(given.cache, dtype))
    heads = []

    def record(_kernel: object, arguments: Sequence[object], named: dict[str, object]) -> None:
        if "OWN" in named:
            assert isinstance(arguments[0], Tensor)
            heads.append((named["OWN"], arguments[0].shape[1]))

    with assume(GPUS[architecture]), intercepting_launches(record):
        prompt_attention(*given)
    assert heads == [(bool(with_kv), 4 + with_kv * 2)]


@pytest.mark.parametrize("dtype", [None, torch.int8])
@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("many_rows", [27, 28])
def test_rows_of_a_pass_are_what_the_cache_stores(
    many_rows: int, by_row: bool, dtype: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotary, "MANY_ROWS", many_rows)
    given = prompt_case([(3, 23), (0, 7)], 8, 2, 16)
    if dtype is not None:
        given = given._replace(cache=quantized(given.cache, dtype))
    if by_row:
        cos, sin = (angles[given.cache.positions] for angles in (given.rotation.cos, given.rotation.sin))
        given = given._replace(rotation=replace(given.rotation, cos=cos, sin=sin, by_row=True))
    query = rotary_store(*given.copied())
    found = rotate_and_store(*given, with_kv=True)
    expected = rotated(query, given.cache)
    assert torch.equal(found.heads, expected.heads)
    assert (found.scales is None) == (expected.scales is None)
    if found.scales is not None and expected.scales is not None:
        assert torch.equal(found.scales, expected.scales)


def test_a_slot_with_nan_does_not_change_the_rows_of_other_slots() -> None:
    q, cache = prompts([(0, 10), (0, 10)], 4, 2, 32)
    before = attend(q, cache)
    cache.keys[cache.tables[0, 0]] = torch.nan
    cache.values[cache.tables[0, 0]] = torch.nan
    after = attend(q, cache)
    assert after[:10].isnan().all()
    assert torch.equal(after[10:], before[10:])


def test_rows_that_pad_a_call_share_a_position_and_change_no_other_row() -> None:
    q, cache = prompts([(0, 10), (0, 1)], 4, 2, 32)
    expected = attend(q, cache)
    padded = [*range(10), *[10] * 80]  # tiles have 32 rows: some have no others
    assert torch.equal(attend(q[padded], some_rows(cache, torch.tensor(padded)))[:10], expected[:10])


def test_half_precision_is_rounded_at_the_end() -> None:
    given = prompts([(0, 9), (0, 70)], 4, 2, 32, torch.float16)
    wide = paged_attention_reference(*in_float32(*given))
    torch.testing.assert_close(attend(*given).float(), wide, atol=2e-3, rtol=2e-3)


@each_block
@pytest.mark.parametrize("dtype", TYPES)
def test_prompt_rows_over_a_quantised_cache_equal_the_reference(dtype: torch.dtype) -> None:
    q, cache = prompts([(0, 9), (5, 40), (30, 150)], 4, 2, 32)
    cache = quantized(cache, dtype)
    torch.testing.assert_close(attend(q, cache), paged_attention_reference(q, cache), atol=2e-5, rtol=2e-5)


def prompt_case(parts: list[tuple[int, int]], heads: int = 4, kv_heads: int = 2, dim: int = 32) -> RotaryCase:
    _, cache = prompts(parts, heads, kv_heads, dim)
    angles = torch.arange(max(stop for _, stop in parts))[:, None] / 10 ** (torch.arange(dim) % (dim // 2) / dim)
    norms = (random(dim, dtype=torch.float32, seed=3), random(dim, dtype=torch.float32, seed=4))
    qkv = random(len(cache.slots), (heads + 2 * kv_heads) * dim, dtype=torch.float32, seed=5)
    return RotaryCase(qkv, HeadRotation(angles.cos(), angles.sin(), norms, EPS), cache)


def test_a_pass_rotates_stores_and_attends_like_its_reference() -> None:
    given = prompt_case([(0, 20), (10, 90)])
    plain = given.copied()
    torch.testing.assert_close(prompt_attention(*given), rotary_attention_reference(*plain), atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(given.cache.keys, plain.cache.keys, atol=2e-6, rtol=2e-6, equal_nan=True)
    assert torch.equal(given.cache.values.nan_to_num(), plain.cache.values.nan_to_num())


def test_a_pass_over_a_quantised_cache_attends_to_the_rounded_keys_and_values() -> None:
    given = prompt_case([(0, 20), (10, 90)])
    given = given._replace(cache=quantized(given.cache, torch.int8))
    plain = given.copied()
    found = prompt_attention(*given)
    rotary_attention_reference(*plain)
    assert_same_cache(given.cache, plain.cache)
    # Against what the kernel has stored: a rounding of a key may differ from the reference's by one step.
    query = rotary_store_reference(*given.copied())
    torch.testing.assert_close(found, paged_attention_reference(query, given.cache), atol=2e-5, rtol=2e-5)


def test_an_empty_prefill_launches_nothing() -> None:
    given = prompt_case([(0, 3)])
    empty = given._replace(qkv=given.qkv[:0], cache=some_rows(given.cache, slice(0)))
    assert prompt_attention(*empty).shape == (0, 4, 32)
