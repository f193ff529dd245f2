# SPDX-License-Identifier: Apache-2.0
"""On a GPU, sums of 16-bit products have the bits of PyTorch's, which rounds the products: POLYVOX_TEST_DEVICE=cuda.

Without the norm of heads, whose last bit may differ. rounded_products.py checks the compiled code without a GPU.
"""

from dataclasses import replace

import pytest
import torch

from conftest import DEVICE
from gpu_only import needs_gpu
from kernels.test_layer_kernels import EPS, RotaryCase, random, rotary_case
from paged_pools import copied, own_rows, quantized
from polyvox.kernels.cache_attention import attend_decode
from polyvox.kernels.gpu import GPUS
from polyvox.kernels.kv_quantize import KVScales
from polyvox.kernels.norm import add_rms_norm, add_rms_norm_reference
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.rotary import rotary_store, rotary_store_reference

pytestmark = needs_gpu(GPUS)
dtypes = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
kv_dtypes = pytest.mark.parametrize("kv_dtype", [None, torch.int8])
ROWS = pytest.mark.parametrize("rows", [8, 300])


def case_on_gpu(rows: int, dtype: torch.dtype, kv_dtype: torch.dtype | None) -> RotaryCase:
    given = rotary_case([(7 * row) % 90 for row in range(rows)], 16, 8, 128, dtype, norm=False)
    cache = replace(given.cache, keys=given.cache.keys.nan_to_num(1.0), values=given.cache.values.nan_to_num(1.0))
    cache = cache if kv_dtype is None else quantized(cache, kv_dtype)
    rotation = replace(given.rotation, cos=given.rotation.cos.to(DEVICE), sin=given.rotation.sin.to(DEVICE))
    return RotaryCase(given.qkv.to(DEVICE), rotation, to_device(cache))


def to_device(cache: PagedRows) -> PagedRows:
    # By head in memory, as `to` leaves it.
    keys, values, tables, slots, positions = (
        rows.to(DEVICE) for rows in (cache.keys, cache.values, cache.tables, cache.slots, cache.positions)
    )
    scales = None if cache.scales is None else KVScales(*(rows.to(DEVICE) for rows in cache.scales))
    return PagedRows(keys, values, tables, slots, positions, scales)


def assert_same_rows(found: PagedRows, expected: PagedRows) -> None:
    for rows, expected_rows in zip(own_rows(found), own_rows(expected), strict=True):
        assert torch.equal(rows, expected_rows)


@dtypes
@kv_dtypes
@ROWS
def test_rotation_has_the_bits_of_its_reference(rows: int, dtype: torch.dtype, kv_dtype: torch.dtype | None) -> None:
    given = case_on_gpu(rows, dtype, kv_dtype)
    plain = given.copied()
    assert torch.equal(rotary_store(*given), rotary_store_reference(*plain))
    assert_same_rows(given.cache, plain.cache)


@dtypes
@kv_dtypes
@ROWS
def test_a_decoding_step_stores_the_bits_of_its_reference(
    rows: int, dtype: torch.dtype, kv_dtype: torch.dtype | None
) -> None:
    given = case_on_gpu(rows, dtype, kv_dtype)
    plain = copied(given.cache)
    attend_decode(*given)
    rotary_store_reference(given.qkv, given.rotation, plain)
    assert_same_rows(given.cache, plain)


@dtypes
def test_a_scaled_sum_has_the_bits_of_its_reference(dtype: torch.dtype) -> None:
    x, residual, weight, scale = (
        random(*shape, dtype=dtype, seed=seed).to(DEVICE)
        for seed, shape in enumerate([(64, 1024), (64, 1024), (1024,), (1024,)])
    )
    total, _ = add_rms_norm(x, residual, weight, EPS, scale)
    assert torch.equal(total, add_rms_norm_reference(x, residual, weight, EPS, scale)[0])
