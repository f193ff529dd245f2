# SPDX-License-Identifier: Apache-2.0
"""Modules with shapes but no memory, on PyTorch's meta device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


@contextmanager
def meta_device() -> Iterator[None]:
    """Modules that are created here have shapes but no memory, and their parameters are not initialised.

    Random numbers on the meta device import PyTorch's compiler, 900 modules: a third of the start of a process.
    """
    with torch.device("meta"), _NoInitialisation():
        yield


def allocate(module: nn.Module, device: torch.device) -> None:
    """Moves a module from the meta device to another one, with uninitialised memory.

    nn.Module.to_empty imports PyTorch's symbolic shapes, 500 modules.
    """
    module._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device=device))


class _NoInitialisation(TorchFunctionMode):
    """Skips the functions of torch.nn.init."""

    def __torch_function__(
        self, func: Callable[..., Any], _: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return named["tensor"] if "tensor" in named else args[0]
        return func(*args, **named)
