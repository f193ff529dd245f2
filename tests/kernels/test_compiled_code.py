# SPDX-License-Identifier: Apache-2.0
"""What the checks of compiled code find, on code of which the answer is known."""

import json

import pytest

from kernels.loop_shuffles import assert_few_shuffles, shuffles_in_loops
from kernels.order_of_sums import RotaryOrders, assert_order_of_loops
from kernels.rounded_products import assert_rounded, fused_products, fused_roundings, fusible_products
from polyvox.kernels.launches import Launch

WIDE, NARROW = (
    f"#ttg.blocked<{{sizePerThread = [1, {size}], threadsPerWarp = [{32 // lanes}, {lanes}], warpsPerCTA = [4, 1]}}>"
    for size, lanes in ((16, 8), (8, 16))
)
MMA = "#ttg.nvidia_mma<{versionMajor = 3, warpsPerCTA = [4, 1], instrShape = [16, 64, 16]}>"
OTHER_MMA = "#ttg.nvidia_mma<{versionMajor = 2, warpsPerCTA = [4, 1], instrShape = [16, 8]}>"


def launch(name: str, keys: str = "*i8", **constants: object) -> Launch:
    names = ["qkv", "keys", *constants]
    signature = {"qkv": "*bf16", "keys": keys} | dict.fromkeys(constants, "constexpr")
    values = {"constant_keys": [[names.index(each)] for each in constants], "constant_vals": [*constants.values()]}
    return Launch(f"a_module:{name}", json.dumps({"signature": signature} | values), 90)


@pytest.mark.parametrize(
    "code",
    [
        "fma.rn.f32 \t%r3, %r1, %r2, 0f4B400000;",
        "mov.b32 \t%r9, 0f4B400000;\nfma.rn.f32 \t%r3, %r1, %r2, %r9;",
        "mov.b32 \t%r9, 0f4B400000;\nmov.b64 \t%rd4, {%r9, %r9};\nfma.rn.f32x2 \t%rd3, %rd1, %rd2, %rd4;",
    ],
)
def test_a_fused_rounding_is_found(code: str) -> None:
    assert len(fused_roundings(code)) == 1
    with pytest.raises(AssertionError):
        assert_rounded(launch("rotary_kernel"), code)
    assert_rounded(launch("snake_kernel"), code)  # it rounds an angle


def test_a_rounded_product_is_accepted_and_one_that_is_missing_is_not() -> None:
    code = "mov.b32 \t%r9, 0f4B400000;\nfma.rn.f32 \t%r3, %r1, %r2, %r8;\nadd.f32 \t%r4, %r3, %r9;"
    assert_rounded(launch("rotary_kernel"), code)
    with pytest.raises(AssertionError):
        assert_rounded(launch("rotary_kernel"), "add.f32 \t%r4, %r3, %r9;")
    assert_rounded(launch("rotary_kernel", "*fp8e4nv"), "add.f32 \t%r4, %r3, %r9;")


@pytest.mark.parametrize("kind", ["bf16x2", "bf16", "f16x2", "f16", "ftz.f16x2"])
def test_a_fused_product_of_16_bits_is_found(kind: str) -> None:
    code = f"mov.b32 \t%r4, 7;\nfma.rn.{kind} \t%r5, %r1, %r2, %r3;\nfma.rn.{kind} \t%r6, %r1, %r4, %r3;"
    assert len(fused_products(code)) == 2
    with pytest.raises(AssertionError):
        assert_rounded(launch("norm_kernel"), code)


@pytest.mark.parametrize(
    "code",
    [
        "mov.b32 \t%r4, -2147450880;\nfma.rn.bf16x2 \t%r5, %r1, %r2, %r4;",  # minus zero, twice
        "mov.b16 \t%rs4, 0x8000;\nfma.rn.bf16 \t%rs5, %rs1, %rs2, %rs4;",
        "mov.b32 \t%r4, 1065369472;\nfma.rn.bf16x2 \t%r5, %r1, %r4, %r3;",  # one, twice
        "mov.b16 \t%rs4, 15360;\nfma.rn.f16 \t%rs5, %rs4, %rs2, %rs3;",
        "fma.rn.f32.bf16 \t%r5, %rs1, %rs1, %r3;",
        "fma.rn.ftz.f32 \t%r5, %r1, %r2, %r3;",
    ],
)
def test_a_sum_a_product_and_sums_in_float32_are_accepted(code: str) -> None:
    assert not fused_products(code)


PRODUCT_AND_SUM = "mul.bf16x2 \t%r3, %r1, %r2;\nadd.bf16x2 \t%r5, %r4, %r3;"
MOVED = "mul.f16 \t%rs3, %rs1, %rs2;\nmov.b32 \t%r1, {%rs3, %rs4};\nmov.b32 \t%r2, %r1;\nsub.ftz.f16x2 \t%r4, %r2, %r3;"


@pytest.mark.parametrize(
    ("code", "num_found"),
    [
        (PRODUCT_AND_SUM, 1),
        (MOVED, 1),
        (MOVED.replace("%r1, {%rs3, %rs4}", "{%rs3, %rs4}, %r1"), 0),  # from a word, not to it
        (PRODUCT_AND_SUM.replace("mul.", "mul.rn."), 0),
        (PRODUCT_AND_SUM.replace("add.", "add.rn."), 0),
        (PRODUCT_AND_SUM.replace("%r4, %r3;", "%r4, %r6;"), 0),
        (PRODUCT_AND_SUM.replace("bf16x2", "f32"), 0),
    ],
)
def test_a_product_that_the_assembler_may_fuse_is_found(code: str, num_found: int) -> None:
    assert len(fusible_products(code)) == num_found
    if num_found:
        with pytest.raises(AssertionError):
            assert_rounded(launch("norm_kernel"), code)


def sum_of(layout: str, rows: int = 64) -> str:
    return f"    }}) : (tensor<{rows}x64xf32, {layout}>) -> tensor<{rows}xf32, #ttg.slice<{{dim = 1}}>>\n"


def product(layout: str, width: int | None = None) -> str:
    left = f"tensor<64x16xbf16, #ttg.dot_op<{{opIdx = 0, kWidth = {width}}}>>" if width else "!ttg.memdesc<64x16xbf16>"
    return f"    %a = tt.dot %b, %c, %d : {left} * !ttg.memdesc<16x64xbf16> -> tensor<64x64xf32, {layout}>\n"


LAYOUTS = f"#mma = {MMA}\n#other = {OTHER_MMA}\n"


@pytest.mark.parametrize(
    ("own", "code", "passes"),
    [
        (True, sum_of("#mma") + 4 * product("#mma"), True),
        (False, sum_of("#mma") + 2 * product("#mma"), True),
        (True, sum_of("#mma") + 2 * product("#mma"), False),  # the other loop has none
        (True, 4 * product("#mma"), False),
        (True, sum_of("#mma") + 2 * product("#mma") + 2 * product("#other"), False),
        (True, sum_of("#mma") + sum_of("#other") + 4 * product("#mma"), False),
        (True, sum_of("#mma") + 2 * product("#mma", 2) + 2 * product("#mma", 4), False),
        (True, sum_of("#mma") + 4 * product("#mma", 2), True),
    ],
)
def test_loops_that_add_in_several_orders_are_found(own: bool, code: str, passes: bool) -> None:
    given = launch("prefill_kernel", OWN=own)
    if passes:
        assert_order_of_loops(given, LAYOUTS + code)
    else:
        with pytest.raises(AssertionError):
            assert_order_of_loops(given, LAYOUTS + code)


@pytest.mark.parametrize(
    ("other", "keys", "num_differing"), [(WIDE, "*i8", 0), (NARROW, "*i8", 1), (NARROW, "*bf16", 0)]
)
def test_norms_that_add_in_several_orders_are_found(other: str, keys: str, num_differing: int) -> None:
    """Over one type of cache; how rows are distributed does not count."""
    found = RotaryOrders()
    for layout, of_keys, rows in ((WIDE, "*i8", 32), (other.replace("[4, 1]", "[2, 1]"), keys, 8)):
        given = launch("rotary_kernel", of_keys, DIM=128, NORM=True)
        found.add(given, f"#blocked = {layout}\n" + sum_of("#blocked", rows))
    assert len(found.differing()) == num_differing


def loop_with(shuffles: int) -> str:
    shuffle = "\tshfl.sync.bfly.b32 \t%r2, %r1, 16, 31, -1;\n"
    rows = ["$L__BB0_1:", "\t@%p1 bra \t$L__BB0_4;", 9 * shuffle + "$L__BB0_2:", "\t@%p2 bra \t$L__BB0_3;"]
    rows += [shuffles * shuffle + "$L__BB0_3:", "\t@%p3 bra \t$L__BB0_2;", 9 * shuffle + "$L__BB0_4:", "\tret;"]
    return "\n".join(rows)


def test_shuffles_in_a_loop_are_counted() -> None:
    code = loop_with(12)
    assert shuffles_in_loops(code) == 12
    assert shuffles_in_loops(code.replace("@%p3 bra \t$L__BB0_2", "@%p3 bra \t$L__BB0_4")) == 0


@pytest.mark.parametrize(("group", "lanes", "max_shuffles"), [(2, 4, 12), (1, 4, 6), (2, 1, 20)])
def test_more_shuffles_than_those_of_the_scores_are_found(group: int, lanes: int, max_shuffles: int) -> None:
    given = launch("large_batch_kernel", GROUP=group, LANES=lanes)
    assert_few_shuffles(given, loop_with(max_shuffles))
    with pytest.raises(AssertionError):
        assert_few_shuffles(given, loop_with(max_shuffles + 1))
