# SPDX-License-Identifier: Apache-2.0
"""Products that compiled kernels fuse with the sum that rounds them to an integer, and so do not round first.

x · factor + 1.5 · 2^23 has no fraction; in PyTorch the product is rounded before the sum.
"""

import re

from polyvox.kernels.launches import Launch

CONSTANT = "0f4B400000"  # 1.5 · 2^23 in PTX
QUANTIZING = ("rotary_kernel", "decode_kernel", "large_batch_kernel", "quantize_kernel")


def fused_products(code: str) -> list[str]:
    """The instructions that multiply and add the constant, as a number or in a register, also one of two numbers."""
    operands = {CONSTANT, *re.findall(rf"mov\.\w+\s+(%\w+), {CONSTANT};", code)}
    for pair, halves in re.findall(r"mov\.b64\s+(%\w+), \{([^}]*)\};", code):
        if operands & {half.strip() for half in halves.split(",")}:
            operands.add(pair)
    products = re.finditer(r"fma\.rn[.\w]*\s+%\w+, [^,]+, [^,]+, ([%\w]+);", code)
    return [found[0] for found in products if found[1] in operands]


def assert_rounded(launch: Launch, code: str) -> None:
    """A kernel that quantises rounds its products."""
    if launch.name in QUANTIZING:
        to_integers = launch.name == "quantize_kernel" or '"keys": "*i8"' in launch.specialization
        assert (CONSTANT in code) == to_integers, launch
        assert not (fused := fused_products(code)), (launch, fused)
