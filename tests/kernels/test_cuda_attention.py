# SPDX-License-Identifier: Apache-2.0
"""Which launches page_ and pair_attention.py support, and results on a GPU: POLYVOX_TEST_DEVICE=cuda.

tests/conformance/test_decode_attention_on_cpu.py runs their sources on a CPU.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from conftest import DEVICE
from gpu_only import needs_gpu
from paged_pools import by_head, copied
from polyvox.kernels import page_attention, pair_attention
from polyvox.kernels.attention import paged_attention_reference
from polyvox.kernels.cache_attention import attend_decode
from polyvox.kernels.decode_attention import rotary_attention_reference
from polyvox.kernels.gpu import GPUS, assume
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.rotary import HeadRotation, rotary_store_reference

DIM, PAGE, KV_HEADS = 128, 16, 8
Inputs = tuple[Tensor, HeadRotation, PagedRows]


@pytest.fixture
def _nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (page_attention, pair_attention):
        for architecture in GPUS:
            monkeypatch.setattr(module.source(architecture), "_available", True)


def inputs(rows: int, pages: int, device: str, dtype: torch.dtype = torch.bfloat16, dim: int = DIM) -> Inputs:
    """Rows in different slots of this many pages, at different positions."""

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    keys, values = (by_head(noise(rows * pages, PAGE, KV_HEADS, dim)) for _ in range(2))
    tables = torch.arange(rows * pages, device=device).view(rows, pages).flip(0)
    slots = torch.arange(rows, device=device)
    positions = torch.arange(rows, device=device) * 37 % (pages * PAGE)
    cache = PagedRows(keys, values, tables, slots, positions)
    tables_of_angles = [noise(pages * PAGE, dim) for _ in range(2)]
    rotation = HeadRotation(tables_of_angles[0], tables_of_angles[1], (noise(dim), noise(dim)), 1e-6)
    return noise(rows, 4 * KV_HEADS * dim), rotation, cache


def supported(given: Inputs, architecture: int = 90) -> bool:
    """By page_attention.py."""
    with assume(GPUS[architecture]):
        return page_attention.supports(*given)


@pytest.mark.usefixtures("_nvrtc")
def test_few_rows_in_bfloat16_are_supported_on_hopper() -> None:
    assert supported(inputs(128, 1, "meta"))
    assert not supported(inputs(129, 1, "meta"))
    assert not supported(inputs(1, 20, "meta"))


@pytest.mark.usefixtures("_nvrtc")
def test_other_launches_have_other_kernels() -> None:
    qkv, rotation, cache = given = inputs(8, 1, "meta")
    assert supported(given)
    assert not supported(inputs(8, 1, "meta", torch.float16))
    assert not supported(inputs(8, 1, "meta", dim=64))
    assert not supported((qkv, replace(rotation, norms=None), cache))
    assert not supported((qkv, rotation, replace(cache, keys=cache.keys.to(torch.float16))))
    assert not supported((qkv[:, : 3 * KV_HEADS * DIM], rotation, cache))  # one query head per KV head
    for architecture in (80, 86, 89, 100, 120):
        assert not supported(given, architecture)


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


@needs_gpu(pair_attention.ARCHITECTURES)
@pytest.mark.parametrize("streams", [1, 5, 64, 300])
def test_attention_of_pairs_equals_its_reference(streams: int) -> None:
    qkv, rotation, cache = pairs(streams, DEVICE)
    expected_cache = replace(cache, keys=cache.keys.clone(), values=cache.values.clone())
    found = pair_attention.launch(qkv, rotation, cache)
    expected = paged_attention_reference(rotary_store_reference(qkv, rotation, expected_cache), expected_cache)
    torch.testing.assert_close(found.float(), expected.float(), atol=2**-6, rtol=2**-6)
    torch.testing.assert_close(cache.keys.float(), expected_cache.keys.float(), atol=2**-6, rtol=2**-6)
    assert torch.equal(cache.values, expected_cache.values)


@needs_gpu(page_attention.ARCHITECTURES)
@pytest.mark.parametrize("rows", [1, 8, 64, 128])
def test_attention_over_a_page_equals_its_reference(rows: int) -> None:
    qkv, rotation, given = inputs(rows, 1, DEVICE)
    assert supported((qkv, rotation, given))
    cache, expected_cache = copied(given), copied(given)
    found, expected = attend_decode(qkv, rotation, cache), rotary_attention_reference(qkv, rotation, expected_cache)
    torch.testing.assert_close(found.float(), expected.float(), atol=2**-7, rtol=2**-6)
    assert torch.equal(cache.keys, expected_cache.keys)
    assert torch.equal(cache.values, expected_cache.values)
    assert torch.equal(attend_decode(qkv, rotation, copied(given)), found)
