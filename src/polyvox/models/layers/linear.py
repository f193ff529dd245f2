# SPDX-License-Identifier: Apache-2.0
"""Linear projections. All weights of a generator are multiplied here, so a quantised weight is another class."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox.kernels.pre_norm import Norm, PreNorm
from polyvox.kernels.small_batch_linear import is_small_batch, project, project_add


class Projection(Protocol):
    """x @ weightᵀ, however the weight is stored."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def supports_fused(self, x: Tensor) -> bool:
        """Whether `fused` is faster for these rows than separate launches."""

    def fused(self, x: Tensor | PreNorm, gated: bool = False) -> Tensor:
        """The projection of x or norm(x), gated (silu(first half) · second half) or not, in one launch."""

    def add_fused(self, x: Tensor, residual: Tensor, norm: Norm) -> PreNorm:
        """residual + the projection of x, and what projections after the norm need."""


class Linear(nn.Module):
    """A projection with a dense weight [outputs, inputs]."""

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def supports_fused(self, x: Tensor) -> bool:
        return self.bias is None and is_small_batch(x)

    def fused(self, x: Tensor | PreNorm, gated: bool = False) -> Tensor:
        return project(x, self.weight, gated)

    def add_fused(self, x: Tensor, residual: Tensor, norm: Norm) -> PreNorm:
        return project_add(x, self.weight, residual, norm)


class PackedLinear(Linear):
    """Several projections of one input, stored as one matrix; a checkpoint names them one by one."""

    def __init__(self, inputs: int, **outputs: int) -> None:
        super().__init__(inputs, sum(outputs.values()))
        self.outputs = outputs


class StackedWeights(nn.Module):
    """Matrices of one shape, stored as one tensor [count, rows, columns]; a checkpoint numbers them."""

    def __init__(self, count: int, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, rows, columns))


class StackedEmbedding(StackedWeights):
    def lookup(self, ids: Tensor) -> Tensor:
        """Row ids[..., i] of matrix i: [..., count] -> [..., count, columns]."""
        count, rows, columns = self.weight.shape
        offsets = torch.arange(count, device=ids.device) * rows
        return F.embedding(ids + offsets, self.weight.view(count * rows, columns))


@dataclass(frozen=True, slots=True, eq=False)
class DenseProjection:
    """One matrix of a stack as a projection."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)

    def supports_fused(self, x: Tensor) -> bool:
        return is_small_batch(x)

    def fused(self, x: Tensor | PreNorm, gated: bool = False) -> Tensor:
        return project(x, self.weight, gated)

    def add_fused(self, x: Tensor, residual: Tensor, norm: Norm) -> PreNorm:
        return project_add(x, self.weight, residual, norm)


class StackedLinear(StackedWeights):
    def __getitem__(self, index: int) -> Projection:
        return DenseProjection(self.weight[index])


@runtime_checkable
class HasCheckpointViews(Protocol):
    """A module whose parameters are stored in another form than in a checkpoint."""

    def checkpoint_views(self, prefix: str) -> dict[str, Tensor]: ...


def checkpoint_tensors(module: nn.Module, prefix: str = "") -> dict[str, Tensor]:
    """Each tensor under its name in a checkpoint file, as a view of the parameter that stores it.

    Module attributes have the names of the files; only packed and stacked weights are translated. Loading, random
    weights and export all use this map.
    """
    tensors = {prefix + name: parameter.detach() for name, parameter in module.named_parameters(recurse=False)}
    for name, child in module.named_children():
        if isinstance(child, PackedLinear):
            parts = child.weight.detach().split(list(child.outputs.values()))
            tensors |= {f"{prefix}{part}.weight": piece for part, piece in zip(child.outputs, parts, strict=True)}
        elif isinstance(child, StackedWeights):
            tensors |= {f"{prefix}{name}.{i}.weight": piece for i, piece in enumerate(child.weight.detach())}
        elif isinstance(child, HasCheckpointViews):
            tensors |= child.checkpoint_views(f"{prefix}{name}.")
        else:
            tensors |= checkpoint_tensors(child, f"{prefix}{name}.")
    return tensors
