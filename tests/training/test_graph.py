# SPDX-License-Identifier: Apache-2.0
"""Parts that run side by side: results in order, and gradients as in one after the other."""

from functools import partial

import pytest
import torch

from training.adversarial import AdversarialLoss
from training.discriminators import Discriminators
from training.graph import CapturedStep, side_by_side

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_results_are_in_the_order_of_the_parts() -> None:
    assert side_by_side([partial(int, text) for text in ("3", "1", "2")], torch.device("cpu")) == [3, 1, 2]


@needs_gpu
def test_a_captured_step_with_parts_side_by_side_has_the_gradients_of_a_cpu() -> None:
    torch.manual_seed(0)
    expected, samples = Discriminators(), 0.1 * torch.randn(8, 9600)
    found = Discriminators()
    found.load_state_dict(expected.state_dict())
    found.cuda()
    given = samples.cuda()

    def step() -> None:
        found.zero_grad(set_to_none=True)
        found.losses(given)[0].backward()

    with torch.enable_grad():
        expected.losses(samples)[0].backward()
        run = CapturedStep(step, torch.device("cuda"))
        for _ in range(3):
            run()
    for mine, other in zip(found.parameters(), expected.parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        assert torch.allclose(mine.grad.cpu(), other.grad, rtol=0.05, atol=1e-3 * float(other.grad.abs().max()))


@needs_gpu
def test_a_captured_adversarial_gradient_is_that_of_steps_without_a_graph() -> None:
    device = torch.device("cuda")
    torch.manual_seed(0)
    made, target = (0.1 * torch.randn(4, 9600, device=device) for _ in range(2))
    found, losses = torch.zeros_like(made), []
    for _ in range(2):
        torch.manual_seed(1)
        losses.append(AdversarialLoss(device))
        losses[-1].schedule(0.0, 1.0, 1.0)  # a learning rate of 0: every step is the same

    def step() -> None:
        found.copy_(losses[0].gradient(made, target))

    with torch.enable_grad():
        run = CapturedStep(step, device)
        for _ in range(5):
            run()
            expected = losses[1].gradient(made, target)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.02 * float(expected.abs().max()))
