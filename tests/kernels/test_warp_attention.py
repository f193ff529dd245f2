# SPDX-License-Identifier: Apache-2.0
"""Which rows warp_attention.py supports, and its results on a GPU: POLYVOX_TEST_DEVICE=cuda.

tests/conformance/test_warp_attention_on_cpu.py runs its source on a CPU.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from conftest import DEVICE
from polyvox.kernels import decode_attention, warp_attention
from polyvox.kernels.attention import paged_attention_reference
from polyvox.kernels.decode_attention import rotary_attention
from polyvox.kernels.gpu import GPUS, assume
from polyvox.kernels.kv_quantize import KVScales
from polyvox.kernels.launches import META, Launch, record_launches
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.quantized_rows import quantize_rows
from polyvox.kernels.rotary import HeadRotation, rotary_store_reference
from polyvox.kernels.warp_attention import DIM, GROUP, KV_HEADS, NAMES, PAGE

needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="runs on a GPU only: POLYVOX_TEST_DEVICE=cuda")
WIDTH = (GROUP + 2) * KV_HEADS * DIM


@pytest.fixture
def _nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warp_attention.source(), "_available", True)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def rotation(device: torch.device | str = META, norms: bool = True) -> HeadRotation:
    angles = torch.rand(1024, DIM // 2, device=device) * 6
    cos, sin = torch.cat([angles, angles], 1).cos(), torch.cat([-angles.sin(), angles.sin()], 1)
    gain = torch.ones(DIM, device=device, dtype=torch.bfloat16)
    return HeadRotation(cos.bfloat16(), sin.bfloat16(), (gain, gain) if norms else None, 1e-6)


def rows(count: int, width: int = WIDTH, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(count, width, device=META, dtype=dtype)


def cache_of(count: int, dtype: torch.dtype = torch.bfloat16, pages: int = 9, page: int = PAGE) -> PagedRows:
    pool = torch.empty(count * pages, page, KV_HEADS, DIM, device=META, dtype=dtype)
    slots = torch.arange(count, device=META)
    tables = torch.empty(count, pages, device=META, dtype=torch.int64)
    scales = torch.empty(count * pages, KV_HEADS, page, device=META)
    return PagedRows(pool, pool, tables, slots, slots, None if dtype == torch.bfloat16 else KVScales(scales, scales))


@pytest.mark.usefixtures("_nvrtc")
def test_many_rows_over_several_pages_are_supported_on_one_architecture() -> None:
    for gpu in GPUS.values():
        with assume(gpu):
            for dtype in NAMES:
                assert warp_attention.supports(rows(512), rotation(), cache_of(512, dtype)) == (gpu.architecture == 90)
    assert warp_attention.supports(rows(256), rotation(), cache_of(256))
    assert not warp_attention.supports(rows(255), rotation(), cache_of(255))
    assert warp_attention.supports(rows(17), rotation(), cache_of(17, torch.int8))
    assert warp_attention.supports(rows(17), rotation(), cache_of(17, torch.float8_e4m3fn))
    assert not warp_attention.supports(rows(16), rotation(), cache_of(16, torch.int8))
    assert not warp_attention.supports(rows(512), rotation(norms=False), cache_of(512))
    assert not warp_attention.supports(rows(512), rotation(), cache_of(512, pages=1))
    assert not warp_attention.supports(rows(512), rotation(), cache_of(512, page=32))
    assert not warp_attention.supports(rows(512), rotation(), cache_of(512, torch.float16))
    assert not warp_attention.supports(rows(512, dtype=torch.float16), rotation(), cache_of(512))
    assert not warp_attention.supports(rows(512, WIDTH + KV_HEADS * DIM), rotation(), cache_of(512))


def test_nothing_is_supported_without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warp_attention.source(), "_available", False)
    assert not warp_attention.supports(rows(512), rotation(), cache_of(512))
    assert not decode_attention.supports(rows(512), rotation(), cache_of(512))
    assert decode_attention.supports(rows(512), rotation(), cache_of(512, torch.int8))


@pytest.mark.usefixtures("_nvrtc")
def test_a_large_batch_is_one_launch() -> None:
    assert decode_attention.supports(rows(512), rotation(), cache_of(512))
    calls = [lambda: rotary_attention(rows(512), rotation(), cache_of(512))]
    assert record_launches(calls, GPUS[90]) == [Launch("warp_attention.cu:90", "", 90)]


def test_eight_programs_or_more_fit_into_a_multiprocessor() -> None:
    assert all(8 * (warp_attention.shared_bytes(dtype) + 1024) <= GPUS[90].shared for dtype in NAMES)


@needs_gpu
@pytest.mark.parametrize("dtype", NAMES)
def test_a_large_batch_equals_the_reference(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    count, pages = 300, 33
    device = torch.device(DEVICE)
    tables = 1 + torch.randperm(count * pages, device=device).view(count, pages)
    positions = torch.randint(0, pages * PAGE, (count,), device=device)
    keys, values = (torch.randn(count * pages + 1, PAGE, KV_HEADS, DIM, device=device).bfloat16() for _ in range(2))
    cache = PagedRows(keys, values, tables, torch.randperm(count, device=device), positions)
    if dtype != torch.bfloat16:
        (keys, of_keys), (values, of_values) = quantize_rows(keys, dtype), quantize_rows(values, dtype)
        scales = KVScales(*(pool.transpose(1, 2).contiguous() for pool in (of_keys, of_values)))
        cache = replace(cache, keys=keys, values=values, scales=scales)
    qkv, given = torch.randn(count, WIDTH, device=device).bfloat16(), rotation(device)
    written = copied(cache)
    found = warp_attention.launch(qkv, given, written)
    # Over the cache that the launch wrote: a key whose norm differs in the last bit may be the next value of float8.
    expected_cache = copied(cache)
    expected = paged_attention_reference(rotary_store_reference(qkv, given, expected_cache), written)
    for pool, expected_pool in ((written.keys, expected_cache.keys), (written.values, expected_cache.values)):
        apart, size = (pool.float() - expected_pool.float()).abs(), expected_pool.float().abs()
        assert bool((apart <= (1 if dtype == torch.int8 else size / 8)).all())
        assert bool((apart <= 2**-7 * size).float().mean() > 0.99)
    torch.testing.assert_close(found.float(), expected.float(), atol=2**-6, rtol=2**-6)
    order = torch.arange(count - 1, 0, -3, device=device)
    some = replace(copied(cache), slots=cache.slots[order], positions=positions[order])
    assert torch.equal(warp_attention.launch(qkv[order], given, some), found[order])


def copied(cache: PagedRows) -> PagedRows:
    scales = None if cache.scales is None else KVScales(*(pool.clone() for pool in cache.scales))
    return replace(cache, keys=cache.keys.clone(), values=cache.values.clone(), scales=scales)
