# SPDX-License-Identifier: Apache-2.0
"""What kernels read of weights is computed again when any of these weights changes."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from polyvox import kernels
from polyvox.kernels import sample_conv, wgmma_conv
from polyvox.models.layers.conv_layers import (
    CausalConv,
    CausalUpsample,
    ResidualUnit,
    SampleConv,
    SnakeBeta,
)
from polyvox.models.layers.decoder_pass import DecoderPass
from polyvox.models.qwen3_tts import codec
from polyvox.models.qwen3_tts.codec import SplitQuantizer
from polyvox.models.qwen3_tts.config import CodecConfig

CHANNELS = 192
STEP = DecoderPass({"": torch.zeros(1)}, torch.zeros(1, dtype=torch.int64))


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The weights of each launch, which computes nothing here."""
    found: list[Any] = []

    def launch_unit(x: Tensor, active: Tensor, stages: Any, *_: object) -> tuple[Tensor, Tensor]:
        found.append(stages)
        return x, active

    def launch_conv(x: Tensor, _: object, stages: Any, *__: object) -> tuple[Tensor, Tensor]:
        found.append(stages)
        return x, x

    def launch_samples(x: Tensor, operand: Tensor, *_: object) -> Tensor:
        found.append(operand)
        return x

    def launch_sum(table: Tensor, codes: Tensor, *_: object) -> Tensor:
        found.append(table)
        return torch.zeros(*codes.shape[:2], table.shape[1])

    monkeypatch.setattr(kernels, "active", lambda _: True)
    for name in ("supports_unit", "supports_conv"):
        monkeypatch.setattr(wgmma_conv, name, lambda *_: True)
    monkeypatch.setattr(sample_conv, "supports", lambda *_: True)
    monkeypatch.setattr(sample_conv, "sample_conv", launch_samples)
    monkeypatch.setattr(wgmma_conv, "upsample", launch_conv)
    monkeypatch.setattr(wgmma_conv, "residual_unit", launch_unit)
    monkeypatch.setattr(wgmma_conv, "convolution", launch_conv)
    monkeypatch.setattr(codec, "sum_codes", launch_sum)
    return found


def initialized(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.1)
    return module


def assert_repacked_after_each_change(run: Any, weights: dict[str, nn.Parameter], packed: list[Any]) -> None:
    run()
    run()
    assert packed[0] is packed[1]
    for name, weight in weights.items():
        weight.add_(1)
        run()
        assert packed[-1] is not packed[-2], name


@torch.no_grad()
def test_a_residual_unit_is_packed_again_when_any_of_its_weights_changes(packed: list[Any]) -> None:
    unit, then = (
        cast(ResidualUnit, initialized(ResidualUnit(CHANNELS, 1))),
        cast(SnakeBeta, initialized(SnakeBeta(CHANNELS))),
    )
    x = torch.zeros(1, CHANNELS, 4)
    weights = {name: weight for name, weight in unit.named_parameters() if not name.startswith("act1")}
    weights |= {f"then.{name}": weight for name, weight in then.named_parameters()}
    assert_repacked_after_each_change(lambda: unit(x, x, STEP, then, True), weights, packed)


@torch.no_grad()
def test_a_convolution_is_packed_again_when_any_of_its_weights_changes(packed: list[Any]) -> None:
    conv, then = (
        cast(CausalConv, initialized(CausalConv(64, CHANNELS, 3))),
        cast(SnakeBeta, initialized(SnakeBeta(CHANNELS))),
    )
    weights = dict(conv.named_parameters()) | {f"then.{name}": weight for name, weight in then.named_parameters()}
    assert_repacked_after_each_change(lambda: conv.run(torch.zeros(1, 64, 4), STEP, then=then), weights, packed)


@torch.no_grad()
def test_the_last_upsampling_is_packed_again_when_any_of_its_weights_changes(
    packed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wgmma_conv, "supports_conv", lambda *_: False)
    monkeypatch.setattr(wgmma_conv, "supports_upsample", lambda *_: True)
    upsample, then = (
        cast(CausalUpsample, initialized(CausalUpsample(192, 96, 6, 3))),
        cast(SnakeBeta, initialized(SnakeBeta(96))),
    )
    weights = dict(upsample.named_parameters()) | {f"then.{name}": weight for name, weight in then.named_parameters()}
    assert_repacked_after_each_change(lambda: upsample.run(torch.zeros(1, 192, 4), STEP, then=then), weights, packed)


@torch.no_grad()
def test_the_last_layer_is_packed_again_when_its_weight_changes(packed: list[Any]) -> None:
    last = cast(SampleConv, initialized(SampleConv(96, 1, 7)))
    weights = {"weight": cast(nn.Parameter, last.conv.weight)}
    assert_repacked_after_each_change(lambda: last.samples(torch.zeros(1, 96, 8), STEP), weights, packed)


@torch.no_grad()
def test_the_table_of_codes_is_computed_again_when_any_codebook_changes(packed: list[Any]) -> None:
    config = cast(CodecConfig, SimpleNamespace(codebook_dim=8, codebook_size=5, quantizers=3))
    quantizer = cast(SplitQuantizer, initialized(SplitQuantizer(config)))
    weights = {name: weight for name, weight in quantizer.named_parameters() if "input_proj" not in name}
    codes = torch.zeros(1, 2, 3, dtype=torch.int64)
    quantizer(codes)
    for name, weight in weights.items():
        weight.add_(1)
        quantizer(codes)
        assert not torch.equal(packed[-1], packed[-2]), name
