# SPDX-License-Identifier: Apache-2.0
"""Small-batch linear layers against the reference implementation, in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.small_batch_linear import MAX_ROWS, VECTOR_ROWS, Norm, is_small_batch, project, project_reference

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interpreted")]

# Another summation order and one or two roundings: a few units in the last digit of numbers near 1.
CLOSE = {torch.float32: 3e-6, torch.float16: 4e-3}
# inputs and matrix rows: some fit no block, some take several iterations
SHAPES = [(256, 32), (48, 20), (320, 192), (1200, 24), (2304, 18)]
BOTH = [1, VECTOR_ROWS, VECTOR_ROWS + 1, MAX_ROWS]


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def case(rows: int, inputs: int, height: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Norm]:
    weight = (random(height, inputs, dtype=torch.float32, seed=1) / inputs**0.5).to(dtype)
    return random(rows, inputs, dtype=dtype), weight, Norm(1 + random(inputs, dtype=dtype, seed=2) / 4, 1e-6)


def types(rows: int) -> list[torch.dtype]:
    return [dtype for dtype in CLOSE if dtype != torch.float32 or rows <= VECTOR_ROWS]


CASES = [(rows, *shape, dtype) for rows in BOTH for shape in SHAPES for dtype in types(rows)]


@pytest.mark.parametrize(("rows", "inputs", "height", "dtype"), CASES)
def test_it_equals_its_reference_with_every_fused_operation(
    rows: int, inputs: int, height: int, dtype: torch.dtype
) -> None:
    x, weight, norm = case(rows, inputs, height, dtype)
    assert is_small_batch(x)
    residual = random(rows, height, dtype=dtype, seed=3)
    for given in ({}, {"norm": norm}, {"add": residual}, {"norm": norm, "gated": True}):
        found, expected = project(x, weight, **given), project_reference(x, weight, **given)
        torch.testing.assert_close(found, expected, atol=CLOSE[dtype], rtol=CLOSE[dtype])


@pytest.mark.parametrize("rows", BOTH)
def test_the_product_is_rounded_before_the_residual_is_added(rows: int) -> None:
    weight = torch.full((16, 16), 1.0).half()
    weight[:, 0] = 2**-11  # a product of 1 + 2**-11 rounds to 1 in float16; 1 + 2**-10 would not
    weight[:, 2:] = 0
    x, add = torch.ones(rows, 16).half(), torch.full((rows, 16), 2**-11).half()
    assert torch.equal(project(x, weight, add=add), project_reference(x, weight, add=add))
    assert (project(x, weight, add=add) == 1).all()


@pytest.mark.parametrize("rows", [2, VECTOR_ROWS, MAX_ROWS])
def test_a_row_has_the_same_bits_at_any_index_of_any_batch(rows: int) -> None:
    x, weight, norm = case(rows, 320, 24, torch.float16)
    among = project(x, weight, norm, gated=True)
    assert torch.equal(project(x.flip(0), weight, norm, gated=True).flip(0), among)
    others = torch.full_like(x, torch.nan)
    others[1] = x[1]
    assert torch.equal(project(others, weight, norm, gated=True)[1], among[1])


def test_rows_may_be_strided_and_keep_their_shape() -> None:
    x, weight, norm = case(6, 64, 16, torch.float16)
    pairs = x.view(3, 2, 64)
    assert torch.equal(project(pairs[:, -1], weight, norm), project(x[1::2].contiguous(), weight, norm))
    assert project(pairs, weight, norm, add=torch.zeros(3, 2, 16).half()).shape == (3, 2, 16)


def test_large_and_empty_batches_use_separate_launches() -> None:
    x, weight, norm = case(MAX_ROWS + 1, 64, 16, torch.float16)
    assert is_small_batch(x[:1])
    assert not any(is_small_batch(rows) for rows in (x, x[:0], x[: VECTOR_ROWS + 1].float()))
    assert torch.equal(project(x, weight, norm), project_reference(x, weight, norm))
    with kernels.disabled():
        assert not is_small_batch(x[:1])
