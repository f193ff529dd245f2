# SPDX-License-Identifier: Apache-2.0
"""A sparse mixture of experts with a shared expert, in place of a layer's MLP."""

import torch
from torch import Tensor, nn

from polyvox import kernels
from polyvox.kernels.experts import (
    combine,
    combine_reference,
    multiply_experts,
    multiply_experts_reference,
    route,
    route_reference,
)
from polyvox.kernels.norm import rms_norm
from polyvox.kernels.pre_norm import Norm, PreNorm, pre_norm
from polyvox.models.layers.linear import PackedLinear, QuantizableWeights
from polyvox.models.layers.mlp import MLP
from polyvox.models.layers.transformer_config import ExpertsConfig


class Experts(nn.Module):
    """The weights of all experts, each matrix stacked; a checkpoint has them one by one or stacked."""

    def __init__(self, hidden_size: int, config: ExpertsConfig) -> None:
        super().__init__()
        count, inner = config.num_experts, config.intermediate_size
        self.gate_up = QuantizableWeights(count, 2 * inner, hidden_size)
        self.down = QuantizableWeights(count, hidden_size, inner)

    def checkpoint_views(self, prefix: str) -> dict[str, Tensor]:
        """Each expert's matrices under their names in a checkpoint."""
        views: dict[str, Tensor] = {}
        stacks = (self.gate_up.weight.detach(), self.down.weight.detach())
        for index, (gate_up, down) in enumerate(zip(*stacks, strict=True)):
            gate, up = gate_up.chunk(2)
            names = {"gate_proj": gate, "up_proj": up, "down_proj": down}
            views |= {f"{prefix}{index}.{name}.weight": tensor for name, tensor in names.items()}
        return views


class SparseMLP(nn.Module):
    """y = Σ weight · expert(x) over the top experts + sigmoid(shared_expert_gate(x)) · shared_expert(x)"""

    def __init__(self, hidden_size: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.num_chosen, self.normalize = config.num_chosen, config.normalize
        self.router = PackedLinear(hidden_size, gate=config.num_experts, shared_expert_gate=1)
        self.experts = Experts(hidden_size, config)
        self.shared_expert = MLP(hidden_size, config.shared_size)

    def quantize(self, dtype: torch.dtype) -> None:
        """Stores the weights of all experts in this type. The router, on which all else depends, keeps its own."""
        self.experts.gate_up.quantize(dtype)
        self.experts.down.quantize(dtype)
        self.shared_expert.quantize(dtype)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        return self._combine(rows, self.router(rows), self.shared_expert(rows), None).view_as(x)

    def add_fused(self, x: PreNorm, norm: Norm, scale: Tensor | None = None) -> PreNorm:
        """The rows of x + the output for norm(x), before the next norm. No layer with experts has a scale."""
        assert scale is None
        rows, expert = x.rows.flatten(0, -2), self.shared_expert
        shared = expert.down_proj.fused(expert.gate_up.fused(x, gated=True)).flatten(0, -2)
        normed = rms_norm(rows, x.norm.gain, x.norm.eps)
        # The router is not quantised, so its fused product is for fewer rows than those of quantised experts.
        scores = self.router.fused(x).flatten(0, -2) if self.router.supports_fused(rows) else self.router(normed)
        made = self._combine(normed, scores, shared, rows)
        return pre_norm(made.view_as(x.rows), norm)

    def _combine(self, rows: Tensor, scores: Tensor, shared: Tensor, residual: Tensor | None) -> Tensor:
        """The output for rows [N,hidden] with these scores of the router, plus residual."""
        gate_up, down = self.experts.gate_up.matrix, self.experts.down.matrix
        logits, shared_gate = scores.split([scores.shape[1] - 1, 1], dim=1)
        if kernels.active(rows):
            routing = route(logits, self.num_chosen, self.normalize)
            return combine(multiply_experts(rows, routing, gate_up, down), shared, shared_gate, residual)
        chosen, weights = route_reference(logits, self.num_chosen, self.normalize)
        outputs = multiply_experts_reference(rows, chosen, weights, gate_up, down)
        return combine_reference(outputs, shared, shared_gate, residual)
