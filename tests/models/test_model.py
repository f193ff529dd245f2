# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import DEVICE, Loaded, LoadedTTS
from parity import Batch, embed, prompt_rows
from polyvox.models.qwen3_tts.prompt import Reference, build_prompt
from polyvox.models.request import Layout, Sampling
from polyvox.models.talker_prompt import NO_CODE, Prompt

pytestmark = pytest.mark.slow

REQUEST = st.tuples(
    st.text("abc hello the", min_size=1, max_size=30).filter(str.strip),
    st.sampled_from(["whole", "streaming"]),
    st.sampled_from(["serena", "vivian", "eric"]),
    st.integers(0, 2**64 - 1),
    st.sampled_from([Sampling(), Sampling(temperature=0, predictor_temperature=0), Sampling(top_p=0.7)]),
)
Requests = list[tuple[str, Layout, str, int, Sampling]]


def speak(tts: LoadedTTS, requests: list[tuple[Prompt, int, Sampling]], num_frames: int) -> list[list[list[int]]]:
    """The codes of each request's frames, all of them in one batch."""
    generator = tts.model.generator
    prompts, seeds, sampling = zip(*requests, strict=True)
    batch = Batch(
        tts.model.generator,
        [generator.prompt_rows(prompt) for prompt in prompts],
        [generator.text_ids(prompt.trailing) for prompt in prompts],
        sampling,
        seeds,
    )
    spoken: list[list[list[int]]] = [[] for _ in requests]
    for _ in range(num_frames):
        codes, over = batch.frame()
        for row in (~over).nonzero()[:, 0].tolist():
            spoken[row].append(codes[row].tolist())
    return spoken


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=st.lists(REQUEST, min_size=2, max_size=5))
def test_a_stream_in_a_batch_generates_the_codes_that_it_generates_alone(requests: Requests, loaded: Loaded) -> None:
    compare_batch_with_solo_runs(loaded("custom_voice", "float64"), requests, num_frames=10)


def compare_batch_with_solo_runs(tts: LoadedTTS, requests: Requests, num_frames: int) -> None:
    ready = [
        (
            build_prompt(
                tts.model.config, tts.model.tokenizer.role, tts.model.tokenizer.text(text), layout, "auto", voice
            ),
            seed,
            params,
        )
        for text, layout, voice, seed, params in requests
    ]
    with torch.no_grad():
        together = speak(tts, ready, num_frames)
        assert together == [speak(tts, [request], num_frames)[0] for request in ready]


def test_embedding_a_frame_does_not_mix_the_rows_of_a_batch(loaded: Loaded) -> None:
    talker = loaded("custom_voice", "float64").model.generator.talker
    groups = talker.code_predictor.num_codebooks + 1
    frames = torch.arange(3 * groups, device=DEVICE).view(3, groups) % 64
    together = talker.frame_rows(frames)
    assert together.shape == (3, talker.config.hidden_size)
    for i in range(3):
        torch.testing.assert_close(together[i : i + 1], talker.frame_rows(frames[i : i + 1]), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("kind", "layout", "frames"),
    [
        ("base", "streaming", 0),
        ("base", "streaming", 3),
        ("base", "streaming", 30),
        ("base", "whole", 3),
        ("custom_voice", "streaming", 0),
        ("custom_voice", "whole", 0),
        ("voice_design", "whole", 0),
    ],
)
def test_a_prompt_is_the_sum_of_its_text_and_codec_parts(
    loaded: Loaded, kind: str, layout: Layout, frames: int
) -> None:
    speech = loaded(kind, "float64").model
    generator, config, tokens = speech.generator, speech.config, speech.tokenizer
    ids = tokens.text("the other assistant, the other user")
    prompt = build_prompt(
        config,
        tokens.role,
        ids,
        layout,
        "english",
        speech.voices[0] if kind == "custom_voice" else None,
        kind == "base",
        Reference(tokens.text("hello there"), frames) if frames else None,
        () if kind == "base" else ids[:3],
    )
    chance = torch.Generator().manual_seed(1)
    vector = torch.randn(config.talker.transformer.hidden_size, generator=chance) if kind == "base" else None
    shape = (frames, config.talker.code_groups)
    codes = torch.randint(0, config.predictor.vocab_size, shape, generator=chance) if frames else None
    with torch.inference_mode():
        rows = embed(generator, prompt_rows(generator, prompt, vector, codes))
        expected = generator.talker.text_projection(generator.talker.text_table[list(prompt.text)].to(DEVICE))
        for row, code in enumerate(prompt.codec):
            if code != NO_CODE:
                expected[row] += generator.talker.model.codec_embedding.weight[code]
        if vector is not None and prompt.vector_row is not None:
            expected[prompt.vector_row] += vector.to(expected)
        if codes is not None and prompt.frames_row is not None:
            expected[prompt.frames_row : prompt.frames_row + frames] += generator.talker.frame_rows(codes.to(DEVICE))
        torch.testing.assert_close(rows, expected, atol=1e-12, rtol=1e-12)
