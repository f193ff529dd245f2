# SPDX-License-Identifier: Apache-2.0
"""How many streams fit into the memory, and the table of its usage."""

import logging
from dataclasses import replace
from typing import cast

import pytest
import torch

from conftest import Loaded
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.memory import (
    DEFAULT_CPU_STREAMS,
    MAX_DEFAULT_GPU_STREAMS,
    MemoryUsage,
    fit_max_streams,
    usage_table,
)
from polyvox.engine.model_runner import ModelRunner
from polyvox.errors import InvalidRequest
from polyvox.models.qwen3_omni.speech_model import Qwen3OmniModel

STREAM = 100_000_000  # bytes
AUTOMATIC = EngineConfig(max_streams=0, context=1024)
GPU, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of 24 GB of which 20 are free."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (20_000_000_000, 24_000_000_000))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("config", "slots"),
    [
        (AUTOMATIC, 170),  # 90 % of 20 GB, less one
        (replace(AUTOMATIC, memory_gb=2.05), 20),
        (replace(AUTOMATIC, memory_gb=50), 170),
        (EngineConfig(max_streams=3), 3),
        (EngineConfig(max_streams=170), 170),
        (EngineConfig(max_streams=10, memory_gb=2), 10),
    ],
)
def test_a_gpu_has_the_configured_streams_or_as_many_as_fit(config: EngineConfig, slots: int) -> None:
    assert fit_max_streams(config, GPU, STREAM) == replace(config, max_streams=slots)


@pytest.mark.usefixtures("gpu")
def test_the_default_number_of_streams_is_limited() -> None:
    assert fit_max_streams(AUTOMATIC, GPU, 1000).max_streams == MAX_DEFAULT_GPU_STREAMS
    assert fit_max_streams(AUTOMATIC, CPU, 1000).max_streams == DEFAULT_CPU_STREAMS
    assert fit_max_streams(EngineConfig(max_streams=300), GPU, 1000).max_streams == 300


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "config", [replace(AUTOMATIC, max_streams=171), replace(AUTOMATIC, max_streams=3, memory_gb=0.29)]
)
def test_streams_that_do_not_fit_are_rejected_with_the_number_that_fits(config: EngineConfig) -> None:
    most = 170 if config.memory_gb is None else 2  # graphs and workspaces need the rest
    expected = rf"at most {most} with a context of 1024 \(got {config.max_streams}\)"
    with pytest.raises(InvalidRequest, match=expected):
        fit_max_streams(config, GPU, STREAM)


@pytest.mark.usefixtures("gpu")
def test_an_engine_without_memory_for_one_stream_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="at most 0 with a context of 1024"):
        fit_max_streams(replace(AUTOMATIC, memory_gb=0.05), GPU, STREAM)


def test_the_table_is_aligned_and_adds_up() -> None:
    shown = usage_table(
        [
            MemoryUsage("weights", 4_510_000_000, "bfloat16"),
            MemoryUsage("keys and values", 12_000_000_000, "64 streams"),
        ]
    )
    assert shown.splitlines() == [
        "  weights             4.51 GB  bfloat16",
        "  keys and values    12.00 GB  64 streams",
        "  total              16.51 GB",
    ]


def test_a_context_of_0_is_the_models_default(loaded: Loaded) -> None:
    for checkpoint, context in (("custom_voice", 1024), ("omni-plain", 512 + 4095)):
        model = loaded(checkpoint, "float32").model
        assert ModelRunner(model, EngineConfig(max_streams=1)).config.context == context
        assert ModelRunner(model, EngineConfig(max_streams=1, context=300)).config.context == 300


def test_the_weights_include_the_text_embeddings_outside_of_the_talker(loaded: Loaded) -> None:
    model = cast(Qwen3OmniModel, loaded("omni-plain", "float32").model)
    table = model.model.text_embedding.weight.nbytes
    usage = ModelRunner(model, EngineConfig(max_streams=1)).memory()[0]
    talker = sum(tensor.nbytes for tensor in model.model.talker.parameters())
    assert usage.size == talker + table + model.vocoder.nbytes


def test_the_engine_logs_its_memory_usage_at_start(loaded: Loaded, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "polyvox.engine.engine")
    engine = LocalEngine(loaded("custom_voice", "float32").model, replace(AUTOMATIC, context=320))
    engine.close()
    [logged] = [record.getMessage() for record in caplog.records if "memory" in record.message]
    rows = {line[2:20].strip(): line for line in logged.splitlines()[1:]}
    assert list(rows)[:3] == ["weights", "keys and values", "slots"]
    assert list(rows)[-1] == "total"
    assert "float32" in rows["weights"]
    assert f"{engine.config.max_streams} streams (max_streams) × 320 positions (context)" in rows["keys and values"]
    assert f"{engine.config.pages} pages of 16" in rows["keys and values"]
    assert engine.stats()["slots"] == engine.config.max_streams > 0
