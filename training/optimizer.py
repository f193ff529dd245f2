# SPDX-License-Identifier: Apache-2.0
"""AdamW for captured steps: the learning rate is a tensor that is set from outside the graph."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def adam(
    parameters: Iterable[nn.Parameter], peak: float, device: torch.device, mean: float = 0.8, decay: float = 1e-3
) -> torch.optim.AdamW:
    """mean: beta of the first moment; decay: weight decay."""
    on_gpu = device.type == "cuda"
    step = torch.tensor(peak, device=device) if on_gpu else peak
    return torch.optim.AdamW(
        parameters,
        lr=step,
        betas=(mean, 0.98),
        weight_decay=decay,
        capturable=on_gpu,
        fused=on_gpu,
    )


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
