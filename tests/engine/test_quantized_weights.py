# SPDX-License-Identifier: Apache-2.0
"""A model with quantised weights; tests/kernels/test_quantized_matrix.py has their roundings and their kernel."""

from pathlib import Path
from typing import cast
from unittest import mock

import numpy as np
import pytest
import torch

from conftest import Loaded, LoadedTTS
from engine.synthesis import read_all, request
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.memory import MemoryUsage, ModelNeeds
from polyvox.engine.model_runner import ModelRunner
from polyvox.errors import InvalidRequest
from polyvox.kernels.launches import META
from polyvox.kernels.quantized_matrix import dequantize_matrix_reference, quantize_matrix
from polyvox.models.layers.linear import Linear, QuantizableWeights
from polyvox.models.registry import LoadOptions, random_model
from polyvox.server.engine_builder import load_model
from polyvox.server.settings import Settings
from polyvox.tts import QUANTIZED_DTYPES, load, parse_weight_dtype

weight_dtypes = pytest.mark.parametrize("name", QUANTIZED_DTYPES)
TEXTS = ("hello there", "one two three four", "good morning")


def quantized(checkpoints: Path, checkpoint: str, dtype: str, weight_dtype: str) -> LoadedTTS:
    return cast(LoadedTTS, load(checkpoints / checkpoint, device="cpu", dtype=dtype, weight_dtype=weight_dtype))


@weight_dtypes
def test_speech_is_that_of_the_rounded_weights(name: str, checkpoints: Path) -> None:
    """All matrices of the layers and heads are rounded, and nothing else; a batch equals its solo runs."""
    dense = quantized(checkpoints, "custom_voice", "float64", "auto").model
    for module in dense.model.talker.modules():
        if isinstance(module, QuantizableWeights) and not is_kept(dense.model.talker, module):
            matrix = quantize_matrix(module.weight, QUANTIZED_DTYPES[name])
            module.weight.copy_(dequantize_matrix_reference(matrix, torch.float64))
    requests = [request(text, seed=seed, frames=8) for seed, text in enumerate(TEXTS)]
    spoken = []
    for speech in (quantized(checkpoints, "custom_voice", "float64", name).model, dense):
        engine = LocalEngine(speech, EngineConfig(max_streams=2, context=256))
        try:
            spoken.append([read_all(stream) for stream in [engine.submit(each) for each in requests]])
            spoken.append([read_all(engine.submit(each)) for each in requests])
        finally:
            engine.close()
    for made in zip(*spoken, strict=True):
        for other in made[1:]:
            np.testing.assert_allclose(other, made[0], atol=1e-6)


def is_kept(talker: torch.nn.Module, module: QuantizableWeights) -> bool:
    """Embeddings, and projections with a bias, which only make input rows."""
    [name] = [name for name, found in talker.named_modules() if found is module]
    return "embedding" in name or (isinstance(module, Linear) and module.bias is not None)


def test_a_projection_with_a_bias_cannot_be_quantised() -> None:
    projection = Linear(4, 8, bias=True)
    with pytest.raises(ValueError, match="with a bias"):
        projection.quantize(torch.int8)
    assert projection.weight.dtype == torch.float32


@weight_dtypes
def test_the_router_of_experts_keeps_its_weights(name: str, checkpoints: Path, loaded: Loaded) -> None:
    ours, default = (
        tts.model.model.talker
        for tts in (quantized(checkpoints, "omni-plain", "float32", name), loaded("omni-plain", "float32"))
    )
    types = {part: value.dtype for part, value in ours.named_parameters()}
    assert {types[part] for part in types if "router" in part} == {torch.float32}
    assert {types[part] for part in types if ".experts." in part and "weight" in part} == {QUANTIZED_DTYPES[name]}
    assert sum(part.nbytes for part in ours.parameters()) < 0.6 * sum(part.nbytes for part in default.parameters())


def test_the_memory_plan_counts_the_quantised_weights(checkpoints: Path, loaded: Loaded) -> None:
    tts, default = quantized(checkpoints, "custom_voice", "float32", "int8"), loaded("custom_voice", "float32")
    usages = []
    for each in (tts, default):
        generator = each.model.generator
        assert generator.nbytes == sum(part.nbytes for part in generator.parameters())
        usages.append(ModelRunner(each.model, EngineConfig(max_streams=1)).memory()[0])
    assert isinstance(usages[0], MemoryUsage)
    assert "int8 (weight_dtype) and float32" in usages[0].decided
    assert usages[0].size - default.model.vocoder.nbytes == tts.model.generator.nbytes
    assert usages[0].size < usages[1].size


def test_quantised_weights_of_a_published_model_leave_memory_for_more_streams() -> None:
    plans = []
    for weight_dtype in (None, torch.int8):
        model = random_model("1.7B", LoadOptions(META, torch.bfloat16, weight_dtype=weight_dtype))
        host = model.model.talker.text_embedding.weight.nbytes  # type: ignore[attr-defined]
        needs = ModelNeeds.of(model, gpu=True, host_bytes=host)
        plans.append((needs.weights, needs.plan(8 << 30).config.max_streams))
    (weights, streams), (fewer, more) = plans
    assert 1.5e9 < weights - fewer < 1.6e9
    assert more > 1.5 * streams


def test_a_server_loads_the_model_with_its_weight_dtype(checkpoints: Path) -> None:
    settings = Settings(model=str(checkpoints / "custom_voice"), device="cpu", weight_dtype="fp8")
    with mock.patch("polyvox.server.engine_builder.set_up_engine_process"), load_model(settings) as tts:
        assert tts.model.generator.weight_dtype == torch.float8_e4m3fn
        assert tts.model.generator.dtype == torch.float32


def test_other_types_of_weights_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    with pytest.raises(InvalidRequest, match="'weight_dtype': must be one of auto, int8 on a GPU"):
        parse_weight_dtype("fp8", torch.device("cuda"))
    with pytest.raises(InvalidRequest, match="'weight_dtype'"):
        load(device="cpu", weight_dtype="int4")
