# SPDX-License-Identifier: Apache-2.0
"""Optimizers for captured steps: the learning rate is a tensor that is set from outside the graph."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

MOMENTUM = 0.95  # of Muon
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # coefficients of Muon's quintic iteration
NEWTON_SCHULZ_STEPS = 5
UPDATE_RMS = 0.2  # root mean square of an update at a learning rate of 1, about that of AdamW


def adam(
    parameters: Iterable[nn.Parameter], peak: float, device: torch.device, mean: float = 0.8, decay: float = 1e-3
) -> torch.optim.AdamW:
    """mean: beta of the first moment; decay: weight decay."""
    on_gpu = device.type == "cuda"
    return torch.optim.AdamW(
        parameters,
        lr=_learning_rate(peak, device),
        betas=(mean, 0.98),
        weight_decay=decay,
        capturable=on_gpu,
        fused=on_gpu,
    )


class Muon(torch.optim.Optimizer):
    """Momentum whose updates are orthogonalised, for the matrices of hidden layers.

    A parameter is given with the row counts of the matrices that it packs. Matrices of equal shape are orthogonalised
    together. The scale of updates is that of AdamW, so both can have the same learning rate.
    """

    def __init__(
        self,
        matrices: Sequence[tuple[nn.Parameter, list[int]]],
        peak: float,
        device: torch.device,
        decay: float = 0.1,
    ) -> None:
        """decay: weight decay."""
        parameters: list[Tensor] = [parameter for parameter, _ in matrices]
        super().__init__(parameters, {"lr": _learning_rate(peak, device), "decay": decay})
        self._parameters, self._rows = parameters, [rows for _, rows in matrices]
        for parameter in parameters:
            self.state[parameter]["mean"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None
        (group,) = self.param_groups
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        assert len(gradients) == len(self._parameters)
        means = [self.state[parameter]["mean"] for parameter in self._parameters]
        torch._foreach_lerp_(means, gradients, 1 - MOMENTUM)
        wanted = torch._foreach_lerp(gradients, means, MOMENTUM)  # Nesterov
        torch._foreach_mul_(self._parameters, 1 - group["lr"] * group["decay"])
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
        for parameter, direction, rows in zip(self._parameters, wanted, self._rows, strict=True):
            for part, update in zip(parameter.split(rows), direction.split(rows), strict=True):
                by_shape.setdefault(part.shape, []).append((part, update))
        for shape, pairs in by_shape.items():
            updates = orthogonal(torch.stack([update for _, update in pairs]))
            updates = updates * (-UPDATE_RMS * max(shape) ** 0.5 * group["lr"])
            torch._foreach_add_([part for part, _ in pairs], list(updates.unbind()))


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices [N,rows,columns] with singular values near 1, by Newton–Schulz; in bfloat16 on a GPU."""
    a, b, c = NEWTON_SCHULZ
    x = matrices.to(torch.bfloat16) if matrices.is_cuda else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    wide = x.shape[1] <= x.shape[2]
    x = x if wide else x.transpose(1, 2)
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = x @ x.transpose(1, 2)
        factor = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, factor, x, beta=a)
    return (x if wide else x.transpose(1, 2)).to(matrices.dtype)


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


@torch.no_grad()
def restart(optimizer: torch.optim.Optimizer) -> None:
    """Forget all moments in place, as a captured step requires."""
    for moments in optimizer.state.values():
        for value in moments.values():
            value.zero_()


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _learning_rate(value: float, device: torch.device) -> Tensor | float:
    return torch.tensor(value, device=device) if device.type == "cuda" else value
