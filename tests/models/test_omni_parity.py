# SPDX-License-Identifier: Apache-2.0
"""Qwen3-Omni's speech side: rows, tokens and samples equal those of transformers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from conftest import DEVICE, Loaded
from parity import TOLERANCE, Batch, Golden, embed, golden, relative_error
from polyvox.models.layers.talker_config import CONTROL_IDS
from polyvox.models.protocol import PreparedRequest
from polyvox.models.qwen3_omni.speech_model import Qwen3OmniModel
from polyvox.models.qwen3_omni.synthetic import published_config, random_model
from polyvox.models.request import Request, Sampling, ThinkerPrompt
from polyvox.models.talker_generator import SamplingPayload
from reference.omni_cases import CODE2WAV_FRAMES, CONVERSATIONS, END, Conversation

pytestmark = pytest.mark.slow

DTYPES = ("float32", "float64")
SHAPES = ("plain", "wide")
ids = [f"{case.shape}-{case.name}" for case in CONVERSATIONS]
Models = dict[tuple[str, str], Qwen3OmniModel]


@pytest.fixture(scope="module")
def models(loaded: Loaded) -> Models:
    return {
        (shape, dtype): cast(Qwen3OmniModel, loaded(f"omni-{shape}", dtype).model)
        for shape in SHAPES
        for dtype in DTYPES
    }


def prepare(model: Qwen3OmniModel, case: Conversation, expected: Golden) -> PreparedRequest:
    """The request of a conversation with its whole answer."""
    # The reference implementation never reads the last token, whether it is the end or a limit.
    answer = expected["answer"].tolist()[:-1]
    prompt = ThinkerPrompt(case.prompt, expected.get("media_rows"), expected.get("positions"))
    request = Request("", case.speaker, seed=0, sampling=greedy(case), live=True, guard=False, thinker_prompt=prompt)
    prepared = model.prepare(request, answer)
    return replace(prepared, text=[*prepared.text, *model.text_ids([], last=True)])


def greedy(case: Conversation) -> Sampling:
    return Sampling(temperature=0.0, predictor_temperature=0.0, min_frames=case.min_frames)


def batch_of(model: Qwen3OmniModel, requests: Sequence[PreparedRequest]) -> Batch:
    payloads = [cast(SamplingPayload, each.generator_payload) for each in requests]
    return Batch(
        model.generator,
        [each.rows for each in requests],
        [each.text for each in requests],
        [payload.sampling for payload in payloads],
        offsets=[payload.rotary_offsets for payload in payloads],
    )


@torch.inference_mode()
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CONVERSATIONS, ids=ids)
def test_a_conversation_equals_the_reference(case: Conversation, dtype: str, models: Models) -> None:
    model, expected = models[case.shape, dtype], golden(f"omni-{case.shape}-{case.name}", dtype)
    request = prepare(model, case, expected)
    assert relative_error(embed(model.generator, request.rows), expected["prefill"]) < TOLERANCE[dtype]
    assert relative_error(model.generator.text_table.rows[list(request.text)], expected["trailing"]) < TOLERANCE[dtype]
    batch = batch_of(model, [request])
    theirs, frames = expected["codes"], []
    for _ in range(len(theirs)):
        codes, ended = batch.frame()
        assert not ended.any()
        frames.append(codes[0])
    ours = torch.stack(frames)
    np.testing.assert_array_equal(ours.cpu().numpy(), theirs)
    if len(theirs) < case.frames - 1:
        assert batch.frame()[1].all(), "the reference ended here"
    code2wav = model.model.code2wav
    samples, _ = code2wav(ours[None], code2wav.initial_state(1))
    assert relative_error(samples[0, code2wav.delay_samples :], expected["audio"]) < TOLERANCE[dtype]


@torch.inference_mode()
@pytest.mark.parametrize("dtype", DTYPES)
def test_conversations_in_one_batch_have_the_codes_of_each_alone(dtype: str, models: Models) -> None:
    """No buffer of the predictor is shared, and text rows [B,H] are added to frames of their own stream."""
    cases = [case for case in CONVERSATIONS if case.shape == "wide"]
    model = models["wide", dtype]
    expected = [golden(f"omni-wide-{case.name}", dtype) for case in cases]
    batch = batch_of(model, [prepare(model, case, each) for case, each in zip(cases, expected, strict=True)])
    frames = torch.stack([batch.frame()[0] for _ in range(max(len(each["codes"]) for each in expected))])
    for index, each in enumerate(expected):
        np.testing.assert_array_equal(frames[: len(each["codes"]), index].cpu().numpy(), each["codes"])


@torch.inference_mode()
@pytest.mark.parametrize("case", [case for case in CONVERSATIONS if case.media in ("image", "video")], ids=str)
def test_positions_of_images_and_video_matter(case: Conversation, models: Models) -> None:
    model, expected = models[case.shape, "float64"], golden(f"omni-{case.shape}-{case.name}", "float64")
    without = prepare(
        model, case, {**expected, "positions": np.arange(len(case.prompt), dtype=np.float32)[None].repeat(3, 0)}
    )
    batch = batch_of(model, [without])
    codes = torch.stack([batch.frame()[0][0] for _ in range(len(expected["codes"]))])
    assert not np.array_equal(codes.cpu().numpy(), expected["codes"])


@torch.inference_mode()
def test_bfloat16_keeps_the_precision_of_norms_angles_and_routing(models: Models, loaded: Loaded) -> None:
    """Sums of squares, rotary angles and the router's softmax are float32, so 16 bits are lost only in between."""
    case = next(case for case in CONVERSATIONS if case.shape == "wide" and case.name == "text")
    model = cast(Qwen3OmniModel, loaded("omni-wide", "bfloat16").model)
    hidden = {}
    for dtype, each in (("bfloat16", model), ("float64", models["wide", "float64"])):
        request = prepare(each, case, golden("omni-wide-text", "float64"))
        rows = embed(each.generator, request.rows)
        positions = torch.arange(len(rows), device=DEVICE)[None]
        hidden[dtype] = each.model.talker(rows[None], positions, causal_attention).double()
    error = (hidden["bfloat16"] - hidden["float64"]).norm() / hidden["float64"].norm()
    assert error < 0.02


def causal_attention(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


@torch.inference_mode()
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from(DTYPES),
)
def test_any_chunking_gives_the_samples_of_the_reference(
    sizes: list[int], shape: str, dtype: str, models: Models
) -> None:
    expected, codec = golden(f"omni-{shape}-code2wav", dtype), models[shape, dtype].model.code2wav
    codes = torch.from_numpy(expected["codes"]).to(DEVICE)
    state, start = codec.initial_state(len(codes)), 0
    chunks: list[Tensor] = []
    while start < CODE2WAV_FRAMES:
        stop = min(start + sizes[len(chunks) % len(sizes)], CODE2WAV_FRAMES)
        samples, state = codec(codes[:, start:stop], state)
        chunks.append(samples)
        start = stop
    made = torch.cat(chunks, dim=1)[:, codec.delay_samples :]
    assert relative_error(made, expected["audio"]) < TOLERANCE[dtype]


def test_code2wav_has_the_published_delay() -> None:
    model = random_model(published_config(), torch.device("meta"), torch.bfloat16)
    assert model.code2wav.delay_samples == 555
    assert sum(tensor.numel() for tensor in model.talker.parameters()) == 3_324_596_480
    assert sum(tensor.numel() for tensor in model.code2wav.parameters()) == 216_016_577


def test_control_ids_are_the_end_of_the_vocabulary(models: Models) -> None:
    talker = models["plain", "float32"].config.talker
    assert talker.vocab_size - CONTROL_IDS <= talker.eos_id < talker.vocab_size
    assert talker.eos_id != END
