# SPDX-License-Identifier: Apache-2.0
"""Qwen3-Omni's speech side: rows, tokens and samples equal those of transformers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import DEVICE
from parity import TOLERANCE, Batch, Golden, golden, relative_error
from polyvox.models.layers.talker_config import CONTROL_IDS
from polyvox.models.qwen3_omni.checkpoint import load_weights
from polyvox.models.qwen3_omni.model import Qwen3Omni
from polyvox.models.qwen3_omni.prompt import build_prompt
from polyvox.models.qwen3_omni.synthetic import write_tiny
from polyvox.models.request import Sampling
from polyvox.models.talker_generator import TalkerGenerator
from reference.omni_cases import CODE2WAV_FRAMES, CONVERSATIONS, END, Conversation

pytestmark = pytest.mark.slow

DTYPES = ("float32", "float64")
SHAPES = ("plain", "wide")
LINEAR = [case for case in CONVERSATIONS if case.media != "image"]
ids = [f"{case.shape}-{case.name}" for case in LINEAR]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Qwen3Omni]:
    folder: Path = tmp_path_factory.mktemp("omni")
    for shape in SHAPES:
        write_tiny(folder / shape, shape)
    return {
        (shape, dtype): load_weights(folder / shape, torch.device(DEVICE), getattr(torch, dtype))
        for shape in SHAPES
        for dtype in DTYPES
    }


def generator_of(model: Qwen3Omni) -> TalkerGenerator:
    return TalkerGenerator(model.talker, model.config.talker, model.config.tts_pad_id)


def rows_of(model: Qwen3Omni, case: Conversation, expected: Golden) -> tuple[torch.Tensor, torch.Tensor]:
    """The prompt rows of a conversation and the text rows after it."""
    answer = expected["answer"].tolist()
    # The reference implementation never reads the last token, whether it is the end or a limit.
    prompt = build_prompt(model.config, case.prompt, answer[:-1], case.speaker, closed=True)
    rows, text = generator_of(model).embed(prompt.rows, prompt.rows.trailing)
    if prompt.media:
        into, where = zip(*prompt.media, strict=True)
        hidden = torch.from_numpy(expected["hidden"][list(where)]).to(rows)
        rows[list(into)] = model.talker.hidden_projection(hidden)
    return rows, text


def greedy(model: Qwen3Omni, case: Conversation) -> Sampling:
    sampling = model.config.sampling
    return replace(sampling, temperature=0.0, predictor_temperature=0.0, min_frames=case.min_frames)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", LINEAR, ids=ids)
def test_a_conversation_equals_the_reference(
    case: Conversation, dtype: str, models: dict[tuple[str, str], Qwen3Omni]
) -> None:
    model, expected = models[case.shape, dtype], golden(f"omni-{case.shape}-{case.name}", dtype)
    rows, text = rows_of(model, case, expected)
    assert relative_error(rows, expected["prefill"]) < TOLERANCE[dtype]
    assert relative_error(text, expected["trailing"]) < TOLERANCE[dtype]
    batch = Batch(generator_of(model), [rows], [text], [greedy(model, case)])
    theirs, frames = expected["codes"], []
    for _ in range(len(theirs)):
        codes, ended = batch.frame()
        assert not ended.any()
        frames.append(codes[0])
    ours = torch.stack(frames)
    np.testing.assert_array_equal(ours.cpu().numpy(), theirs)
    if len(theirs) < case.frames - 1:
        assert batch.frame()[1].all(), "the reference ended here"
    samples, _ = model.code2wav(ours[None], model.code2wav.initial_state(1))
    assert relative_error(samples[0, model.code2wav.delay_samples :], expected["audio"]) < TOLERANCE[dtype]


@torch.inference_mode()
@pytest.mark.parametrize("dtype", DTYPES)
def test_conversations_in_one_batch_have_the_codes_of_each_alone(
    dtype: str, models: dict[tuple[str, str], Qwen3Omni]
) -> None:
    """No buffer of the predictor is shared, and rows are added to rows of their own stream."""
    cases = [case for case in LINEAR if case.shape == "wide"]
    model = models["wide", dtype]
    expected = [golden(f"omni-wide-{case.name}", dtype) for case in cases]
    rows, texts = zip(*(rows_of(model, case, each) for case, each in zip(cases, expected, strict=True)), strict=True)
    batch = Batch(generator_of(model), list(rows), list(texts), [greedy(model, case) for case in cases])
    frames = torch.stack([batch.frame()[0] for _ in range(max(len(each["codes"]) for each in expected))])
    for index, each in enumerate(expected):
        np.testing.assert_array_equal(frames[: len(each["codes"]), index].cpu().numpy(), each["codes"])


@torch.inference_mode()
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from(DTYPES),
)
def test_any_chunking_gives_the_samples_of_the_reference(
    sizes: list[int], shape: str, dtype: str, models: dict[tuple[str, str], Qwen3Omni]
) -> None:
    expected, codec = golden(f"omni-{shape}-code2wav", dtype), models[shape, dtype].code2wav
    codes = torch.from_numpy(expected["codes"]).to(DEVICE)
    state, start, chunks = codec.initial_state(len(codes)), 0, []
    while start < CODE2WAV_FRAMES:
        stop = min(start + sizes[len(chunks) % len(sizes)], CODE2WAV_FRAMES)
        samples, state = codec(codes[:, start:stop], state)
        chunks.append(samples)
        start = stop
    made = torch.cat(chunks, dim=1)[:, codec.delay_samples :]
    assert relative_error(made, expected["audio"]) < TOLERANCE[dtype]


def test_code2wav_has_the_published_delay() -> None:
    from polyvox.models.qwen3_omni.synthetic import published_config, random_model

    model = random_model(published_config(), torch.device("meta"), torch.bfloat16)
    assert model.code2wav.delay_samples == 555
    assert sum(tensor.numel() for tensor in model.talker.parameters()) == 3_324_596_480
    assert sum(tensor.numel() for tensor in model.code2wav.parameters()) == 216_016_577


def test_control_ids_are_the_end_of_the_vocabulary(models: dict[tuple[str, str], Qwen3Omni]) -> None:
    talker = models["plain", "float32"].config.talker
    assert talker.vocab_size - CONTROL_IDS <= talker.eos_id < talker.vocab_size
    assert talker.eos_id != END
