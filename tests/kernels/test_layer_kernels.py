# SPDX-License-Identifier: Apache-2.0
"""Norm, gate and rotation against their reference implementations, in Triton's interpreter."""

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from paged_pools import copied
from polyvox.kernels.cache_attention import attend_decode
from polyvox.kernels.decode_attention import rotary_attention_reference
from polyvox.kernels.gpu import GPUS, assume
from polyvox.kernels.norm import add_rms_norm, add_rms_norm_reference, rms_norm, rms_norm_reference
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.rotary import HeadRotation, rotary_store, rotary_store_reference
from polyvox.kernels.silu_mul import silu_mul, silu_mul_reference

pytestmark = pytest.mark.usefixtures("interpreted")

EPS = 1e-6
# Another summation order may change a rounding: one unit in the last digit of float16, a few of float32.
CLOSE = {torch.float32: 1e-6, torch.float16: 2e-3}
types = pytest.mark.parametrize("dtype", CLOSE)


def assert_close(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance, equal_nan=True)


def assert_close_caches(ours: PagedRows, theirs: PagedRows, tolerance: float) -> None:
    assert_close(ours.keys, theirs.keys, tolerance)
    assert_close(ours.values, theirs.values, tolerance)


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@types
@pytest.mark.parametrize("shape", [(1, 32), (3, 2048), (2, 5, 48), (0, 16)])
def test_the_norm_equals_its_reference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = random(*shape, dtype=dtype), random(shape[-1], dtype=dtype, seed=1)
    assert_close(rms_norm(x, weight, EPS), rms_norm_reference(x, weight, EPS), CLOSE[dtype])


@types
@pytest.mark.parametrize(("shape", "scaled"), [((3, 1024), False), ((2, 2, 40), True)])
def test_the_norm_of_a_sum_equals_its_reference_and_the_sum_is_exact(
    shape: tuple[int, ...], scaled: bool, dtype: torch.dtype
) -> None:
    x, residual = random(*shape, dtype=dtype), random(*shape, dtype=dtype, seed=1)
    weight = random(shape[-1], dtype=dtype, seed=2)
    scale = random(shape[-1], dtype=dtype, seed=3) if scaled else None
    total, normed = add_rms_norm(x, residual, weight, EPS, scale)
    plain_total, plain_normed = add_rms_norm_reference(x, residual, weight, EPS, scale)
    assert torch.equal(total, plain_total)
    assert_close(normed, plain_normed, CLOSE[dtype])


def test_the_norm_reads_the_rounded_sum() -> None:
    residual, x = torch.full((1, 16), 2048.0).half(), torch.ones(1, 16).half()  # 2049 is not a float16
    x[0, 0] = 2.0
    weight = torch.ones(16).half()
    assert torch.equal(add_rms_norm(x, residual, weight, EPS)[1], rms_norm(residual + x, weight, EPS))


@types
@pytest.mark.parametrize("shape", [(3, 2 * 1536), (2, 1, 2 * 40), (5, 2)])
def test_the_gate_equals_its_reference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    gate_up = 4 * random(*shape, dtype=dtype)
    assert_close(silu_mul(gate_up), silu_mul_reference(gate_up), CLOSE[dtype])


class RotaryCase(NamedTuple):
    """The arguments of `rotary_store` and `attend_decode`."""

    qkv: Tensor
    rotation: HeadRotation
    cache: PagedRows

    def copied(self) -> "RotaryCase":
        """With a copy of the cache, which a call changes."""
        return self._replace(cache=copied(self.cache))

    def reversed(self) -> "RotaryCase":
        """The rows in the opposite order."""
        slots, positions = (rows.flip(0).contiguous() for rows in (self.cache.slots, self.cache.positions))
        return RotaryCase(
            self.qkv.flip(0).contiguous(), self.rotation, replace(self.cache, slots=slots, positions=positions)
        )


def rotary_case(
    positions: list[int], heads: int, kv_heads: int, dim: int, dtype: torch.dtype, norm: bool = True, page: int = 16
) -> RotaryCase:
    width = max(positions) // page + 1
    rows = len(positions)
    order = torch.randperm(rows * width, generator=torch.Generator().manual_seed(1)) + 1
    angles = torch.arange(max(positions) + 3)[:, None] / 10 ** (torch.arange(dim) % (dim // 2) / dim)
    sign = torch.where(torch.arange(dim) < dim // 2, -1, 1)
    # By head, as on a GPU.
    keys, values = torch.full((2, rows * width + 1, kv_heads, page, dim), torch.nan, dtype=dtype).transpose(2, 3)
    norms = (random(dim, dtype=dtype, seed=3), random(dim, dtype=dtype, seed=4)) if norm else None
    slots = torch.arange(rows).flip(0).contiguous()
    return RotaryCase(
        random(rows, (heads + 2 * kv_heads) * dim, dtype=dtype),
        HeadRotation(angles.cos().to(dtype), (angles.sin() * sign).to(dtype), norms, EPS),
        PagedRows(keys, values, order.view(rows, width), slots, torch.tensor(positions)),
    )


@types
@pytest.mark.parametrize(
    ("positions", "heads", "kv_heads", "dim", "norm", "page"),
    [
        ([0, 17, 40], 16, 8, 128, True, 16),
        ([3, 31], 4, 2, 32, False, 16),
        ([2, 5, 1], 3, 1, 24, True, 4),
        ([14], 5, 5, 8, True, 15),
    ],
)
def test_rotation_equals_its_reference_and_writes_only_its_own_rows(
    positions: list[int], heads: int, kv_heads: int, dim: int, norm: bool, page: int, dtype: torch.dtype
) -> None:
    given = rotary_case(positions, heads, kv_heads, dim, dtype, norm, page)
    plain = given.copied()
    assert_close(rotary_store(*given), rotary_store_reference(*plain), 2 * CLOSE[dtype])
    assert_close_caches(given.cache, plain.cache, 2 * CLOSE[dtype])
    assert given.cache.keys.isfinite().sum() == len(positions) * kv_heads * dim


def test_rotation_gives_a_row_the_same_bits_at_any_index() -> None:
    given = rotary_case([0, 17, 40], 4, 2, 32, torch.float32)
    turned = given.copied().reversed()
    assert torch.equal(rotary_store(*turned).flip(0), rotary_store(*given))
    assert_close_caches(turned.cache, given.cache, 0)


def test_angles_by_row_rotate_as_those_of_the_rows_positions() -> None:
    given = rotary_case([0, 17, 40], 4, 2, 32, torch.float32)
    cos, sin = (angles[given.cache.positions] for angles in (given.rotation.cos, given.rotation.sin))
    by_row = given.copied()._replace(rotation=replace(given.rotation, cos=cos, sin=sin, by_row=True))
    plain = by_row.copied()
    q = rotary_store(*given)
    assert torch.equal(rotary_store(*by_row), q)
    assert_close_caches(by_row.cache, given.cache, 0)
    assert_close(rotary_store_reference(*plain), q, CLOSE[torch.float32])


def decode_case(
    positions: list[int], heads: int, kv_heads: int, dim: int, dtype: torch.dtype, norm: bool = True, page: int = 16
) -> RotaryCase:
    """With a cache that is written before each row's position and NaN after it."""
    given = rotary_case(positions, heads, kv_heads, dim, dtype, norm, page)
    cache, generator = given.cache, torch.Generator().manual_seed(9)
    for slot, position in zip(cache.slots.tolist(), positions, strict=True):
        for p in range(position):
            key, value = torch.randn(2, kv_heads, dim, generator=generator).to(dtype)
            cache.keys[cache.tables[slot, p // page], p % page] = key
            cache.values[cache.tables[slot, p // page], p % page] = value
    return given


@types
@pytest.mark.parametrize(
    ("positions", "heads", "kv_heads", "dim", "norm", "page"),
    [
        ([0, 17, 90], 4, 2, 32, True, 16),
        ([64, 65], 16, 8, 128, True, 16),
        ([128, 300], 4, 2, 32, True, 16),
        ([3, 31], 4, 4, 32, False, 16),
        ([2, 3, 1], 3, 1, 24, True, 4),
        ([*range(0, 70, 5), 64, 65, 130], 2, 1, 16, True, 16),  # more than SMALL_BATCH_ROWS
    ],
)
def test_a_decoding_step_equals_its_reference(
    positions: list[int], heads: int, kv_heads: int, dim: int, norm: bool, page: int, dtype: torch.dtype
) -> None:
    given = decode_case(positions, heads, kv_heads, dim, dtype, norm, page)
    plain = given.copied()
    assert_close(attend_decode(*given), rotary_attention_reference(*plain), 3 * CLOSE[dtype])
    assert_close_caches(given.cache, plain.cache, 2 * CLOSE[dtype])


@pytest.mark.parametrize("multiprocessors", [1, 8])
def test_programs_divide_the_positions_of_a_row_if_the_gpu_has_idle_multiprocessors(multiprocessors: int) -> None:
    """One program per head, or two, of which the first has two of three blocks; otherwise one for each block."""
    given = decode_case([128, 300], 4, 2, 32, torch.float16)
    by_block = attend_decode(*given)
    with assume(replace(GPUS[90], multiprocessors=multiprocessors)):
        found = attend_decode(*given)
    assert_close(found, by_block, CLOSE[torch.float16])
    assert not torch.equal(found, by_block)  # the sums are in another order


def test_a_decoding_step_gives_a_row_the_same_bits_at_any_index() -> None:
    given = decode_case([0, 17, 40], 4, 2, 32, torch.float32)
    found = attend_decode(*given)
    assert torch.equal(attend_decode(*given.reversed()).flip(0), found)
