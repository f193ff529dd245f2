# SPDX-License-Identifier: Apache-2.0
"""Ids, tokens and samples equal those of the reference implementation."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from conftest import DEVICE, Loaded
from parity import GOLDEN, TOLERANCE, golden, prompt_of, relative_error, run, same_codes
from polyvox.kernels import sampler
from polyvox.models import talker_generator as generator
from polyvox.models.layers import code_predictor
from polyvox.models.layers.rotary import RotaryEmbedding
from polyvox.models.talker_prompt import Prompt
from polyvox.text.phonemes import phonemize
from polyvox.tts import EMBEDDED_VOICE
from reference.cases import CASES, EMBEDDED, PHONEMES, SENTENCES, STREAMED_CODEC_FRAMES, TOKENIZER_TEXTS, Case
from reference.golden import HERE, SCRIPTS, checkpoint_digests, digest

pytestmark = pytest.mark.slow

DTYPES = ("float32", "float64")
CASE = {case.name: case for case in (*CASES, *EMBEDDED)}


def names(cases: tuple[Case, ...]) -> list[str]:
    return [case.name for case in cases]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", names(CASES))
def test_a_case_equals_the_reference(name: str, dtype: str, loaded: Loaded) -> None:
    case, expected = CASE[name], golden(name, dtype)
    ours = run(loaded(case.checkpoint, dtype), case, expected)
    for i, codes in enumerate(ours.codes):
        theirs = expected[f"codes{i}"]
        assert len(theirs) >= 24
        assert len(np.unique(theirs[:, 0])) >= 8
        np.testing.assert_array_equal(codes, theirs)
        frames = len(expected[f"rest_logits{i}"])
        pairs = {
            "prefill": ours.prefill[i],
            "logits": ours.logits[i],
            "rest_logits": ours.rest_logits[i][:frames],
            "audio": ours.audio[i],
        }
        for key, value in pairs.items():
            assert relative_error(value, expected[f"{key}{i}"]) < TOLERANCE[dtype], key
        # In a batch the reference fills short rows up with the pad row, as we do while speaking.
        trailing = expected[f"trailing{i}"][: len(ours.trailing[i])]
        assert relative_error(ours.trailing[i], trailing) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", names(EMBEDDED))
def test_the_embedded_voice_gives_the_tokens_and_samples_of_the_reference(
    name: str, dtype: str, loaded: Loaded
) -> None:
    case, expected = CASE[name], golden(name, dtype)
    assert len(expected["codes0"]) >= 24
    assert len(np.unique(expected["codes0"][:, 0])) >= 8
    ours = run(loaded("embedded", dtype), case, expected)
    np.testing.assert_array_equal(ours.codes[0], expected["codes0"])
    if dtype == "float32":
        assert relative_error(ours.audio[0], expected["audio0"]) < TOLERANCE[dtype]


@pytest.mark.parametrize("speaker", list(SENTENCES))
def test_the_phonemes_of_the_embedded_cases_are_those_of_their_sentences(speaker: str, loaded: Loaded) -> None:
    tokenizer = loaded("embedded", "float32").model.tokenizer
    assert tokenizer.takes_phonemes
    assert phonemize(SENTENCES[speaker]) == PHONEMES[speaker]
    assert tokenizer.text(SENTENCES[speaker]) == tokenizer._encode(PHONEMES[speaker])


def test_a_batch_has_a_stream_that_ends_before_the_others() -> None:
    lengths = [len(golden("custom_voice-batch-whole", "float32")[f"codes{i}"]) for i in range(3)]
    assert min(lengths) < max(lengths)


def test_reference_recordings_are_shorter_equal_and_longer_than_the_text(loaded: Loaded) -> None:
    tts = loaded("base", "float32")
    compared = []
    for name in ("icl-shorter", "icl-equal", "icl-longer"):
        utterance = CASE[f"base-{name}-streaming"].utterances[0]
        assert utterance.reference is not None
        text_rows = (
            len(tts.model.tokenizer.text(utterance.reference[0])) + len(tts.model.tokenizer.text(utterance.text)) + 1
        )
        compared.append(np.sign(utterance.reference[1] + 1 - text_rows))
    assert compared == [-1, 0, 1]


@pytest.mark.parametrize("name", names(CASES))
def test_a_prompt_has_the_ids_of_the_reference(name: str, loaded: Loaded) -> None:
    """The reference implementation encodes whole chat strings and slices them; Polyvox encodes the slices."""
    case, expected = CASE[name], golden(name, "float32")
    tokenizer = loaded(case.checkpoint, "float32").model.tokenizer
    for i, utterance in enumerate(case.utterances):
        assert tokenizer.role + tokenizer.text(utterance.text) == expected[f"chat{i}"][:-5].tolist()
        if utterance.instructions:
            assert tokenizer.instructions(utterance.instructions) == expected[f"instructions{i}"].tolist()
        if utterance.reference:
            assert tokenizer.text(utterance.reference[0]) == expected[f"transcript{i}"][3:-2].tolist()


@pytest.mark.parametrize("checkpoint", ["custom_voice", "embedded"])
@pytest.mark.parametrize("index", range(len(TOKENIZER_TEXTS)))
def test_text_has_the_ids_of_the_reference(checkpoint: str, index: int, loaded: Loaded) -> None:
    with np.load(GOLDEN / "tokenizer.npz") as file:
        expected = file[f"{checkpoint}.{index}"].tolist()
    assert loaded(checkpoint, "float32").model.tokenizer._encode(TOKENIZER_TEXTS[index]) == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_shot_decoding_equals_the_reference(dtype: str, loaded: Loaded) -> None:
    expected, codec = golden("codec", dtype), loaded("custom_voice", dtype).model.model.codec
    codes = torch.from_numpy(expected["short_codes"]).to(DEVICE)
    assert codes.shape[1] == STREAMED_CODEC_FRAMES
    samples, _ = codec(codes, codec.initial_state(len(codes)))
    assert relative_error(samples, expected["short"]) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_long_decode_is_exact_where_the_reference_decodes_in_pieces(dtype: str, loaded: Loaded) -> None:
    """Beyond 300 frames the reference decodes pieces with 25 frames of context, less than the attention window."""
    expected, codec = golden("codec", dtype), loaded("custom_voice", dtype).model.model.codec
    codes = torch.from_numpy(expected["long_codes"]).to(DEVICE)
    samples, _ = codec(codes, codec.initial_state(1))
    border = 300 * codec.config.samples_per_frame
    assert relative_error(samples, expected["long"]) < TOLERANCE[dtype]
    assert relative_error(samples[:, :border], expected["long_chunked"][:, :border]) < TOLERANCE[dtype]
    assert relative_error(samples[:, border:], expected["long_chunked"][:, border:]) > 1e-3


def test_the_golden_files_belong_to_these_scripts_and_weights(checkpoints: Path) -> None:
    manifest = json.loads((GOLDEN / "manifest.json").read_text())
    assert manifest["scripts"] == {name: digest(HERE / name) for name in SCRIPTS}, "run make golden ARGS=--write"
    embedded = {f"embedded/{name}": value for name, value in checkpoint_digests(EMBEDDED_VOICE.parent).items()}
    embedded = {name.replace("embedded/voice/", "embedded/"): value for name, value in embedded.items()}
    assert manifest["checkpoints"] == checkpoint_digests(checkpoints) | embedded
    assert "qwen-tts==0.1.1" in manifest["packages"]


# Each of these breaks one rule; a parity test that still passes would not test it.


def shifted_trailing(prompt: Prompt) -> Prompt:
    return replace(prompt, trailing=prompt.trailing[1:])


def late_bos(prompt: Prompt) -> Prompt:
    return replace(prompt, codec=(*prompt.codec[:-1], prompt.codec[-2]))


def frames_one_row_early(prompt: Prompt) -> Prompt:
    assert prompt.frames_row is not None
    return replace(prompt, frames_row=prompt.frames_row - 1)


@pytest.mark.parametrize(
    ("name", "modify"),
    [
        ("custom_voice-speaker-streaming", shifted_trailing),
        ("base-icl-shorter-streaming", shifted_trailing),
        ("custom_voice-speaker-whole", late_bos),
        ("base-icl-longer-streaming", frames_one_row_early),
    ],
)
def test_a_modified_prompt_fails_the_comparison(name: str, modify: Callable[[Prompt], Prompt], loaded: Loaded) -> None:
    case, expected = CASE[name], golden(name, "float32")
    tts = loaded(case.checkpoint, "float32")
    assert same_codes(run(tts, case, expected), expected)
    assert not same_codes(run(tts, case, expected, modify), expected)


def modified_models() -> Iterator[tuple[str, str, AbstractContextManager[object]]]:
    penalty = mock.patch.object(sampler, "apply_repetition_penalty", lambda logits, _seen, _params: logits)
    yield "custom_voice-seeded-filtered-whole", "no repetition penalty", penalty
    minimum = mock.patch.object(generator, "CONTROL_IDS", 0)
    yield "custom_voice-speaker-whole", "no suppressed ids", minimum

    class Late(RotaryEmbedding):
        def __init__(self, positions: torch.Tensor, *rest: Any) -> None:
            super().__init__(positions * 2, *rest)

    yield (
        "custom_voice-speaker-whole",
        "predictor positions",
        mock.patch.object(code_predictor, "RotaryEmbedding", Late),
    )


@pytest.mark.parametrize(("name", "rule", "modify"), list(modified_models()))
def test_a_modified_model_fails_the_comparison(
    name: str, rule: str, modify: AbstractContextManager[object], loaded: Loaded
) -> None:
    case, expected = CASE[name], golden(name, "float32")
    with modify:
        assert not same_codes(run(loaded(case.checkpoint, "float32"), case, expected), expected), rule


def test_the_dialect_rule_is_in_the_golden_files(loaded: Loaded) -> None:
    """The speaker eric uses his dialect under auto and Chinese, and not under English."""
    tts = loaded("custom_voice", "float32")
    dialect = tts.model.config.talker.languages["sichuan_dialect"]
    spoken = {
        name: dialect in prompt_of(tts, CASE[name], CASE[name].utterances[0]).codec
        for name in names(CASES)
        if CASE[name].utterances[0].speaker == "eric" and len(CASE[name].utterances) == 1
    }
    assert spoken == {
        "custom_voice-auto-dialect-whole": True,
        "custom_voice-chinese-dialect-streaming": True,
        "custom_voice-english-dialect-speaker-whole": False,
    }
