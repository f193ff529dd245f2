# SPDX-License-Identifier: Apache-2.0
"""Products that compiled kernels fuse with a sum, and so do not round, where the reference implementation rounds them.

There are two kinds: products of 16-bit values whose sum has 16 bits, and x · factor + 1.5 · 2^23, which rounds to an
integer. Sums in float32 are fused elsewhere. PTX has a fused product as an instruction; where neither a product nor its
sum has `.rn`, the assembler may still fuse them.
"""

import re

from polyvox.kernels.launches import Launch

CONSTANT = "0f4B400000"  # 1.5 · 2^23 in PTX
QUANTIZING = ("rotary_kernel", "decode_kernel", "large_batch_kernel", "quantize_kernel")
# An architecture without sums or products of a 16-bit type multiplies by one, or adds minus zero.
NEUTRAL = {"bf16": (0x3F80, 0x8000), "f16": (0x3C00, 0x8000)}
NARROW = re.compile(r"\b(mul|add|sub)((?:\.\w+)*)\.b?f16(?:x2)?\s+(%\w+), ([^,]+), ([^;]+);")
MOVE = re.compile(r"\bmov\.b\d+\s+([^;]+), (%\w+|\{[^}]*\});")
FUSED = re.compile(r"fma\.rn((?:\.\w+)+)\s+%\w+, ([^,]+), ([^,]+), ([^;]+);")


def fused_products(code: str) -> list[str]:
    """The instructions that multiply, add and round once to 16 bits."""
    numbers = dict(re.findall(r"mov\.b(?:16|32)\s+(%\w+), (-?\d\w*);", code))

    def is_neutral(operand: str, kind: str) -> bool:
        number = numbers.get(operand, operand)
        if not re.fullmatch(r"-?\d+|0x[0-9A-Fa-f]+", number):
            return False
        return int(number, 0) & 0xFFFF in NEUTRAL[kind]  # of a pair, both are equal

    found = []
    for match in FUSED.finditer(code):
        modifiers, *operands = match.groups()
        kind = next(each for each in modifiers.split(".") if each.startswith(("f", "bf")) and each != "ftz")
        narrow = kind.removesuffix("x2")  # of the result
        if narrow in NEUTRAL and not any(is_neutral(operand, narrow) for operand in operands):
            found.append(match[0])
    return found


def fusible_products(code: str) -> list[str]:
    """The sums of 16 bits that the assembler may fuse with a product, also of one that was moved before."""
    narrow = [match for match in NARROW.finditer(code) if ".rn" not in match[2]]
    products = {match[3] for match in narrow if match[1] == "mul"}
    moves = [[set(re.findall(r"%\w+", side)) for side in match.groups()] for match in MOVE.finditer(code)]
    found = -1
    while found != len(products):
        found = len(products)
        products.update(*(into for into, source in moves if source & products))
    return [match[0] for match in narrow if match[1] != "mul" and products & {match[4], match[5]}]


def fused_roundings(code: str) -> list[str]:
    """The instructions that multiply and add the constant, as a number or in a register, also one of two numbers."""
    operands = {CONSTANT, *re.findall(rf"mov\.\w+\s+(%\w+), {CONSTANT};", code)}
    for pair, halves in re.findall(r"mov\.b64\s+(%\w+), \{([^}]*)\};", code):
        if operands & {half.strip() for half in halves.split(",")}:
            operands.add(pair)
    return [match[0] for match in FUSED.finditer(code) if match[4] in operands]


def assert_rounded(launch: Launch, code: str) -> None:
    """No product of 16-bit values is fused, and in a kernel that quantises none with the sum that rounds it."""
    assert not (fused := fused_products(code) + fusible_products(code)), (launch, fused)
    if launch.name in QUANTIZING:
        to_integers = launch.name == "quantize_kernel" or '"keys": "*i8"' in launch.specialization
        assert (CONSTANT in code) == to_integers, launch
        assert not (fused := fused_roundings(code)), (launch, fused)
