# SPDX-License-Identifier: Apache-2.0
"""The decoder for training is the same function as the served one."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from polyvox.models.qwen3_tts.codec import CodecDecoder
from polyvox.models.qwen3_tts.config import parse_config
from training import layout
from training.fast_decoder import features, waveform
from training.snake import snake


@pytest.fixture(autouse=True)
def gradients() -> Iterator[None]:
    """The other tests run without gradients."""
    with torch.enable_grad():
        yield


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> CodecDecoder:
    small = layout.decoder_config() | {"decoder_dim": 64, "latent_dim": 64, "hidden_size": 64}
    monkeypatch.setattr(layout, "decoder_config", lambda: small)
    torch.manual_seed(0)
    made = CodecDecoder(parse_config(layout.voice_files(layout.SAMPLING)).codec)
    layout.initialise(made)
    return made


def test_samples_and_gradients_equal_those_of_the_served_decoder(decoder: CodecDecoder) -> None:
    latent = torch.randn(2, 2 * layout.CODE_DIM, 3)
    weights = torch.randn(2, 3 * decoder.config.samples_per_frame)

    def result(samples: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        decoder.zero_grad()
        (samples * weights).sum().backward()
        named = {name: p.grad.clone() for name, p in decoder.named_parameters() if p.grad is not None}
        return samples.detach(), named

    wanted, wanted_gradients = result(decoder.sound(latent, decoder.initial_state(2))[0])
    made, gradients = result(waveform(decoder, features(decoder, latent)))
    assert torch.allclose(made, wanted, atol=1e-5)
    assert gradients.keys() == wanted_gradients.keys()
    for name, gradient in gradients.items():
        assert (gradient - wanted_gradients[name]).norm() <= 1e-3 * wanted_gradients[name].norm() + 1e-5, name


def test_the_gradients_of_the_activation_are_exact() -> None:
    x, alpha, beta = (torch.randn(shape, dtype=torch.float64) for shape in ((2, 5, 4), (4,), (4,)))
    inputs = [value.float().requires_grad_() for value in (x, alpha, beta)]
    made = snake(inputs[0], inputs[1], inputs[2], 3, torch.float32)
    assert made.shape == (2, 8, 4)
    assert not made[:, :3].any()
    slope = torch.randn_like(made)
    found = torch.autograd.grad(made, inputs, slope)
    plain = [value.detach().double().requires_grad_() for value in inputs]
    wanted = plain[0] + torch.sin(plain[0] * plain[1].exp()).square() / plain[2].exp()
    for a, b in zip(found, torch.autograd.grad(wanted, plain, slope[:, 3:].double()), strict=True):
        assert torch.allclose(a.double(), b, atol=1e-4)
