# SPDX-License-Identifier: Apache-2.0
"""How many streams fit into the memory, and the table of its usage."""

import logging
from dataclasses import replace
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import Loaded
from polyvox.engine.config import MAX_BATCH, EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.memory import (
    DRIVER_BYTES,
    FREE_SHARE,
    GRAPH_BYTES,
    GRAPH_STREAM_BYTES,
    MAX_CPU_STREAMS,
    MAX_DETERMINISTIC_STREAMS,
    MAX_GPU_STREAMS,
    DeviceBudget,
    MemoryUsage,
    StreamPlan,
    fit_streams,
    limit_gpu_memory,
    usable_bytes,
    usage_table,
)
from polyvox.engine.model_runner import ModelRunner
from polyvox.errors import InvalidRequest
from polyvox.models.qwen3_omni.speech_model import Qwen3OmniModel

GB = 1_000_000_000
AUTOMATIC = EngineConfig(max_streams=0)
CONTEXT = 1024  # the default of the model
GPU, CPU = torch.device("cuda"), torch.device("cpu")


def budget(gigabytes: float = 20, gpu: bool = True, slot: int = 4_000_000, position: int = 100_000) -> DeviceBudget:
    return DeviceBudget(int(gigabytes * GB), gpu, slot, position)


def fit(config: EngineConfig, *budgets: DeviceBudget) -> tuple[int, int, str]:
    plan = fit_streams(config, CONTEXT, budgets)
    assert plan.config == replace(config, max_streams=plan.config.max_streams, context=plan.config.context)
    return plan.config.max_streams, plan.config.context, plan.limited_by


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # A slot needs its state, a quarter of the model's context, and its share of the graphs: 35.6 MB.
        (AUTOMATIC, (539, 256, "memory")),
        (replace(AUTOMATIC, context=1024), (170, 1024, "memory")),
        (EngineConfig(max_streams=3), (3, 1024, "max_streams")),
        (EngineConfig(max_streams=300), (300, 528, "max_streams")),
        (EngineConfig(max_streams=10, context=4096), (10, 4096, "max_streams")),
    ],
)
def test_a_gpu_has_the_configured_streams_and_context_or_as_many_as_fit(
    config: EngineConfig, expected: tuple[int, int, str]
) -> None:
    assert fit(config, budget()) == expected


def test_the_default_number_of_streams_is_limited() -> None:
    large = budget(1e6)
    assert fit(AUTOMATIC, large) == (MAX_GPU_STREAMS, CONTEXT, "max_streams")
    assert fit(AUTOMATIC, replace(large, gpu=False)) == (MAX_CPU_STREAMS, CONTEXT, "max_streams")
    assert fit(AUTOMATIC, large, replace(large, gpu=False, position=0))[0] == MAX_CPU_STREAMS
    assert fit(replace(AUTOMATIC, deterministic=True), large)[0] == MAX_DETERMINISTIC_STREAMS
    assert fit(EngineConfig(max_streams=3000), large)[0] == 3000


def test_a_vocoder_on_another_gpu_may_limit_the_streams() -> None:
    assert fit(AUTOMATIC, budget(), budget(2, position=0)) == (120, 1024, "memory")
    with pytest.raises(InvalidRequest, match="at most 120 "):
        fit(EngineConfig(max_streams=121), budget(), budget(2, position=0))


@pytest.mark.parametrize(
    ("config", "requirement"),
    [
        (EngineConfig(max_streams=540), "at most 539 with a context of 256 (got 540)"),
        (EngineConfig(max_streams=171, context=1024), "at most 170 with a context of 1024 (got 171)"),
        (replace(AUTOMATIC, context=1_000_000), "'model': must leave memory for a stream with a context of 1000000: "),
    ],
)
def test_streams_that_do_not_fit_are_rejected_with_the_number_that_fits(config: EngineConfig, requirement: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        fit(config, budget())
    assert requirement in str(error.value)


@pytest.mark.parametrize(
    ("gpu", "needs"),
    [
        (False, "4.03: 4.00 GB of weights and 0.03 GB for one stream"),
        (True, "5.78: 4.00 GB of weights and 1.78 GB for the driver, graphs and one stream"),
    ],
)
def test_a_limit_that_leaves_no_stream_is_rejected_with_the_least_that_works(gpu: bool, needs: str) -> None:
    least, parts = needs.split(": ")

    def plan(gigabytes: float) -> StreamPlan:
        limit = int(gigabytes * GB) - 4 * GB - (DRIVER_BYTES if gpu else 0)
        usable = max(0, int(limit * (1 - FREE_SHARE)) if gpu else limit)
        device = DeviceBudget(usable, gpu, 4_000_000, 100_000, weights=4 * GB)
        return fit_streams(replace(AUTOMATIC, memory_gb=gigabytes), CONTEXT, [device])

    with pytest.raises(InvalidRequest) as error:
        plan(3)
    requirement = f"must be at least {least} for this model: {parts}"
    assert str(error.value) == f"Invalid value for 'memory_gb': {requirement} (got 3)."
    plan(float(least))
    with pytest.raises(InvalidRequest):
        plan(float(least) - 0.02)


@given(
    gigabytes=st.floats(1, 300),
    gpu=st.booleans(),
    slot=st.integers(1, 10_000_000),
    position=st.integers(1, 300_000),
    max_streams=st.integers(0, 3000),
    context=st.one_of(st.just(0), st.integers(256, 8192)),
)
def test_what_is_planned_fits(
    gigabytes: float, gpu: bool, slot: int, position: int, max_streams: int, context: int
) -> None:
    memory = budget(gigabytes, gpu, slot, position)
    config = EngineConfig(max_streams=max_streams, context=context)
    try:
        streams, positions, _ = fit(config, memory)
    except InvalidRequest:
        return
    graphs = GRAPH_BYTES + min(streams, MAX_BATCH) * GRAPH_STREAM_BYTES if gpu else 0
    assert streams * (slot + positions * position) + graphs <= memory.usable
    assert streams == (max_streams or streams) >= 1
    assert positions == (context or positions) >= 256


def test_a_limit_of_the_memory_includes_weights_and_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    fractions: list[float] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (20 * GB, 24 * GB))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, _: fractions.append(share))
    assert usable_bytes(GPU, 4 * GB, None) == 19 * GB  # the weights are there already
    assert usable_bytes(GPU, 4 * GB, 50) == 19 * GB
    assert usable_bytes(GPU, 4 * GB, 12) == pytest.approx(0.95 * (8 * GB - DRIVER_BYTES), abs=1)
    assert usable_bytes(GPU, 4 * GB, 4) == 0
    assert usable_bytes(CPU, GB, 3) == 2 * GB
    limit_gpu_memory(GPU, 12)
    limit_gpu_memory(GPU, 50)
    limit_gpu_memory(GPU, None)
    limit_gpu_memory(CPU, 12)
    assert fractions == [pytest.approx((12 * GB - DRIVER_BYTES) / (24 * GB)), 1.0]


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
    weights, text_table = ModelRunner(model, EngineConfig(max_streams=1)).memory()[:2]
    talker = sum(tensor.nbytes for tensor in model.model.talker.parameters())
    assert weights.size == talker + table + model.vocoder.nbytes
    config = model.config.talker
    assert text_table.name == "text table"
    assert text_table.size == config.text_vocab_size * config.transformer.hidden_size * 4


def test_the_engine_logs_its_memory_usage_at_start(loaded: Loaded, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "polyvox.engine.engine")
    engine = LocalEngine(loaded("custom_voice", "float32").model, replace(AUTOMATIC, context=320))
    engine.close()
    [logged] = [record.getMessage() for record in caplog.records if "memory usage" in record.message]
    rows = {line[2:20].strip(): line for line in logged.splitlines()[1:]}
    assert list(rows)[:4] == ["weights", "text table", "keys and values", "slots"]
    assert list(rows)[-1] == "total"
    assert "float32" in rows["weights"]
    assert f"{engine.config.max_streams} streams (max_streams) × 320 positions (context)" in rows["keys and values"]
    assert f"{engine.config.pages} pages of 16" in rows["keys and values"]
    assert engine.stats()["slots"] == engine.config.max_streams > 0
