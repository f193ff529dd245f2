# SPDX-License-Identifier: Apache-2.0
"""What launches read before they wait, and when they let the next launch start: launch_overlap.py has the rules."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels import launch_hazards
from kernels.launch_hazards import (
    READ_AND_WRITTEN,
    WAIT_FIRST,
    Event,
    Region,
    cuda_signature,
    events_of,
    hazards,
    triton_effects,
)
from polyvox import kernels
from polyvox.engine.config import EngineConfig
from polyvox.engine.generator_runner import GeneratorRunner
from polyvox.engine.graphs import GraphedCall
from polyvox.engine.vocoder_runner import VocoderRunner
from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.gpu import GPUS
from polyvox.kernels.large_batch_attention import large_batch_kernel
from polyvox.kernels.launches import META
from polyvox.kernels.linear_plan import choose_plan
from polyvox.kernels.small_batch_linear import launch_plan, matrix_kernel, vector_kernel
from polyvox.models.registry import LoadOptions, random_model

FOLDER = Path(kernels.__file__).parent
STREAMS = 1024
CACHE, ROWS = Region(1, 0, 100), Region(2, 0, 100)


@pytest.fixture(autouse=True)
def _nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaSource, "available", lambda _: True)


@pytest.mark.parametrize("name", [name for name in WAIT_FIRST if name != "wgmma_linear.cu"])
def test_the_next_launch_starts_after_the_wait(name: str) -> None:
    source = (FOLDER / name).read_text()
    assert source.count("wait_for_previous();") == source.count("start_next();") == 1
    assert source.index("wait_for_previous();") < source.index("start_next();")


def test_large_products_start_the_next_launch_after_their_wait() -> None:
    source = (FOLDER / "wgmma_linear.cu").read_text()
    assert source.count("  wait_for_previous();\n  if (threadIdx.x == 0) start_next();\n") == 1
    assert source.count("start_next();") == 1


def calls(
    model: str, kv_dtype: torch.dtype, weight_dtype: torch.dtype | None = None, deterministic: bool = False
) -> list[GraphedCall]:
    """All calls of generator and vocoder."""
    with torch.inference_mode():
        speech = random_model(model, LoadOptions(META, torch.bfloat16, kv_dtype=kv_dtype))
        if weight_dtype is not None:
            speech.generator.quantize(weight_dtype)
        config = EngineConfig(STREAMS, 256, deterministic=deterministic)
        generator = GeneratorRunner(speech.generator, config, fixed_sizes=True)
        vocoder = VocoderRunner(
            speech.vocoder,
            generator.state.codes,
            STREAMS,
            small_model=False,
            deterministic=deterministic,
            fixed_sizes=True,
            pcm=True,
        )
    assert generator.graphs is not None
    assert vocoder.graphs is not None
    return [call for family in (*generator.graphs.families, *vocoder.graphs.families) for call in family.values()]


def check(some: list[GraphedCall], architecture: int) -> None:
    num_early = 0
    for call in some:
        events = events_of(call.run, GPUS[architecture])
        assert not list(hazards(events))
        num_early += sum(bool(event.early) for event in events)
    assert num_early > 500


@pytest.mark.slow
def test_no_launch_reads_before_its_wait_what_another_may_still_write() -> None:
    check(calls("1.7B", torch.int8), 90)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "model", "kv_dtype", "weight_dtype"),
    [
        (90, "1.7B", torch.bfloat16, None),
        (90, "1.7B", torch.float8_e4m3fn, torch.int8),
        (90, "0.6B", torch.int8, None),
        (90, "omni", torch.int8, None),
        (100, "1.7B", torch.int8, None),
        (120, "1.7B", torch.int8, None),
    ],
)
def test_the_same_for_other_engines(
    architecture: int, model: str, kv_dtype: torch.dtype, weight_dtype: torch.dtype | None
) -> None:
    """A third of the sizes."""
    check(calls(model, kv_dtype, weight_dtype)[::3], architecture)


@pytest.mark.slow
def test_the_same_for_a_deterministic_engine() -> None:
    check(calls("1.7B", torch.int8, deterministic=True), 90)


@pytest.mark.parametrize(("rows", "name"), [(1, "vector_kernel"), (2, "matrix_kernel")])
def test_a_product_that_is_read_too_early_is_found(rows: int, name: str) -> None:
    """It has no scales, squares and gain: the launcher passes the result instead."""
    x, weight = (torch.empty(size, 64, dtype=torch.bfloat16, device=META) for size in (rows, 128))
    made: list[Tensor] = []
    plan = choose_plan(rows, weight, gpu=GPUS[90])
    (event,) = events_of(lambda: made.append(launch_plan(x, weight, False, plan)), GPUS[90])
    assert event.name == name
    assert {written.end - written.first for written in event.written} == {made[0].nbytes}
    reader = Event("reader", (), (("keys", event.written[0]),), overlaps=True)
    assert len(list(hazards([event, reader]))) == 1


def test_what_pytorch_writes_is_recorded() -> None:
    rows = torch.empty(4, 64, device=META)

    def call() -> None:
        rows[1].add_(1)
        torch._foreach_mul_([rows[2:]], 2)
        torch.neg(rows[2:], out=rows[:2])
        rows.view(-1)

    events = events_of(call, GPUS[90])
    starts = [[(each.first, each.end) for each in event.written] for event in events]
    assert starts == [[(256, 512)], [(512, 1024)], [(0, 512)]]


@pytest.mark.slow
def test_a_sampler_that_started_the_next_launch_before_its_wait_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention of the predictor reads, before it waits, the keys of earlier passes."""
    frames = [call for call in calls("1.7B", torch.int8) if call.rows == 8]
    others = tuple(name for name in WAIT_FIRST if name != "code_draw.cu")
    monkeypatch.setattr(launch_hazards, "WAIT_FIRST", others)
    cuda_signature.cache_clear()
    try:
        found = [report for call in frames for report in hazards(events_of(call.run, GPUS[90]))]
    finally:
        cuda_signature.cache_clear()
    assert any("reads keys before page_attention.cu" in report for report in found)


def test_what_a_launch_reads_early_must_have_ended_before_the_launches_that_may_run() -> None:
    writer = Event("writer", (CACHE,), overlaps=True)
    early = Event("early", (ROWS,), overlaps=True, starts_next=True)
    late = Event("late", (ROWS,), overlaps=True)
    plain = Event("plain", (ROWS,))
    reader = Event("reader", (), (("keys", CACHE),), overlaps=True)
    assert not list(hazards([writer, late, reader]))
    assert not list(hazards([writer, plain, reader]))
    assert not list(hazards([writer, late, early, early, reader]))
    assert not list(hazards([writer, early, late, reader]))
    assert list(hazards([writer, reader])) == ["reader (launch 1) reads keys before writer (launch 0) has ended"]
    assert len(list(hazards([writer, early, reader]))) == 1
    assert len(list(hazards([writer, early, early, reader]))) == 1
    assert len(list(hazards([plain, Event("writer", (CACHE,)), early, reader]))) == 1
    assert not list(hazards([Event("other", (Region(1, 100, 200), Region(3, 0, 100))), reader]))


def test_effects_follow_from_the_source() -> None:
    flags = {"OVERLAP": True, "QUANTIZED": False, "ADD": True, "GATED": False, "SQUARES": 0, "SPLITS": 1}
    vector = triton_effects(vector_kernel.function, tuple(flags.items()))
    assert vector.written == {"out", "gained", "out_squares"}
    assert vector.early == {"weight", "gain"}
    assert vector.starts_next
    for early_start, steps in ((False, 4), (True, 1)):
        constants = flags | {"EARLY_START": early_start, "DEPTH": 128, "INPUTS": 128 * steps, "QUANTIZED": True}
        matrix = triton_effects(matrix_kernel.function, tuple(constants.items()))
        assert matrix.written == {"out", "gained", "out_squares"}
        assert matrix.early == {"gain", "scales", "weight"}
        assert matrix.starts_next == early_start
    flags = {"QUANTIZED": False, "PREFETCH": True, "NORM": True, "BY_ROW": False, "OVERLAP": True}
    attention = triton_effects(large_batch_kernel.function, tuple(flags.items()))
    assert attention.early >= {"keys", "values"}  # of earlier positions, by addresses of another type
    signature = cuda_signature("code_draw.cu", "first_code_draw")
    assert signature.parameters[:2] == ("logits", "slots")
    assert signature.effects.written == {"codes"}
    assert "seen" in signature.effects.early
    assert "logits" not in signature.effects.early
    assert cuda_signature("prefetch_linear.cu", "product_2_1_1_8_4").effects.written == {"out", "gained", "squares"}


@pytest.mark.parametrize(("file", "names"), READ_AND_WRITTEN.items())
def test_parameters_that_are_read_and_written_exist(file: str, names: tuple[str, ...]) -> None:
    """A renamed parameter would no longer be checked."""
    text = (FOLDER / file).read_text()
    assert all(re.search(rf"\*{name}\b", text) for name in names)
