# SPDX-License-Identifier: Apache-2.0
"""The gradients of the losses have fixed shares, whatever the scales of the losses are."""

from collections.abc import Iterator

import pytest
import torch

from training.adversarial import SHARES, AdversarialLoss


@pytest.fixture(autouse=True)
def gradients() -> Iterator[None]:
    """The other tests run without gradients."""
    with torch.enable_grad():
        yield


@pytest.fixture
def loss() -> AdversarialLoss:
    torch.manual_seed(0)
    return AdversarialLoss(torch.device("cpu"))


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    return 0.1 * torch.randn(2, 4096), 0.1 * torch.randn(2, 4096)


def test_the_spectral_gradient_keeps_its_scale(loss: AdversarialLoss) -> None:
    made, target = samples()
    loss.schedule(1.0, 0.0, 0.0)
    leaf = made.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(loss.spectral(leaf, target), leaf)
    assert torch.allclose(loss.gradient(made, target, adversarial=False), wanted, rtol=1e-4, atol=1e-9)


def test_a_share_is_relative_to_the_norm_of_the_spectral_gradient(loss: AdversarialLoss) -> None:
    made, target = samples()
    loss.schedule(1.0, 0.0, 1.0)
    loss.shares["spectral"].zero_()
    found = loss.gradient(made, target)
    assert float(found.norm()) == pytest.approx(SHARES["adversarial"][0] * float(loss.norms["spectral"]), rel=1e-3)


def test_the_discriminators_learn_and_the_decoder_receives_their_gradient(loss: AdversarialLoss) -> None:
    made, target = samples()
    loss.schedule(1.0, 1.0, 1.0)
    before = [parameter.detach().clone() for parameter in loss.discriminators.parameters()]
    with_discriminators = loss.gradient(made, target)
    assert any(not torch.equal(a, b) for a, b in zip(before, loss.discriminators.parameters(), strict=True))
    assert not torch.allclose(with_discriminators, loss.gradient(made, target, adversarial=False))
    assert {"spectral", "adversarial", "matching", "discriminators"} == loss.values().keys()


def test_the_adversarial_share_is_zero_before_the_discriminators_start(loss: AdversarialLoss) -> None:
    loss.schedule(1.0, 0.5, 0.0)
    assert float(loss.shares["adversarial"]) == 0
    assert float(loss.shares["spectral"]) == SHARES["spectral"][0]
    loss.schedule(1.0, 0.5, 1.0)
    assert float(loss.shares["adversarial"]) == pytest.approx(sum(SHARES["adversarial"]) / 2)


def test_the_spectral_gradient_of_a_segment_has_its_factor(loss: AdversarialLoss) -> None:
    made, target = samples()
    loss.schedule(1.0, 0.0, 0.0)
    whole = loss.gradient(made, target, adversarial=False)
    part = loss.gradient(made, target, False, torch.tensor([0.25, 1.0]))
    assert torch.allclose(part[0], 0.25 * whole[0])
    assert torch.allclose(part[1], whole[1])
