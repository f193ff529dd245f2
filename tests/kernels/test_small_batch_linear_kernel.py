# SPDX-License-Identifier: Apache-2.0
"""Small-batch linear layers against the reference implementation, in Triton's interpreter."""

from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.fused_linear import choose, project, project_add, project_add_reference, project_reference
from polyvox.kernels.gpu import GPUS
from polyvox.kernels.linear_plan import MAX_ROWS, choose_plan, row_block
from polyvox.kernels.norm import rms_norm_reference
from polyvox.kernels.pre_norm import Norm, PreNorm, embed_pre_norm, pair_pre_norm, pre_norm, pre_norm_reference
from polyvox.kernels.products import PLAIN
from polyvox.kernels.quantized_matrix import Matrix, QuantizedMatrix, quantize_matrix
from polyvox.kernels.quantized_rows import LARGEST
from polyvox.kernels.small_batch_linear import MAX_QUANTIZED_ROWS, supports

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interpreted")]

# Another summation order and one or two roundings: a few units in the last digit of numbers near 1.
CLOSE = {torch.float32: 3e-6, torch.float16: 4e-3}
# inputs and matrix rows: some fit no block, some take several iterations
SHAPES = [(256, 32), (48, 20), (320, 192), (1200, 24), (2304, 18)]
BOTH = [1, 2, MAX_ROWS]


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def case(rows: int, inputs: int, height: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Norm]:
    weight = (random(height, inputs, dtype=torch.float32, seed=1) / inputs**0.5).to(dtype)
    return random(rows, inputs, dtype=dtype), weight, Norm(1 + random(inputs, dtype=dtype, seed=2) / 4, 1e-6)


def types(rows: int) -> list[torch.dtype]:
    return [dtype for dtype in CLOSE if dtype != torch.float32 or rows == 1]


CASES = [(rows, *shape, dtype) for rows in BOTH for shape in SHAPES for dtype in types(rows)]


@pytest.mark.parametrize(("rows", "inputs", "height", "dtype"), CASES)
def test_it_equals_its_reference_with_every_fused_operation(
    rows: int, inputs: int, height: int, dtype: torch.dtype
) -> None:
    assert_equals_reference(*case(rows, inputs, height, dtype))


# Tiles of rows, and shapes of one and several iterations.
QUANTIZED_CASES = [
    (1, 48, 20, torch.float32), (1, 1200, 24, torch.float32), (1, 2304, 18, torch.float16),
    (2, 48, 20, torch.float16), (MAX_ROWS, 1200, 24, torch.float16), (70, 520, 24, torch.float16),
]  # fmt: skip


@pytest.mark.parametrize("quantized", LARGEST)
@pytest.mark.parametrize(("rows", "inputs", "height", "dtype"), QUANTIZED_CASES)
def test_quantised_weights_equal_their_reference(
    rows: int, inputs: int, height: int, dtype: torch.dtype, quantized: torch.dtype
) -> None:
    x, weight, norm = case(rows, inputs, height, dtype)
    # Channels of different size have different scales.
    weight *= torch.logspace(-1, 1, height)[:, None].to(dtype)
    matrix = quantize_matrix(weight, quantized)
    assert_equals_reference(x, matrix, norm)
    error = (project(x, matrix) - project_reference(x, matrix_of(matrix, dtype))).abs().max()
    assert error < 10 * CLOSE[dtype] * project_reference(x, weight).std()


def matrix_of(matrix: QuantizedMatrix, dtype: torch.dtype) -> Tensor:
    return (matrix.values.float() * matrix.scales[:, None]).to(dtype)


def assert_equals_reference(x: Tensor, weight: Matrix, norm: Norm) -> None:
    """With every fused operation."""
    rows, dtype = len(x), x.dtype
    height = len(weight) if isinstance(weight, Tensor) else len(weight.scales)
    assert supports(x, weight)
    close = partial(torch.testing.assert_close, atol=CLOSE[dtype], rtol=CLOSE[dtype])
    close(project(x, weight), project_reference(x, weight))
    before = pre_norm(x, norm)
    for gated in (False, True):
        close(project(before, weight, gated), project_reference(before, weight, gated))
    residual, next_norm = (
        random(rows, height, dtype=dtype, seed=3),
        Norm(norm.gain[0].expand(height).contiguous(), 1e-6),
    )
    found_add = project_add(x, weight, residual, next_norm)
    expected_add = project_add_reference(x, weight, residual, next_norm)
    close(found_add.rows, expected_add.rows)
    assert torch.equal(found_add.gained, found_add.rows * next_norm.gain)
    torch.testing.assert_close(found_add.squares.sum(-1), found_add.rows.float().square().sum(-1))


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("biased", [False, True])
def test_a_pair_is_a_row_and_a_row_of_a_table(biased: bool, dtype: torch.dtype) -> None:
    table, _, norm = case(5, 320, 24, dtype)
    rows, bias = table[1:4].flip(1)[:, :320], table[4] if biased else None
    ids = torch.tensor([[4, 9], [0, 9], [2, 9]])[:, 0]  # a column of a frame's codes
    found = pair_pre_norm(rows, bias, table, ids, norm)
    expected = pre_norm_reference(torch.stack([rows if bias is None else rows + bias, table[ids]], dim=1), norm)
    assert found.rows.shape == (3, 2, 320)
    assert torch.equal(found.rows, expected.rows)
    assert torch.equal(found.gained, expected.gained)
    torch.testing.assert_close(found.squares, expected.squares)
    with kernels.disabled():
        assert torch.equal(pair_pre_norm(rows, bias, table, ids, norm).rows, expected.rows)


@pytest.mark.parametrize("dtype", CLOSE)
def test_a_divided_norm_equals_the_whole_norm(dtype: torch.dtype) -> None:
    x, weight, norm = case(3, 320, 24, dtype)
    found, expected = pre_norm(x, norm), pre_norm_reference(x, norm)
    assert torch.equal(found.gained, expected.gained)
    torch.testing.assert_close(found.squares, expected.squares)
    ids = torch.tensor([[2], [0]])
    for looked_up, row in zip(embed_pre_norm(ids, x, norm, starts_early=True)[:3], found[:3], strict=True):
        assert torch.equal(looked_up, row[ids])
    whole = project_reference(rms_norm_reference(x, norm.gain, norm.eps), weight)
    for index, row in enumerate(x):  # one at a time: more have no kernel in float32
        torch.testing.assert_close(
            project(pre_norm(row[None], norm), weight)[0], whole[index], atol=2 * CLOSE[dtype], rtol=2 * CLOSE[dtype]
        )


@pytest.mark.parametrize("rows", BOTH)
def test_the_product_is_rounded_before_the_residual_is_added(rows: int) -> None:
    weight = torch.full((16, 16), 1.0).half()
    weight[:, 0] = 2**-11  # a product of 1 + 2**-11 rounds to 1 in float16; 1 + 2**-10 would not
    weight[:, 2:] = 0
    x, add = torch.ones(rows, 16).half(), torch.full((rows, 16), 2**-11).half()
    found = project_add(x, weight, add, Norm(torch.ones(16).half(), 1e-6)).rows
    assert torch.equal(found, add + project_reference(x, weight))
    assert (found == 1).all()


@pytest.mark.parametrize("rows", [2, 16, MAX_ROWS, 130])
def test_a_row_has_the_same_bits_at_any_index_of_any_batch(rows: int) -> None:
    x, dense, norm = case(rows, 320, 24, torch.float16)
    weight: Matrix = dense if rows <= MAX_ROWS else quantize_matrix(dense, torch.int8)
    dense_down = dense.T[:, : len(dense) // 2].contiguous()
    down: Matrix = dense_down if rows <= MAX_ROWS else quantize_matrix(dense_down, torch.int8)

    def run(rows: Tensor) -> PreNorm:
        return project_add(project(pre_norm(rows, norm), weight, gated=True), down, rows, norm)

    among = run(x)
    flipped = run(x.flip(0))
    others = torch.full_like(x, torch.nan)
    others[1] = x[1]
    alone = run(others)
    for found, turned, single in zip(among[:3], flipped[:3], alone[:3], strict=True):
        assert torch.equal(turned.flip(0), found)
        assert torch.equal(single[1], found[1])


def test_rows_may_be_strided_and_keep_their_shape() -> None:
    x, weight, norm = case(6, 64, 16, torch.float16)
    before = pre_norm(x.view(3, 2, 64), norm)
    assert torch.equal(project(before.last(), weight), project(pre_norm(x[1::2], norm), weight))
    made = project_add(x.view(3, 2, 64), weight, torch.zeros(3, 2, 16).half(), Norm(norm.gain[:16], 1e-6))
    assert made.rows.shape == made.gained.shape == (3, 2, 16)
    assert project(made.last(), weight[:, :16].contiguous()).shape == (3, 16)


def test_large_and_empty_batches_use_separate_launches() -> None:
    x, weight, norm = case(MAX_ROWS + 1, 64, 16, torch.float16)
    assert supports(x[:1], weight)
    assert not any(supports(rows, weight) for rows in (x, x[:0], x[:2].float()))
    assert choose(x, weight, PLAIN) is None
    for product_of_too_many_rows in (
        lambda: project(pre_norm(x, norm), weight),
        lambda: project_add(x, weight, x[:, :16], Norm(norm.gain[:16], 1e-6)),
    ):
        with pytest.raises(AssertionError):
            product_of_too_many_rows()
    with kernels.disabled():
        assert not supports(x[:1], weight)
    quantized = quantize_matrix(weight, torch.int8)
    assert supports(x, quantized)
    assert not supports(x[:1].expand(MAX_QUANTIZED_ROWS + 1, -1), quantized)


@pytest.mark.parametrize("architecture", GPUS)
def test_the_gpu_changes_only_how_many_loads_are_in_flight(architecture: int) -> None:
    gpu = GPUS[architecture]
    shapes = ((4096, 1024, False), (12288, 2048, False), (1024, 3072, True), (2048, 6144, True))
    for rows, (height, inputs, add), bytes_each in product((1, 5, 17, MAX_ROWS, 200), shapes, (2, 1)):
        weight = absent_matrix(height, inputs, quantized=bytes_each == 1)
        if rows > MAX_ROWS and bytes_each == 2:
            continue
        plan = choose_plan(rows, weight, add, gpu=gpu)
        assert replace(plan, stages=0) == replace(choose_plan(rows, weight, add, gpu=GPUS[90]), stages=0)
        if rows > 1:
            assert plan.stages >= 2
            assert plan.stages * plan.depth * (plan.height * bytes_each + row_block(rows) * 2) <= gpu.shared


def test_a_matrix_with_few_rows_is_divided_by_columns() -> None:
    matrices = {height: absent_matrix(height, 2048) for height in (512, 1024, 2048, 8192)}
    splits = [choose_plan(16, matrix, add=True, gpu=GPUS[90]).splits for matrix in matrices.values()]
    assert splits == [16, 8, 4, 1]
    assert choose_plan(16, matrices[1024], gpu=GPUS[90]).splits == 1
    assert choose_plan(1, matrices[1024], add=True, gpu=GPUS[90]).splits == 1


def absent_matrix(height: int, inputs: int, quantized: bool = False) -> Matrix:
    """A matrix without memory."""
    weight = torch.empty(height, inputs, dtype=torch.bfloat16, device="meta")
    return quantize_matrix(weight, torch.int8) if quantized else weight
