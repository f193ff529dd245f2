# SPDX-License-Identifier: Apache-2.0
"""16-bit PCM of a vocoder against its reference implementation, in Triton's interpreter, and against the host's."""

import numpy as np
import pytest
import torch

from polyvox.audio.pcm import SCALE, from_pcm, to_pcm
from polyvox.kernels.quantize import COLUMNS, quantize, quantize_reference


def samples(rows: int, size: int) -> torch.Tensor:
    """Samples at, near and beyond full scale, on ties and at random."""
    values = 1.2 * torch.randn(rows, size, generator=torch.Generator().manual_seed(size))
    ties = (torch.arange(size) - size // 2 + 0.5) / SCALE
    values[0] = ties
    edges = torch.tensor([1.0, -1.0, 2.0, -2.0, 0.0, -0.0, 0.5 / SCALE, 1.5 / SCALE, 1e-30])
    values[-1, : min(size, 9)] = edges[:size]
    return values


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("size", [1, 480, COLUMNS, COLUMNS + 5])
def test_the_kernel_equals_the_reference(size: int) -> None:
    values = samples(4, size)
    values[1, size // 2], values[2, size - 1] = torch.nan, -torch.inf
    expected = quantize_reference(values, torch.empty(4, size + 1, dtype=torch.int16))
    assert torch.equal(quantize(values), expected)
    assert expected[:, -1].tolist() == [0, 1, 1, 0]
    target = torch.zeros_like(expected)
    assert quantize(values, target) is target
    assert torch.equal(target, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_the_device_rounds_as_the_host_does(dtype: torch.dtype) -> None:
    values = samples(3, 5000).to(dtype)
    expected = to_pcm(values.float().numpy())
    found = quantize(values)
    assert np.array_equal(found[:, :-1].numpy(), expected)
    assert not found[:, -1].any()


def test_pcm_is_the_same_after_a_conversion_to_floats() -> None:
    every = np.arange(-SCALE, SCALE + 1, dtype=np.int16)
    assert np.array_equal(to_pcm(from_pcm(every)), every)


def test_a_batch_without_rows_has_no_output() -> None:
    assert quantize(torch.zeros(0, 5)).shape == (0, 6)
