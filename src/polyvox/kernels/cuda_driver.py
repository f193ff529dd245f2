# SPDX-License-Identifier: Apache-2.0
"""Functions of the CUDA driver, for what PyTorch has no function for."""

import ctypes
from functools import cache


@cache
def driver() -> ctypes.CDLL:
    """The driver's library; OSError without a driver."""
    return ctypes.CDLL("libcuda.so.1")


def call(function: str, *arguments: object) -> None:
    """Calls a function of the driver; RuntimeError if it fails."""
    if error := getattr(driver(), function)(*arguments):
        text = ctypes.c_char_p()
        driver().cuGetErrorString(error, ctypes.byref(text))
        raise RuntimeError(f"{function} failed: {(text.value or b'unknown error').decode()}")
