# SPDX-License-Identifier: Apache-2.0
"""Lazy import of Triton: kernel modules can be imported where Triton is not installed."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any


class Kernel:
    """A function in Triton's language; Triton is imported at its first launch or compilation.

    The function's module imports `tl` only for the type checker and must postpone annotations. The kernel is not
    specialised on the values of the arguments in do_not_specialize. Without `fuse`, the compiler rounds each product
    before it is added; otherwise it may compute product and sum with one rounding, also those of 16-bit values. A
    function that a kernel calls is compiled with the kernel's setting, and cannot have one.
    """

    def __init__(
        self, function: Callable[..., Any], do_not_specialize: tuple[str, ...] = (), fuse: bool = True
    ) -> None:
        self.function, self.do_not_specialize = function, do_not_specialize
        self.options = {} if fuse else {"enable_fp_fusion": False}
        self._jit: Any = None

    def __call__(self, *_: Any) -> Any:
        raise TypeError(f"{self.function.__name__} can be called from kernels only")

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        """A function that launches the kernel."""
        if (intercept := interceptor()) is not None:
            return lambda *arguments, **named: intercept(self, arguments, named | self.options)
        return partial(self.jit[grid], **self.options) if self.options else self.jit[grid]

    @property
    def jit(self) -> Any:
        """The compiled function of Triton."""
        if self._jit is None:
            import triton
            import triton.language

            scope = self.function.__globals__
            scope["tl"] = triton.language
            for name in self.function.__code__.co_names:
                if isinstance(called := scope.get(name), Kernel):
                    if called.options:
                        raise TypeError(f"{name} has fuse=False, but the kernel that calls it decides")
                    scope[name] = called.jit
            self._jit = triton.jit(self.function, do_not_specialize=self.do_not_specialize)
        return self._jit


_intercepted = threading.local()
Intercept = Callable[[Any, Sequence[object], dict[str, object]], None]  # a Kernel or CudaSource, and its arguments


@contextmanager
def intercepting_launches(function: Intercept) -> Iterator[None]:
    """Calls a function with the kernel and its arguments in place of each launch of this thread."""
    _intercepted.function = function
    try:
        yield
    finally:
        _intercepted.function = None


def interceptor() -> Intercept | None:
    """The function that is called in place of this thread's launches: tensors that they should write have no values."""
    return getattr(_intercepted, "function", None)


def power_of_2(minimum: int) -> int:
    """The smallest power of 2 that is at least `minimum`."""
    return 1 << (minimum - 1).bit_length()


def largest_power_of_2(maximum: int) -> int:
    """The largest power of 2 that is at most `maximum`, and at least 1."""
    return 1 << max(0, maximum.bit_length() - 1)
