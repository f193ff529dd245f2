# SPDX-License-Identifier: Apache-2.0
"""The first kernels of a codec call against their reference implementations, in Triton's interpreter."""

import pytest
import torch

from polyvox.kernels import enabled_on_cpu
from polyvox.kernels.code_sum import sum_codes, sum_codes_reference
from polyvox.kernels.window_positions import next_positions, next_positions_reference

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interpreted")]


@pytest.mark.parametrize("columns", [1, 11])
def test_positions_continue_those_of_the_slot(columns: int) -> None:
    position, slots = torch.tensor([7, 0, 1000, 3]), torch.tensor([2, 1])
    expected_position = position.clone()
    frequencies = 10000.0 ** (-torch.arange(6) / 6)
    expected = next_positions_reference(expected_position, slots, columns, frequencies)
    found = next_positions(position, slots, columns, frequencies)
    assert torch.equal(found[0], expected[0])
    for angles, expected_angles in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(angles, expected_angles, rtol=0, atol=1e-4)
    assert torch.equal(position, expected_position)
    assert position.tolist() == [7, columns, 1000 + columns, 3]


@pytest.mark.parametrize(("dtype", "divisor"), [(torch.float32, 1), (torch.float16, 3)])
def test_the_sum_of_codes_reads_the_row_of_each_book(dtype: torch.dtype, divisor: int) -> None:
    table = torch.randn(3 * 5, 20, generator=torch.Generator().manual_seed(0))
    codes = torch.tensor([[[0, 4, 2], [1, 1, 1]], [[3, 0, 4], [4, 4, 4]]])
    expected = sum_codes_reference(table, codes, dtype, divisor)
    with torch.no_grad(), enabled_on_cpu():
        found = sum_codes(table, codes, dtype, divisor)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=1e-3 if dtype == torch.float16 else 1e-6, atol=1e-6)
