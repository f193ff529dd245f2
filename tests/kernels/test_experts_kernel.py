# SPDX-License-Identifier: Apache-2.0
"""Routing and products of experts against their reference implementations, in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from polyvox.kernels.experts import (
    combine,
    combine_reference,
    expert_tile,
    multiply_experts,
    multiply_experts_reference,
    route,
    route_reference,
)
from polyvox.kernels.gpu import GPUS, Gpu
from polyvox.kernels.quantized_matrix import quantize_matrix
from polyvox.kernels.quantized_rows import LARGEST
from polyvox.kernels.tiles import SPARE

pytestmark = pytest.mark.usefixtures("interpreted")

CLOSE = {torch.float32: 1e-5, torch.float16: 4e-3}
types = pytest.mark.parametrize("dtype", CLOSE)
shapes = pytest.mark.parametrize(("rows", "experts", "chosen"), [(1, 4, 2), (5, 12, 6), (40, 16, 3), (70, 4, 2)])


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@types
@shapes
@pytest.mark.parametrize("normalize", [False, True])
def test_the_routing_equals_its_reference(
    rows: int, experts: int, chosen: int, normalize: bool, dtype: torch.dtype
) -> None:
    logits = random(rows, experts + 1, dtype=dtype)[:, :experts]
    ours, (theirs, weights) = route(logits, chosen, normalize), route_reference(logits, chosen, normalize)
    assert torch.equal(ours.chosen.long(), theirs)
    torch.testing.assert_close(ours.weights, weights, atol=CLOSE[dtype], rtol=CLOSE[dtype])


@shapes
def test_every_pair_is_in_the_list_of_its_expert_once(rows: int, experts: int, chosen: int) -> None:
    routing = route(random(rows, experts, dtype=torch.float32), chosen, True)
    listed = [
        (expert, pair)
        for expert in range(experts)
        for pair in routing.pairs[expert, : int(routing.counts[expert])].tolist()
    ]
    expected = [(expert, index) for index, expert in enumerate(routing.chosen.flatten().tolist())]
    assert sorted(listed) == sorted(expected)


@types
@shapes
def test_the_products_equal_their_reference(rows: int, experts: int, chosen: int, dtype: torch.dtype) -> None:
    hidden, inner = 48, 20
    x = random(rows, hidden, dtype=dtype)
    gate_up = random(experts, 2 * inner, hidden, dtype=dtype, seed=1) / hidden**0.5
    down = random(experts, hidden, inner, dtype=dtype, seed=2) / inner**0.5
    routing = route(random(rows, experts, dtype=dtype, seed=3), chosen, True)
    ours = multiply_experts(x, routing, gate_up, down)
    theirs = multiply_experts_reference(x, routing.chosen.long(), routing.weights, gate_up, down)
    torch.testing.assert_close(ours, theirs, atol=CLOSE[dtype], rtol=CLOSE[dtype])


@pytest.mark.parametrize("quantized", LARGEST)
def test_the_products_of_quantised_experts_equal_their_reference(quantized: torch.dtype) -> None:
    rows, experts, hidden, inner = 9, 4, 48, 20
    x = random(rows, hidden, dtype=torch.float16)
    gate_up = random(experts, 2 * inner, hidden, dtype=torch.float16, seed=1) / hidden**0.5
    gate_up *= torch.logspace(-0.5, 0.5, 2 * inner)[:, None]  # channels of different size have different scales
    down = random(experts, hidden, inner, dtype=torch.float16, seed=2) / inner**0.5
    routing = route(random(rows, experts, dtype=torch.float16, seed=3), 2, True)
    matrices = quantize_matrix(gate_up, quantized), quantize_matrix(down, quantized)
    ours = multiply_experts(x, routing, *matrices)
    chosen = routing.chosen.long()
    theirs = multiply_experts_reference(x, chosen, routing.weights, *matrices)
    torch.testing.assert_close(ours, theirs, atol=CLOSE[torch.float16], rtol=CLOSE[torch.float16])
    exact = multiply_experts_reference(x, chosen, routing.weights, gate_up, down)
    assert (ours - exact).square().mean() < 0.01 * exact.square().mean()


@types
def test_all_rows_may_choose_the_same_experts(dtype: torch.dtype) -> None:
    """One expert then has several tiles, and most have none."""
    rows, experts, hidden, inner = 50, 16, 32, 16
    logits = torch.arange(experts).expand(rows, experts).to(dtype)
    x = random(rows, hidden, dtype=dtype)
    gate_up = random(experts, 2 * inner, hidden, dtype=dtype, seed=1) / hidden**0.5
    down = random(experts, hidden, inner, dtype=dtype, seed=2) / inner**0.5
    routing = route(logits, 3, True)
    assert routing.counts.tolist() == [0] * 13 + [rows] * 3
    theirs = multiply_experts_reference(x, routing.chosen.long(), routing.weights, gate_up, down)
    torch.testing.assert_close(
        multiply_experts(x, routing, gate_up, down), theirs, atol=CLOSE[dtype], rtol=CLOSE[dtype]
    )


def test_a_row_has_the_same_output_alone_and_in_a_batch() -> None:
    hidden, inner, experts = 32, 16, 8
    x, logits = random(12, hidden, dtype=torch.float32), random(12, experts, dtype=torch.float32, seed=3)
    gate_up = random(experts, 2 * inner, hidden, dtype=torch.float32, seed=1)
    down = random(experts, hidden, inner, dtype=torch.float32, seed=2)
    together = multiply_experts(x, route(logits, 2, True), gate_up, down)
    alone = multiply_experts(x[5:6], route(logits[5:6], 2, True), gate_up, down)
    assert torch.equal(together[5:6], alone)


@types
@pytest.mark.parametrize("with_residual", [False, True])
def test_the_sum_equals_its_reference(with_residual: bool, dtype: torch.dtype) -> None:
    outputs, shared = random(3, 4, 40, dtype=dtype), random(3, 40, dtype=dtype, seed=1)
    gate = random(3, 5, dtype=dtype, seed=2)[:, 4:]
    residual = random(3, 40, dtype=dtype, seed=3) if with_residual else None
    ours, theirs = combine(outputs, shared, gate, residual), combine_reference(outputs, shared, gate, residual)
    torch.testing.assert_close(ours, theirs, atol=CLOSE[dtype], rtol=CLOSE[dtype])


@pytest.mark.parametrize("gpu", GPUS.values(), ids=str)
@pytest.mark.parametrize("num_pairs", [6, 48, 96, 1536, 12288])
def test_the_tiles_fit_every_architecture(num_pairs: int, gpu: Gpu) -> None:
    assert expert_tile(num_pairs, 128, torch.bfloat16, gpu).shared + SPARE <= gpu.shared
