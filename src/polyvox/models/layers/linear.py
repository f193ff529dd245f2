# SPDX-License-Identifier: Apache-2.0
"""Linear projections: all weights of a generator but those of experts are multiplied here."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox.kernels.fused_linear import choose, project, project_add
from polyvox.kernels.pre_norm import Norm, PreNorm
from polyvox.kernels.products import PLAIN
from polyvox.kernels.quantized_matrix import Matrix, QuantizedMatrix, multiply, quantize_matrix, select


class Projection(Protocol):
    """x @ weightᵀ, however the weight is stored."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def supports_fused(self, x: Tensor, kind: int = PLAIN) -> bool:
        """Whether `fused` or, for ADD, `add_fused` is faster for these rows than separate launches."""

    def fused(self, x: Tensor | PreNorm, gated: bool = False) -> Tensor:
        """The projection of x or norm(x), gated (silu(first half) · second half) or not, in one launch."""

    def add_fused(self, x: Tensor, residual: Tensor, norm: Norm, scale: Tensor | None = None) -> PreNorm:
        """residual + the projection of x, times the layer's scale, and what projections after the norm need."""


@dataclass(frozen=True, slots=True, eq=False)
class MatrixProjection:
    """A projection without a bias."""

    matrix: Matrix

    def __call__(self, x: Tensor) -> Tensor:
        return multiply(x, self.matrix)

    def supports_fused(self, x: Tensor, kind: int = PLAIN) -> bool:
        return choose(x, self.matrix, kind) is not None

    def fused(self, x: Tensor | PreNorm, gated: bool = False) -> Tensor:
        return project(x, self.matrix, gated)

    def add_fused(self, x: Tensor, residual: Tensor, norm: Norm, scale: Tensor | None = None) -> PreNorm:
        return project_add(x, self.matrix, residual, norm, scale)


class QuantizableWeights(nn.Module):
    """Weights [..., outputs, inputs] in the model's type; after `quantize` in one byte each, with scales."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*shape))
        self.register_parameter("scales", None)
        self.scales: nn.Parameter | None

    @torch.no_grad()
    def quantize(self, dtype: torch.dtype) -> None:
        """Replaces the weights; those of a checkpoint must be loaded before."""
        values, scales = quantize_matrix(self.weight, dtype)
        self.weight, self.scales = (nn.Parameter(part, requires_grad=False) for part in (values, scales))

    @property
    def matrix(self) -> Matrix:
        return self.weight if self.scales is None else QuantizedMatrix(self.weight, self.scales)


class Linear(QuantizableWeights):
    """A projection with weights [outputs, inputs]."""

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__(outputs, inputs)
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def quantize(self, dtype: torch.dtype) -> None:
        if self.bias is not None:
            raise ValueError("A projection with a bias cannot be quantised.")
        super().quantize(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return multiply(x, self.matrix) if self.bias is None else F.linear(x, self.weight, self.bias)

    def supports_fused(self, x: Tensor, kind: int = PLAIN) -> bool:
        return self.bias is None and choose(x, self.matrix, kind) is not None

    def fused(self, x: Tensor | PreNorm, gated: bool = False) -> Tensor:
        return project(x, self.matrix, gated)

    def add_fused(self, x: Tensor, residual: Tensor, norm: Norm, scale: Tensor | None = None) -> PreNorm:
        return project_add(x, self.matrix, residual, norm, scale)


class PackedLinear(Linear):
    """Several projections of one input, stored as one matrix; a checkpoint names them one by one."""

    def __init__(self, inputs: int, **outputs: int) -> None:
        super().__init__(inputs, sum(outputs.values()))
        self.outputs = outputs


def arrange_matrices(module: nn.Module, by_column: bool) -> None:
    """Stores matrices by row, as kernels read them, or wide float32 matrices by column.

    By column, a CPU multiplies one to three rows faster; more rows take up to a quarter longer. Matrices with more
    inputs than outputs would be slower.
    """
    for each in module.modules():
        if isinstance(each, Linear):
            weight = each.weight.data
            is_wide = weight.shape[0] > weight.shape[1] and weight.dtype == torch.float32
            each.weight.data = weight.T.contiguous().T if by_column and is_wide else weight.contiguous()


class StackedWeights(QuantizableWeights):
    """Matrices of one shape, stored as one tensor [count, rows, columns]; a checkpoint numbers them."""


class StackedEmbedding(StackedWeights):
    def lookup(self, ids: Tensor) -> Tensor:
        """Row ids[..., i] of matrix i: [..., count] -> [..., count, columns]."""
        count, rows, columns = self.weight.shape
        offsets = torch.arange(count, device=ids.device) * rows
        return F.embedding(ids + offsets, self.weight.view(count * rows, columns))


class StackedLinear(StackedWeights):
    def __getitem__(self, index: int) -> Projection:
        return MatrixProjection(select(self.matrix, index))


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
