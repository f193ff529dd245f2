# SPDX-License-Identifier: Apache-2.0
"""A layer with experts: fused products for small batches."""

import pytest
import torch

from polyvox.kernels import small_batch_linear
from polyvox.kernels.fused_linear import project
from polyvox.kernels.linear_plan import MAX_ROWS
from polyvox.kernels.norm import rms_norm
from polyvox.kernels.pre_norm import Norm, PreNorm, pre_norm
from polyvox.kernels.products import PLAIN, FusedProducts
from polyvox.kernels.quantized_matrix import Matrix, QuantizedMatrix
from polyvox.kernels.small_batch_linear import MAX_QUANTIZED_ROWS
from polyvox.models.layers import linear
from polyvox.models.layers.moe import SparseMLP
from polyvox.models.layers.transformer_config import ExpertsConfig

HIDDEN = 32


@pytest.mark.parametrize("num_rows", [3, MAX_ROWS, MAX_ROWS + 1, MAX_QUANTIZED_ROWS])
@torch.no_grad()
def test_the_router_of_quantised_experts_is_fused_for_as_many_rows_as_its_own_type_allows(
    num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    fused: list[bool] = []  # of each fused product: whether its matrix is quantised

    def choose(x: torch.Tensor, weight: Matrix, _kind: int) -> FusedProducts | None:
        """As on a GPU."""
        max_rows = MAX_QUANTIZED_ROWS if isinstance(weight, QuantizedMatrix) else MAX_ROWS
        return small_batch_linear if x.numel() // x.shape[-1] <= max_rows else None

    def project_small_batch(x: torch.Tensor | PreNorm, weight: Matrix, gated: bool = False) -> torch.Tensor:
        assert choose(x.rows if isinstance(x, PreNorm) else x, weight, PLAIN)
        fused.append(isinstance(weight, QuantizedMatrix))
        return project(x, weight, gated)

    monkeypatch.setattr(linear, "choose", choose)
    monkeypatch.setattr(linear, "project", project_small_batch)
    mlp = SparseMLP(HIDDEN, ExpertsConfig(8, 2, 16, 24, normalize=True))
    for parameter in mlp.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    mlp.quantize(torch.int8)
    rows, norm = torch.randn(num_rows, 1, HIDDEN), Norm(torch.rand(HIDDEN) + 0.5, 1e-6)
    made = mlp.add_fused(pre_norm(rows, norm), norm)
    assert fused == ([True, True, False] if num_rows <= MAX_ROWS else [True, True])
    torch.testing.assert_close(made.rows, rows + mlp(rms_norm(rows, norm.gain, norm.eps)), rtol=1e-4, atol=1e-4)
