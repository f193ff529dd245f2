"""Triton, not before it is needed: a kernel's file can be imported where there is no Triton."""

from collections.abc import Callable
from typing import Any


class Kernel:
    """A function in Triton's language; Triton is imported when it is first launched or compiled.

    In the function's file `tl` need only be there for the type checker, and annotations must be postponed. Of the
    arguments in `plain` the kernel is not compiled anew where one is 1 or a multiple of 16.
    """

    def __init__(self, function: Callable[..., Any], plain: tuple[str, ...] = ()) -> None:
        self.function, self.plain = function, plain
        self._jit: Any = None

    def __call__(self, *_: Any) -> Any:
        raise TypeError(f"{self.function.__name__} is called from kernels only")

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.jit[grid]

    @property
    def jit(self) -> Any:
        """Triton's own object."""
        if self._jit is None:
            import triton
            import triton.language

            scope = self.function.__globals__
            scope["tl"] = triton.language
            for name in self.function.__code__.co_names:
                if isinstance(scope.get(name), Kernel):
                    scope[name] = scope[name].jit
            self._jit = triton.jit(self.function, do_not_specialize=self.plain)
        return self._jit


def power_of_2(least: int) -> int:
    """The smallest power of 2 that is at least this."""
    return 1 << (least - 1).bit_length()
