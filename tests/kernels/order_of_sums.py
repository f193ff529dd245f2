# SPDX-License-Identifier: Apache-2.0
"""The order in which compiled kernels add up float32 numbers, by the layouts in Triton's code for the GPU.

A row's bits may not depend on the other rows of a pass, or on how its prompt is divided. So launches of rotary_kernel
for few and for many rows must add in the same order, and so must the loops of prefill_kernel.
"""

import json
import re
from collections import defaultdict

from polyvox.kernels.launches import Launch

PRODUCT = r"= t\w+\.(?:warp_group_)?dot |tc_gen5_mma "
FLOAT32 = r"tensor<([\dx]+)xf32, (#\w+)(?:, [^>]*)?>"


def constants_of(launch: Launch) -> dict[str, object]:
    given = json.loads(launch.specialization)
    names = list(given["signature"])
    return {names[at[0]]: value for at, value in zip(given["constant_keys"], given["constant_vals"], strict=True)}


def orders(code: str) -> dict[str, set[str]]:
    """The orders of each kind of sum: sums of columns and products, by the shape of what is added."""
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", code, re.MULTILINE))
    found: dict[str, set[str]] = defaultdict(set)
    for shape, layout in re.findall(rf"^ *}}\) : \({FLOAT32}\) -> ", code, re.MULTILINE):
        found[f"sum of {shape}"].add(_columns(layouts[layout]))
    for line in code.splitlines():
        if re.search(PRODUCT, line):
            found["width"].update(re.findall(r"kWidth = \d+", line))
            for shape, layout in re.findall(rf"-> {FLOAT32}", line):
                found[f"product {shape}"].add(layouts[layout])
    return found


def _columns(layout: str) -> str:
    """What a layout says of columns: how rows are distributed is no part of the order of their sums."""
    return re.sub(r"= \[\d+, (\d+)\]", r"= [\1]", layout) if layout.startswith("#ttg.blocked") else layout


def assert_order_of_loops(launch: Launch, code: str) -> None:
    """Both loops of attention over prompts add in one order: over the cache, and over rows of the pass."""
    assert launch.name == "prefill_kernel"
    num_products = sum(bool(re.search(PRODUCT, line)) for line in code.splitlines())
    assert num_products >= (4 if constants_of(launch)["OWN"] else 2), (launch, num_products)
    found = orders(code)
    assert any(name.startswith("sum of ") for name in found), (launch, found)
    assert all(len(layouts) <= 1 for layouts in found.values()), (launch, found)


class RotaryOrders:
    """The orders of the norm's sum in launches of rotary_kernel: over one type of cache, one."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], set[str]] = defaultdict(set)

    def add(self, launch: Launch, code: str) -> None:
        given, constants = json.loads(launch.specialization)["signature"], constants_of(launch)
        key = launch.architecture, given["qkv"], given["keys"], constants["DIM"], constants["NORM"]
        sums = {order for name, found in orders(code).items() if name.startswith("sum of ") for order in found}
        assert sums or not constants["NORM"], launch
        self._found[key] |= sums

    def differing(self) -> list[tuple[object, ...]]:
        return [(key, sums) for key, sums in self._found.items() if len(sums) > 1]
