# SPDX-License-Identifier: Apache-2.0
"""Trained layers give the hidden states and gradients of the served ones, compiled or not."""

import shutil

import pytest
import torch
from torch import Tensor

from polyvox import kernels
from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.talker import Talker
from toy_pool import random_pool
from training import layers
from training.batches import Batch, Batches
from training.layers import replace_layers
from training.layout import SAMPLING, initialise, voice_files
from training.losses import read, residual_loss

CONFIG = parse_config(voice_files(SAMPLING))


@pytest.fixture
def talker() -> Talker:
    torch.manual_seed(0)
    model = Talker(CONFIG)
    initialise(model)
    return model


def rows() -> Batch:
    whole = torch.zeros(2, dtype=torch.bool)
    batches = Batches(random_pool([3] * 2, [10] * 2), CONFIG, torch.device("cpu"))
    return batches.rows(torch.arange(2), whole, whole, 32)


def passed(model: Talker) -> list[Tensor]:
    """Hidden states, losses and gradients."""
    model.zero_grad()
    batch = rows()
    with kernels.disabled(), torch.enable_grad():
        hidden = read(model, batch, batch.frames)
        loss = residual_loss(model, hidden, batch, None)
        (hidden.square().mean() + loss.sum()).backward()
    stacks = (model.model, model.code_predictor.model)
    gradients = [parameter.grad for stack in stacks for parameter in stack.layers.parameters()]
    assert all(gradient is not None for gradient in gradients)
    return [hidden.detach(), loss.detach(), *(gradient.clone() for gradient in gradients if gradient is not None)]


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))


def test_trained_layers_equal_the_served_ones(talker: Talker) -> None:
    talker.eval()
    served = passed(talker)
    replace_layers(talker)
    assert_close(passed(talker), served)


def test_layers_have_dropout_in_training_only(talker: Talker) -> None:
    replace_layers(talker)
    assert not torch.equal(passed(talker)[0], passed(talker)[0])
    talker.eval()
    assert torch.equal(passed(talker)[0], passed(talker)[0])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("default")
def test_compiled_layers_equal_eager_ones(talker: Talker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "DROPOUT", 0.0)
    batch, found = rows(), []
    projection = torch.randn(talker.config.hidden_size)  # the mean square of a normed state would be constant
    for compiled in (False, True):
        replace_layers(talker, compiled)
        talker.zero_grad()
        with kernels.disabled(), torch.enable_grad():
            hidden = read(talker, batch, batch.frames)
            (hidden @ projection).mean().backward()
        gradients = [parameter.grad for parameter in talker.model.layers.parameters()]
        found.append([hidden.detach(), *(gradient for gradient in gradients if gradient is not None)])
    assert_close(found[1], found[0])
