# SPDX-License-Identifier: Apache-2.0
"""Which launches page_, pair_ and prefetch_attention.py support, and results on a GPU: POLYVOX_TEST_DEVICE=cuda.

tests/conformance/test_decode_attention_on_cpu.py runs their sources on a CPU.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import DEVICE
from polyvox.kernels import cuda_driver, page_attention, pair_attention, prefetch_attention, tensor_map
from polyvox.kernels.attention import paged_attention_reference
from polyvox.kernels.decode_attention import rotary_attention, rotary_attention_reference
from polyvox.kernels.gpu import GPUS, assume
from polyvox.kernels.kv_quantize import KVScales
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.prefetch_attention import CLUSTERS, NAMES, shared_bytes
from polyvox.kernels.quantized_rows import LARGEST, is_quantized, quantize_rows
from polyvox.kernels.rotary import HeadRotation, rotary_store_reference
from polyvox.kernels.tensor_map import TensorMap

needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="runs on a GPU only: POLYVOX_TEST_DEVICE=cuda")
DIM, PAGE, KV_HEADS = 128, 16, 8
SHARED_OF_OUTPUT = 64 << 10  # bytes of shared memory of a program of the next launch, the output projection
Inputs = tuple[Tensor, HeadRotation, PagedRows]


@pytest.fixture
def _nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (page_attention, pair_attention, prefetch_attention):
        for architecture in GPUS:
            monkeypatch.setattr(module.source(architecture), "_available", True)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def inputs(rows: int, pages: int, device: str, dtype: torch.dtype = torch.bfloat16, dim: int = DIM) -> Inputs:
    """Rows in different slots of this many pages, at different positions."""

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    keys, values = (noise(rows * pages, PAGE, KV_HEADS, dim) for _ in range(2))
    tables = torch.arange(rows * pages, device=device).view(rows, pages).flip(0)
    slots = torch.arange(rows, device=device)
    positions = torch.arange(rows, device=device) * 37 % (pages * PAGE)
    cache = PagedRows(keys, values, tables, slots, positions)
    tables_of_angles = [noise(pages * PAGE, dim) for _ in range(2)]
    rotation = HeadRotation(tables_of_angles[0], tables_of_angles[1], (noise(dim), noise(dim)), 1e-6)
    return noise(rows, 4 * KV_HEADS * dim), rotation, cache


def quantized(cache: PagedRows, dtype: torch.dtype) -> PagedRows:
    """A copy of the cache in this type."""
    (keys, of_keys), (values, of_values) = (quantize_rows(pool, dtype) for pool in (cache.keys, cache.values))
    scales = KVScales(*(pool.transpose(1, 2).contiguous() for pool in (of_keys, of_values)))
    return replace(cache, keys=keys, values=values, scales=scales)


def poison_unwritten(cache: PagedRows) -> None:
    """Makes keys and values from each row's own position on NaN, and their scales."""
    for slot, position in zip(cache.slots.tolist(), cache.positions.tolist(), strict=True):
        unwritten = torch.arange(position, cache.max_positions, device=cache.keys.device)
        page, offset = cache.tables[slot, unwritten // PAGE], unwritten % PAGE
        for pool in (cache.keys, cache.values):
            pool[page, offset] = torch.tensor(127 if pool.dtype == torch.int8 else torch.nan).to(pool)
        for pool in cache.scales or ():
            pool[page, :, offset] = torch.nan


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def copied(cache: PagedRows) -> PagedRows:
    scales = None if cache.scales is None else KVScales(*(pool.clone() for pool in cache.scales))
    return replace(cache, keys=cache.keys.clone(), values=cache.values.clone(), scales=scales)


def own_rows(cache: PagedRows) -> list[Tensor]:
    """What the cache has of each row's own position: keys and values [N,KVH,D], and their scales [N,KVH]."""
    page, offset = cache.tables[cache.slots, cache.positions // PAGE], cache.positions % PAGE
    rows = [cache.keys[page, offset], cache.values[page, offset]]
    return rows + [pool[page, :, offset] for pool in cache.scales or ()]


def supported(given: Inputs, architecture: int = 90) -> tuple[bool, bool]:
    """By page_attention.py and by prefetch_attention.py."""
    with assume(GPUS[architecture]):
        return page_attention.supports(*given), prefetch_attention.supports(*given)


@pytest.mark.usefixtures("_nvrtc")
def test_few_rows_in_bfloat16_are_supported_on_hopper() -> None:
    assert supported(inputs(64, 1, "meta"))[0]
    assert not supported(inputs(65, 1, "meta"))[0]
    assert [supported(inputs(rows, 20, "meta")) for rows in (1, 16, 17)] == [
        (False, True), (False, True), (False, False),
    ]  # fmt: skip


@pytest.mark.usefixtures("_nvrtc")
@pytest.mark.parametrize("pages", [1, 20])
def test_other_launches_have_other_kernels(pages: int) -> None:
    none = (False, False)
    qkv, rotation, cache = given = inputs(8, pages, "meta")
    assert supported(inputs(8, pages, "meta", torch.float16)) == none
    assert supported(inputs(8, pages, "meta", dim=64)) == none
    assert supported((qkv, replace(rotation, norms=None), cache)) == none
    assert supported((qkv, rotation, replace(cache, keys=cache.keys.to(torch.float16)))) == none
    assert supported((qkv.to(torch.float16), rotation, quantized(cache, torch.int8))) == none
    assert supported((qkv[:, : 3 * KV_HEADS * DIM], rotation, cache)) == none  # one query head per KV head
    for architecture in (80, 86, 89, 100, 120):
        assert supported(given, architecture) == none


@pytest.mark.usefixtures("_nvrtc")
@pytest.mark.parametrize("dtype", LARGEST)
def test_few_rows_over_a_quantised_cache_are_supported_on_hopper(dtype: torch.dtype) -> None:
    for rows, pages in ((1, 1), (1, 20), (16, 20), (17, 20)):
        qkv, rotation, cache = inputs(rows, pages, "meta")
        given = qkv, rotation, quantized(cache, dtype)
        assert supported(given) == (False, rows <= 16)
        for architecture in (80, 86, 89, 100, 120):
            assert supported(given, architecture) == (False, False)


@pytest.mark.parametrize("dtype", NAMES)
def test_large_clusters_leave_shared_memory_to_the_next_launch(dtype: torch.dtype) -> None:
    reserved = 1 << 10  # bytes of each program
    largest_part = 0.7 * (GPUS[90].shared + reserved)  # graph_memory.py prefers it for one row
    for splits in (size for size, _ in CLUSTERS if size >= 4):
        assert shared_bytes(dtype, splits) + SHARED_OF_OUTPUT + 2 * reserved <= largest_part
    assert max(shared_bytes(dtype, splits) for splits in (1, 2)) <= GPUS[90].shared


@pytest.mark.parametrize(
    ("dtype", "columns", "expected"),
    [
        (torch.bfloat16, 64, (tensor_map.BFLOAT16, tensor_map.SWIZZLE_128_BYTES)),
        (torch.bfloat16, 128, (tensor_map.BFLOAT16, tensor_map.NO_SWIZZLE)),
        (torch.int8, 128, (tensor_map.UINT8, tensor_map.NO_SWIZZLE)),
        (torch.float8_e4m3fn, 64, (tensor_map.UINT8, tensor_map.NO_SWIZZLE)),
    ],
)
def test_a_tensor_map_describes_elements_of_one_and_two_bytes(
    dtype: torch.dtype, columns: int, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(cuda_driver, "call", lambda *arguments: calls.append(arguments))
    matrix = torch.empty(48, 256).to(dtype)
    TensorMap(matrix, 16, columns).encoded()
    _, _, data_type, _, address, shape, strides, box, _, _, swizzle, _, _ = calls[0]
    assert (data_type.value, swizzle.value) == expected
    assert address.value == matrix.data_ptr()
    assert (list(shape), list(strides), list(box)) == ([256, 48], [256 * dtype.itemsize], [columns, 16])


def pairs(streams: int, device: str) -> Inputs:
    """The first two rows of each stream's only page."""
    _, rotation, cache = inputs(streams, 1, device)
    slots, positions = cache.slots.repeat_interleave(2), torch.arange(2, device=device).repeat(streams)
    qkv = torch.randn(2 * streams, 4 * KV_HEADS * DIM, device=device).bfloat16()
    return qkv, rotation, replace(cache, slots=slots, positions=positions)


@pytest.mark.usefixtures("_nvrtc")
def test_pairs_in_bfloat16_are_supported_on_hopper() -> None:
    qkv, rotation, cache = given = pairs(3, "meta")
    for gpu in GPUS.values():
        with assume(gpu):
            assert pair_attention.supports(*given) == (gpu.architecture == 90)
    assert not pair_attention.supports(qkv.to(torch.float16), rotation, cache)
    assert not pair_attention.supports(qkv, replace(rotation, norms=None), cache)
    assert not pair_attention.supports(qkv, replace(rotation, by_row=True), cache)
    assert not pair_attention.supports(*inputs(4, 1, "meta", dim=64))


@needs_gpu
@pytest.mark.parametrize("streams", [1, 5, 64, 300])
def test_attention_of_pairs_equals_its_reference(streams: int) -> None:
    qkv, rotation, cache = pairs(streams, DEVICE)
    expected_cache = replace(cache, keys=cache.keys.clone(), values=cache.values.clone())
    found = pair_attention.launch(qkv, rotation, cache)
    expected = paged_attention_reference(rotary_store_reference(qkv, rotation, expected_cache), expected_cache)
    torch.testing.assert_close(found.float(), expected.float(), atol=2**-6, rtol=2**-6)
    torch.testing.assert_close(cache.keys.float(), expected_cache.keys.float(), atol=2**-6, rtol=2**-6)
    assert torch.equal(cache.values, expected_cache.values)


@needs_gpu
@pytest.mark.parametrize(("rows", "pages"), [(1, 1), (8, 1), (64, 1), (1, 20), (3, 20), (8, 50), (16, 20)])
def test_attention_equals_its_reference(rows: int, pages: int) -> None:
    qkv, rotation, given = inputs(rows, pages, DEVICE)
    assert any(supported((qkv, rotation, given)))
    cache, expected_cache = copied(given), copied(given)
    found, expected = rotary_attention(qkv, rotation, cache), rotary_attention_reference(qkv, rotation, expected_cache)
    torch.testing.assert_close(found.float(), expected.float(), atol=2**-7, rtol=2**-6)
    assert torch.equal(cache.keys, expected_cache.keys)
    assert torch.equal(cache.values, expected_cache.values)
    assert torch.equal(rotary_attention(qkv, rotation, copied(given)), found)


@needs_gpu
@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("splits", [1, *(size for size, _ in CLUSTERS)])
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
    positions: list[int], pages: int, splits: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any number of programs per row; nothing that is not yet written is read."""
    if splits > 1:
        most = next(most for size, most in CLUSTERS if size == splits)
        positions = positions[: most // KV_HEADS]
    monkeypatch.setattr(prefetch_attention, "choose_splits", lambda *_: splits)
    qkv, rotation, plain = inputs(len(positions), pages, DEVICE)
    plain = replace(plain, positions=torch.tensor(positions, device=DEVICE))
    given = quantized(plain, dtype) if is_quantized(dtype) else copied(plain)
    poison_unwritten(given)
    cache = copied(given)
    found = prefetch_attention.launch(qkv, rotation, cache)
    # The key whose norm this kernel computed: PyTorch's may differ in the last bit.
    prefetch_attention.launch(qkv, rotation, plain)
    expected_rows = own_rows(plain)
    if is_quantized(dtype):
        (key, of_key), (value, of_value) = (quantize_rows(rows, dtype) for rows in expected_rows)
        expected_rows = [key, value, of_key, of_value]
    for stored, expected_row in zip(own_rows(cache), expected_rows, strict=True):
        assert torch.equal(bits(stored), bits(expected_row))
    # Over the cache that the launch wrote.
    wide = cache if is_quantized(dtype) else replace(cache, keys=cache.keys.float(), values=cache.values.float())
    query = rotary_store_reference(qkv, rotation, plain)
    expected = paged_attention_reference(query.float(), wide)
    torch.testing.assert_close(found.float(), expected, atol=2**-7, rtol=2**-6)
    assert torch.equal(prefetch_attention.launch(qkv, rotation, copied(given)), found)
    # Nothing but the rows' own positions is written.
    page, offset = cache.tables[cache.slots, cache.positions // PAGE], cache.positions % PAGE
    for pool, before in ((cache.keys, given.keys), (cache.values, given.values)):
        before[page, offset] = pool[page, offset]
        assert torch.equal(bits(pool), bits(before))
    for pool, before in zip(cache.scales or (), given.scales or (), strict=True):
        before[page, :, offset] = pool[page, :, offset]
        assert torch.equal(bits(pool), bits(before))
