# SPDX-License-Identifier: Apache-2.0
"""The talker's next inputs against the reference implementation, in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from polyvox.kernels.next_inputs import next_inputs, next_inputs_reference

pytestmark = pytest.mark.usefixtures("interpreted")


def case(size: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Slots with text, after the ring wrapped around, at the end of the text and past it; other entries are NaN."""
    generator = torch.Generator().manual_seed(size)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    text = normal(6, 5, size)
    text[3] = torch.nan
    return {
        "codes": torch.randint(7, (4, 6), generator=generator),
        "first": normal(9, size),
        "rest": normal(5, 7, size),
        "slots": torch.tensor([4, 0, 3, 1]),
        "text": text,
        "text_end": torch.tensor([3, 20, 0, 8, 9, 0]),
        "frame": torch.tensor([2, 13, 0, 8, 8, 0]),
        "pad": normal(size),
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
    assert given["out"].isfinite().all(1).tolist() == [True, True, False, True, True, False]


def test_a_row_has_the_same_bits_at_any_index() -> None:
    given = case(48, torch.float32)
    next_inputs(**given)
    turned = {**given, "out": torch.empty_like(given["out"])}
    turned["codes"], turned["slots"] = given["codes"].flip(0).contiguous(), given["slots"].flip(0).contiguous()
    next_inputs(**turned)
    assert torch.equal(turned["out"][given["slots"]], given["out"][given["slots"]])
