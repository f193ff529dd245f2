# SPDX-License-Identifier: Apache-2.0
"""The talker's next inputs against the reference implementation, in Triton's interpreter."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from polyvox.kernels.next_inputs import NextText, next_inputs, next_inputs_reference

pytestmark = pytest.mark.usefixtures("interpreted")

SLOTS = [4, 0, 3, 1, 5]


def case(size: int, dtype: torch.dtype) -> dict[str, Any]:
    """Slots with text, after the ring wrapped around, at the end of the text, past it, and with a given row.

    Rows that must not be read are NaN.
    """
    generator = torch.Generator().manual_seed(size)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    table, given = normal(11, size), normal(6, 2, size)
    table[7], given[:5] = torch.nan, torch.nan
    ids = torch.full((6, 5), 7)
    end, frame = torch.tensor([3, 20, 0, 8, 9, 9]), torch.tensor([2, 13, 0, 8, 8, 6])
    ids[0, 2], ids[1, 13 % 5], ids[4, 8 % 5], ids[5, 6 % 5] = 10, 3, 0, -1
    given[5, 1] = torch.nan
    return {
        "codes": torch.randint(7, (5, 6), generator=generator),
        "first": normal(9, size),
        "rest": normal(5, 7, size),
        "slots": torch.tensor(SLOTS),
        "frame": frame,
        "text": NextText(table, 2, ids, end, given),
        "out": torch.full((6, size), torch.nan, dtype=dtype),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size", [48, 1030])
def test_it_equals_the_reference_and_writes_only_its_slots(size: int, dtype: torch.dtype) -> None:
    given = case(size, dtype)
    plain = {**given, "out": given["out"].clone()}
    next_inputs(**given)
    next_inputs_reference(**plain)
    tolerance = 1e-6 if dtype == torch.float32 else 4e-3
    torch.testing.assert_close(given["out"], plain["out"], atol=tolerance, rtol=tolerance, equal_nan=True)
    assert given["out"].isfinite().all(1).tolist() == [True, True, False, True, True, True]


def test_the_text_row_is_the_one_of_its_id_or_the_given_one() -> None:
    inputs = case(48, torch.float32)
    text = inputs["text"]
    next_inputs(**inputs)
    without = {**inputs, "out": inputs["out"].clone(), "text": replace(text, table=torch.zeros_like(text.table))}
    without["text"].given.zero_()
    next_inputs(**without)
    added = (inputs["out"] - without["out"])[SLOTS]
    expected = torch.stack(
        [text.table[0], text.table[10], text.table[2], text.table[3], case(48, torch.float32)["text"].given[5, 0]]
    )
    torch.testing.assert_close(added, expected, atol=1e-5, rtol=1e-5)


def test_a_row_has_the_same_bits_at_any_index() -> None:
    given = case(48, torch.float32)
    next_inputs(**given)
    turned = {**given, "out": torch.empty_like(given["out"])}
    turned["codes"], turned["slots"] = given["codes"].flip(0).contiguous(), given["slots"].flip(0).contiguous()
    next_inputs(**turned)
    assert torch.equal(turned["out"][given["slots"]], given["out"][given["slots"]])
