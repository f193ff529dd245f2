# SPDX-License-Identifier: Apache-2.0
"""Muon makes updates orthogonal, one matrix of a packed parameter at a time."""

import pytest
import torch
from torch import nn

from training.optimizer import UPDATE_RMS, Muon, orthogonal, restart, set_learning_rate

CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", [(3, 16, 40), (2, 40, 16)])
def test_singular_values_become_about_one(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_packed_matrices_are_updated_like_single_ones() -> None:
    torch.manual_seed(0)
    whole = nn.Parameter(torch.randn(24, 16))
    parts = [nn.Parameter(part.detach().clone()) for part in whole.split([16, 8])]
    packed = Muon([(whole, [16, 8])], 0.1, CPU)
    single = Muon([(part, [len(part)]) for part in parts], 0.1, CPU)
    for _ in range(3):
        whole.grad = torch.randn_like(whole)
        for part, gradient in zip(parts, whole.grad.split([16, 8]), strict=True):
            part.grad = gradient.clone()
        packed.step()
        single.step()
    torch.testing.assert_close(whole.detach(), torch.cat([part.detach() for part in parts]))


def test_an_update_has_the_scale_of_the_learning_rate() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.zeros(64, 64))
    optimizer = Muon([(weight, [64])], 1.0, CPU)
    set_learning_rate(optimizer, 0.01)
    weight.grad = 1000 * torch.randn_like(weight)
    optimizer.step()
    assert float(weight.detach().square().mean().sqrt()) == pytest.approx(0.01 * UPDATE_RMS, rel=0.2)


def test_muon_solves_a_linear_problem() -> None:
    torch.manual_seed(0)
    wanted, weight = torch.randn(8, 12), nn.Parameter(torch.zeros(8, 12))
    optimizer = Muon([(weight, [8])], 0.1, CPU, decay=0.0)
    for step in range(200):
        set_learning_rate(optimizer, 0.3 * (1 - step / 200))
        with torch.enable_grad():
            (weight - wanted).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert (weight - wanted).abs().max() < 0.1
    restart(optimizer)
    assert not optimizer.state[weight]["mean"].any()
