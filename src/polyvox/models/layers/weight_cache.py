# SPDX-License-Identifier: Apache-2.0
"""A value computed from weights, for example as a kernel reads them, and computed again when one of them changes."""

from collections.abc import Callable
from typing import Generic, TypeVar

from torch import Tensor

from polyvox.kernels.lazy_triton import interceptor

T = TypeVar("T")


class WeightCache(Generic[T]):
    """Keeps the value.

    While launches are recorded (kernels/launches.py), the value's tensors have no memory: that value is kept apart.
    """

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._value: T | None = None
        self._recorded: tuple[tuple[object, ...], T] | None = None

    def get(self, compute: Callable[[], T], *weights: Tensor) -> T:
        key = tuple(
            (weight.data_ptr(), None if weight.is_inference() else weight._version, weight.dtype, weight.device)
            for weight in weights
        )
        if self._value is not None and self._key == key:
            return self._value
        if interceptor() is None:
            self._key, self._value = key, compute()
            return self._value
        if self._recorded is None or self._recorded[0] != key:
            self._recorded = key, compute()
        return self._recorded[1]
