# SPDX-License-Identifier: Apache-2.0
"""Which rows warp_attention.py supports, and its results on a GPU: POLYVOX_TEST_DEVICE=cuda.

tests/conformance/test_warp_attention_on_cpu.py runs its source on a CPU.
"""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from conftest import DEVICE
from gpu_only import needs_gpu
from kernels.test_cuda_attention import inputs
from paged_pools import assert_stored, by_head, copied, own_rows, quantized
from polyvox.kernels import graph_memory, large_batch_attention, warp_attention
from polyvox.kernels.attention import paged_attention_reference
from polyvox.kernels.cache_attention import attend_decode, choose
from polyvox.kernels.gpu import GPUS, assume
from polyvox.kernels.kv_quantize import KVScales
from polyvox.kernels.launches import META, Launch, record_launches
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.quantized_rows import is_quantized, quantize_rows
from polyvox.kernels.rotary import HeadRotation, rotary_store_reference
from polyvox.kernels.warp_attention import (
    DIM,
    DIVISIONS,
    GROUP,
    KV_HEADS,
    MAX_WARPS,
    NAMES,
    PAGE,
    RowDivision,
    choose_division,
)

WIDTH = (GROUP + 2) * KV_HEADS * DIM


@pytest.fixture
def _nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warp_attention.source(), "_available", True)


def rotation(device: torch.device | str = META, norms: bool = True) -> HeadRotation:
    angles = torch.rand(1024, DIM // 2, device=device) * 6
    cos, sin = torch.cat([angles, angles], 1).cos(), torch.cat([-angles.sin(), angles.sin()], 1)
    gain = torch.ones(DIM, device=device, dtype=torch.bfloat16)
    return HeadRotation(cos.bfloat16(), sin.bfloat16(), (gain, gain) if norms else None, 1e-6)


def rows(count: int, width: int = WIDTH, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(count, width, device=META, dtype=dtype)


def cache_of(count: int, dtype: torch.dtype = torch.bfloat16, pages: int = 9, page: int = PAGE) -> PagedRows:
    pool = by_head(torch.empty(count * pages, page, KV_HEADS, DIM, device=META, dtype=dtype))
    slots = torch.arange(count, device=META)
    tables = torch.empty(count, pages, device=META, dtype=torch.int64)
    scales = torch.empty(count * pages, KV_HEADS, page, device=META)
    return PagedRows(pool, pool, tables, slots, slots, None if dtype == torch.bfloat16 else KVScales(scales, scales))


@pytest.mark.usefixtures("_nvrtc")
def test_rows_over_several_pages_are_supported_on_one_architecture() -> None:
    for gpu in GPUS.values():
        with assume(gpu):
            for dtype in NAMES:
                assert warp_attention.supports(rows(512), rotation(), cache_of(512, dtype)) == (gpu.architecture == 90)
    for count in (1, 16, 65, 255):
        assert all(warp_attention.supports(rows(count), rotation(), cache_of(count, dtype)) for dtype in NAMES)
    by_position = replace(cache_of(512), keys=cache_of(512).keys.contiguous())
    assert not warp_attention.supports(rows(512), rotation(), by_position)
    assert not warp_attention.supports(rows(512), rotation(norms=False), cache_of(512))
    assert not warp_attention.supports(rows(512), rotation(), cache_of(512, pages=1))
    assert not warp_attention.supports(rows(512), rotation(), cache_of(512, page=32))
    assert not warp_attention.supports(rows(512), rotation(), cache_of(512, torch.float16))
    assert not warp_attention.supports(rows(512, dtype=torch.float16), rotation(), cache_of(512))
    assert not warp_attention.supports(rows(512, WIDTH + KV_HEADS * DIM), rotation(), cache_of(512))


def test_nothing_is_supported_without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warp_attention.source(), "_available", False)
    assert not warp_attention.supports(rows(512), rotation(), cache_of(512))
    assert choose(rows(512), rotation(), cache_of(512)) is None
    assert choose(rows(512), rotation(), cache_of(512, torch.int8)) is large_batch_attention


@pytest.mark.usefixtures("_nvrtc")
def test_a_large_batch_is_one_launch() -> None:
    assert choose(rows(512), rotation(), cache_of(512)) is warp_attention
    calls = [lambda: attend_decode(rows(512), rotation(), cache_of(512))]
    assert record_launches(calls, GPUS[90]) == [Launch("warp_attention.cu:90", "", 90)]


def test_eight_warps_or_more_fit_into_a_multiprocessor() -> None:
    for dtype, division in product(NAMES, DIVISIONS):
        assert 8 // division.warps * (division.shared_bytes(dtype) + 1024) <= GPUS[90].shared


def test_the_source_has_all_divisions_and_no_others() -> None:
    text = Path(warp_attention.__file__).with_suffix(".cu").read_text()
    found = re.findall(r"^ATTENTION_OF_(ALL_TYPES|CLUSTERS)\((\d), (\d)", text, re.MULTILINE)
    assert {(int(warps), int(splits)) for _, warps, splits in found} == {
        (each.warps, each.splits) for each in DIVISIONS
    }
    assert all((kind == "CLUSTERS") == (splits != "1") for kind, _, splits in found)


@pytest.mark.parametrize("multiprocessors", [78, 114, 132])  # H20, H100 PCIe, H200
def test_programs_that_need_a_multiprocessor_run_at_a_time(multiprocessors: int) -> None:
    for count in range(1, 100):
        division = choose_division(count, multiprocessors)
        num_programs = count * KV_HEADS * division.splits
        assert division.warps < MAX_WARPS or num_programs <= multiprocessors
    assert choose_division(multiprocessors // KV_HEADS, multiprocessors) == RowDivision(16, MAX_WARPS)


def test_gpus_with_fewer_multiprocessors_have_smaller_clusters_and_programs() -> None:
    def chosen(rows: int, multiprocessors: int) -> tuple[int, int]:
        division = choose_division(rows, multiprocessors)
        return division.warps, division.splits

    assert [chosen(rows, 132) for rows in (1, 2, 8, 9, 16, 17)] == [(8, 4), (8, 4), (8, 2), (8, 1), (8, 1), (4, 1)]
    assert [chosen(rows, 114) for rows in (7, 8, 14, 15)] == [(8, 2), (8, 1), (8, 1), (4, 1)]
    assert [chosen(rows, 16) for rows in (1, 2, 3, 48, 64, 1000)] == [(8, 2), (8, 1), (4, 1), (4, 1), (2, 1), (1, 1)]


def test_all_clusters_run_at_a_time_on_an_h200() -> None:
    max_clusters = {2: 66, 4: 30}  # with a program on each multiprocessor, measured
    for count in range(1, 100):
        splits = choose_division(count, GPUS[90].multiprocessors).splits
        assert splits == 1 or count * KV_HEADS <= max_clusters[splits]


def test_a_quantised_cluster_leaves_shared_memory_to_the_next_launch() -> None:
    reserved, of_output = 1 << 10, 64 << 10  # bytes of each program, and of a program of the output projection
    largest_part = graph_memory.PERCENT_OF_ONE_ROW / 100 * (GPUS[90].shared + reserved)
    used = choose_division(1, GPUS[90].multiprocessors).shared_bytes(torch.int8)
    assert used + of_output + 2 * reserved <= largest_part


@needs_gpu((warp_attention.ARCHITECTURE,))
@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("dtype", NAMES)
def test_a_large_batch_equals_the_reference(
    dtype: torch.dtype, division: RowDivision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warp_attention, "choose_division", lambda *_: division)
    torch.manual_seed(0)
    count, pages = 300, 33
    device = torch.device(DEVICE)
    tables = 1 + torch.randperm(count * pages, device=device).view(count, pages)
    positions = torch.randint(0, pages * PAGE, (count,), device=device)
    keys, values = (
        by_head(torch.randn(count * pages + 1, PAGE, KV_HEADS, DIM, device=device).bfloat16()) for _ in range(2)
    )
    cache = PagedRows(keys, values, tables, torch.randperm(count, device=device), positions)
    if is_quantized(dtype):
        cache = quantized(cache, dtype)
    qkv, given = torch.randn(count, WIDTH, device=device).bfloat16(), rotation(device)
    written = copied(cache)
    found = warp_attention.launch(qkv, given, written)
    expected_cache = copied(cache)
    query = rotary_store_reference(qkv, given, expected_cache)
    assert_stored(written, expected_cache)
    expected = paged_attention_reference(query, written)
    torch.testing.assert_close(found.float(), expected.float(), atol=2**-6, rtol=2**-6)
    order = torch.arange(count - 1, 0, -3, device=device)
    some = replace(copied(cache), slots=cache.slots[order], positions=positions[order])
    assert torch.equal(warp_attention.launch(qkv[order], given, some), found[order])


def poison_unwritten(cache: PagedRows) -> None:
    """Makes keys and values from each row's own position on NaN, and their scales."""
    for slot, position in zip(cache.slots.tolist(), cache.positions.tolist(), strict=True):
        unwritten = torch.arange(position, cache.max_positions, device=cache.keys.device)
        page, offset = cache.tables[slot, unwritten // PAGE], unwritten % PAGE
        for pool in (cache.keys, cache.values):
            pool[page, offset] = torch.tensor(127 if pool.dtype == torch.int8 else torch.nan).to(pool)
        for pool in cache.scales or ():
            pool[page, :, offset] = torch.nan


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


@needs_gpu((warp_attention.ARCHITECTURE,))
@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize(
    ("positions", "pages"),
    [
        ([0], 1),
        ([1, 15, 16, 17], 3),
        ([639, 256, 33, 0], 40),
        ([1100], 80),
        ([2500], 160),
        (list(range(5, 325, 20)), 21),
    ],
)
def test_attention_over_each_type_equals_its_reference(
    positions: list[int], pages: int, division: RowDivision, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any division of a row; nothing that is not yet written is read."""
    monkeypatch.setattr(warp_attention, "choose_division", lambda *_: division)
    qkv, given_rotation, plain = inputs(len(positions), pages, DEVICE)
    plain = replace(plain, positions=torch.tensor(positions, device=DEVICE))
    given = quantized(plain, dtype) if is_quantized(dtype) else copied(plain)
    poison_unwritten(given)
    cache = copied(given)
    found = warp_attention.launch(qkv, given_rotation, cache)
    # The key whose norm this kernel computed: PyTorch's may differ in the last bit.
    warp_attention.launch(qkv, given_rotation, plain)
    expected_rows = own_rows(plain)
    if is_quantized(dtype):
        (key, of_key), (value, of_value) = (quantize_rows(rows, dtype) for rows in expected_rows)
        expected_rows = [key, value, of_key, of_value]
    for stored, expected_row in zip(own_rows(cache), expected_rows, strict=True):
        assert torch.equal(bits(stored), bits(expected_row))
    # Over the cache that the launch wrote.
    wide = cache if is_quantized(dtype) else replace(cache, keys=cache.keys.float(), values=cache.values.float())
    query = rotary_store_reference(qkv, given_rotation, plain)
    expected = paged_attention_reference(query.float(), wide)
    torch.testing.assert_close(found.float(), expected, atol=2**-6, rtol=2**-6)
    assert torch.equal(warp_attention.launch(qkv, given_rotation, copied(given)), found)
    # Nothing but the rows' own positions is written.
    page, offset = cache.tables[cache.slots, cache.positions // PAGE], cache.positions % PAGE
    for pool, before in ((cache.keys, given.keys), (cache.values, given.values)):
        before[page, offset] = pool[page, offset]
        assert torch.equal(bits(pool), bits(before))
    for pool, before in zip(cache.scales or (), given.scales or (), strict=True):
        before[page, :, offset] = pool[page, :, offset]
        assert torch.equal(bits(pool), bits(before))
