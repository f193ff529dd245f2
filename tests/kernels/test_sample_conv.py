# SPDX-License-Identifier: Apache-2.0
"""Which calls sample_conv.py supports, and its results on a GPU: POLYVOX_TEST_DEVICE=cuda.

tests/conformance/test_sample_conv_on_cpu.py runs its source on a CPU.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from conftest import DEVICE
from gpu_only import needs_gpu
from polyvox.kernels import sample_conv
from polyvox.kernels.conv import PackedConv, pack_conv
from polyvox.kernels.gpu import GPUS, assume
from polyvox.kernels.launches import META, Launch, record_launches
from polyvox.models.layers.conv_layers import SampleConv
from polyvox.models.layers.decoder_pass import DecoderPass

MAX_ERROR = 1e-5  # by the order of the sums


@pytest.fixture
def _nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    for architecture in GPUS:
        monkeypatch.setattr(sample_conv.source(architecture), "_available", True)


def signal(columns: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.empty(2, columns, 96, device=META, dtype=dtype).transpose(1, 2)


def layer() -> PackedConv:
    return pack_conv(torch.zeros(1, 96, 7, dtype=torch.float16), torch.zeros(1), 1)


@pytest.mark.usefixtures("_nvrtc")
def test_float16_and_the_published_size_are_supported_on_every_architecture() -> None:
    for gpu in GPUS.values():
        with assume(gpu):
            assert sample_conv.supports(signal(1920), layer())
            assert sample_conv.supports(signal(6), layer())
            assert not sample_conv.supports(signal(5), layer())
            assert not sample_conv.supports(signal(1920, torch.bfloat16), layer())
            assert not sample_conv.supports(signal(1920), replace(layer(), inputs=64))
            assert not sample_conv.supports(signal(1920), replace(layer(), dilation=3))
    with assume(replace(GPUS[90], architecture=87)):
        assert not sample_conv.supports(signal(1920), layer())


@pytest.mark.usefixtures("_nvrtc")
def test_the_last_layer_is_one_launch() -> None:
    last = SampleConv(96, 1, 7).half().requires_grad_(False)
    state = {"": torch.zeros(3, 6, 96, dtype=torch.float16).transpose(1, 2)}
    step = DecoderPass(state, torch.arange(2))
    with torch.inference_mode():
        listed = record_launches([lambda: last.samples(signal(1920), step)], GPUS[90])
    assert listed == [Launch("sample_conv.cu:90", "", 90)]


@needs_gpu(GPUS)
@pytest.mark.parametrize(("batch", "columns"), [(1, 1920), (3, 7680), (90, 480), (2, 250), (2, 6)])
def test_samples_equal_their_reference(batch: int, columns: int) -> None:
    torch.manual_seed(0)
    weight, bias = (0.02 * torch.randn(1, 96, 7, device=DEVICE)).half(), torch.randn(1, device=DEVICE)
    active = torch.randn(batch, columns, 96, device=DEVICE).half().transpose(1, 2)
    state = torch.randn(batch + 1, 6, 96, device=DEVICE).half().transpose(1, 2)
    absent, before = torch.arange(batch, device=DEVICE), state.clone()
    slots = absent.flip(0)
    wide = [part.double() for part in (active, before[slots], weight, bias)]
    expected = sample_conv.sample_conv_reference(*wide) * (torch.arange(columns, device=DEVICE) >= absent[:, None])
    weights = sample_conv.pack_samples(pack_conv(weight, bias, 1))
    found = sample_conv.sample_conv(active, weights, bias, state, slots, absent)
    torch.testing.assert_close(found.double(), expected, atol=MAX_ERROR, rtol=0)
    assert torch.equal(state[slots], active[..., -6:])
    assert torch.equal(state[batch], before[batch])
