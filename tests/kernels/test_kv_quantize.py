# SPDX-License-Identifier: Apache-2.0
"""A quantised KV cache: its roundings, and its kernels against their reference implementations.

Kernels that write float8 are compared on a GPU only (benchmarks/kernels.py): Triton's interpreter rounds wrongly.
"""

import pytest
import torch
from torch import Tensor

from kernels.test_attention_kernel import case
from kernels.test_layer_kernels import decode_case, rotary_case
from paged_pools import quantized
from polyvox.kernels.attention import paged_attention, paged_attention_reference
from polyvox.kernels.cache_attention import attend_decode
from polyvox.kernels.decode_attention import rotary_attention_reference
from polyvox.kernels.gpu import GPUS
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.quantized_rows import dequantize_rows, quantize_rows, supports
from polyvox.kernels.rotary import rotary_store, rotary_store_reference

TYPES = (torch.int8, torch.float8_e4m3fn)
types = pytest.mark.parametrize("dtype", TYPES)


def noise_db(x: Tensor, dtype: torch.dtype) -> float:
    error = dequantize_rows(*quantize_rows(x, dtype), torch.float32) - x
    return float(10 * torch.log10(error.square().mean() / x.square().mean()))


@types
def test_the_largest_element_of_a_head_is_exact_and_zeros_stay_zeros(dtype: torch.dtype) -> None:
    x = torch.tensor([[1e-3, -5e-4, 0.0], [-3e4, 1.0, 2.5e4], [0.0, 0.0, 0.0]])
    again = dequantize_rows(*quantize_rows(x, dtype), torch.float32)
    torch.testing.assert_close(again[0, 0], x[0, 0])
    torch.testing.assert_close(again[1, 0], x[1, 0])
    assert not again[2].any()


def test_the_noise_is_that_of_the_type() -> None:
    x = torch.randn(400, 128, generator=torch.Generator().manual_seed(0)) * torch.logspace(-4, 4, 400)[:, None]
    assert -45 < noise_db(x, torch.int8) < -41
    assert -33 < noise_db(x, torch.float8_e4m3fn) < -31


def test_only_float8_depends_on_the_gpu() -> None:
    assert [architecture for architecture in GPUS if not supports(torch.float8_e4m3fn, architecture)] == [80, 86]
    assert all(supports(torch.int8, architecture) for architecture in GPUS)


@pytest.mark.usefixtures("interpreted")
@types
@pytest.mark.parametrize(
    ("positions", "heads", "kv_heads", "dim", "page"),
    [([0, 15, 16, 63, 64, 130], 4, 2, 32, 16), ([70, 3], 6, 2, 24, 16), ([9, 14], 4, 2, 16, 15)],
)
def test_attention_equals_its_reference_and_reads_nothing_unwritten(
    positions: list[int], heads: int, kv_heads: int, dim: int, page: int, dtype: torch.dtype
) -> None:
    q, cache = case(positions, heads, kv_heads, dim, page)
    cache = quantized(cache, dtype)
    torch.testing.assert_close(paged_attention(q, cache), paged_attention_reference(q, cache), atol=3e-6, rtol=3e-6)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("positions", [[0, 17, 40], [31]])
def test_rotation_stores_what_its_reference_stores(positions: list[int]) -> None:
    given = rotary_case(positions, 4, 2, 32, torch.float32)
    given = given._replace(cache=quantized(given.cache, torch.int8))
    plain = given.copied()
    torch.testing.assert_close(rotary_store(*given), rotary_store_reference(*plain), atol=2e-6, rtol=2e-6)
    assert given.cache.scales is not None
    assert int(given.cache.scales.keys.isfinite().sum()) == len(positions) * 2
    assert_same_cache(given.cache, plain.cache)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("positions", "heads", "kv_heads", "dim"),
    [([0, 17, 90], 4, 2, 32), ([128, 300], 2, 1, 32), ([*range(0, 70, 5), 64, 65, 130], 2, 1, 16)],
)
def test_a_decoding_step_equals_its_reference(positions: list[int], heads: int, kv_heads: int, dim: int) -> None:
    given = decode_case(positions, heads, kv_heads, dim, torch.float32)
    given = given._replace(cache=quantized(given.cache, torch.int8))
    plain = given.copied()
    assert_close_by_steps(attend_decode(*given), rotary_attention_reference(*plain))
    assert_same_cache(given.cache, plain.cache)


def assert_close_by_steps(found: Tensor, plain: Tensor) -> None:
    """A rounding of the row's own key may differ by one step."""
    torch.testing.assert_close(found, plain, atol=2e-2, rtol=2e-2)
    assert (found - plain).square().mean() < 1e-4 * plain.square().mean()


def assert_same_cache(found: PagedRows, plain: PagedRows) -> None:
    """The same values but for single steps, and the same scales."""
    assert found.scales is not None
    assert plain.scales is not None
    for ours, theirs in zip(found.scales, plain.scales, strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)
    for ours, theirs in ((found.keys, plain.keys), (found.values, plain.values)):
        steps = (ours.int() - theirs.int()).abs()
        assert int(steps.max()) <= 1
        assert float((steps > 0).float().mean()) < 0.01
