# SPDX-License-Identifier: Apache-2.0
"""Checkpoints whose text is phonemes: whole text, long form and live text."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import DEVICE, Loaded
from polyvox import Request
from polyvox.errors import CheckpointError, InvalidRequest
from polyvox.models.qwen3_tts.config import MODEL_FILE, read_config
from polyvox.models.streaming_tokenizer import TextStreamTokenizer
from polyvox.models.tokenizer import TextTokenizer
from polyvox.text.phonemes import ALPHABET, mark_phonemes, phonemize
from polyvox.tts import EMBEDDED_VOICE, TTS, load

CONFIG = read_config(EMBEDDED_VOICE)
PLAIN = TextTokenizer(EMBEDDED_VOICE, replace(CONFIG, phoneme_alphabet=None))
PHONEMES = TextTokenizer(EMBEDDED_VOICE, replace(CONFIG, phoneme_alphabet=ALPHABET))
TEXT = "I read the record. Did you read it at 10 a.m.?"


def phoneme_checkpoint(source: Path, folder: Path, **fields: str) -> Path:
    """A copy of a checkpoint with other fields in config.json."""
    shutil.copytree(source, folder)
    path = folder / MODEL_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder


@pytest.fixture(scope="module")
def phoneme_tts(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TTS]:
    fields = {"text_input": "phonemes", "phoneme_alphabet": ALPHABET}
    folder = phoneme_checkpoint(checkpoints / "custom_voice", tmp_path_factory.mktemp("phonemes") / "voice", **fields)
    with load(folder, device=DEVICE, dtype="float32") as tts:
        yield tts


def test_the_ids_are_those_of_the_phoneme_string() -> None:
    assert PHONEMES.text(TEXT) == PLAIN.text(phonemize(TEXT)) != PLAIN.text(TEXT)
    assert PHONEMES.instructions(TEXT) == PLAIN.instructions(TEXT)


@given(
    st.lists(st.sampled_from(["the", "end.", "I", "read", "a.m.", "(use", "FBI)", "¿qué?", "—", "日本", "x"])),
    st.data(),
)
@settings(deadline=None)
def test_live_text_has_the_ids_of_the_whole_text_in_any_fragmentation(words: list[str], data: st.DataObject) -> None:
    text, at, ids = " ".join(["so", *words]), 0, list[int]()
    stream = TextStreamTokenizer(PHONEMES)
    while at < len(text):
        size = data.draw(st.integers(1, 9))
        ids += stream.append(text[at : at + size])
        at += size
    assert ids + stream.finish() == PHONEMES.text(text)


def test_live_words_are_tokenized_at_the_space_after_them() -> None:
    stream = TextStreamTokenizer(PHONEMES)
    begun = [stream.begun]
    assert stream.append("Hel") == []
    begun.append(stream.begun)
    assert begun == [False, True]
    assert stream.append("lo ") == PHONEMES.text("Hello")
    assert stream.append("the ") == []
    assert stream.append("end ") == PHONEMES.text("Hello the end")[len(PHONEMES.text("Hello")) :]


@pytest.mark.parametrize("text", ["日本", "…", "?!"])
def test_text_without_a_word_that_can_be_spoken_is_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest, match="at least one word"):
        PHONEMES.text(text)
    stream = TextStreamTokenizer(PHONEMES)
    stream.append(text)
    with pytest.raises(InvalidRequest, match="at least one word"):
        stream.finish()


def test_a_later_sentence_without_words_is_silent_and_does_not_end_the_utterance() -> None:
    assert PHONEMES.text("日本", needs_words=False) == PLAIN.text("…")
    stream = TextStreamTokenizer(PHONEMES, needs_words=False)
    assert stream.append("日本 語") + stream.finish() == PLAIN.text("…")


def test_long_form_text_with_a_sentence_in_another_script_is_read_to_its_end(phoneme_tts: TTS) -> None:
    spoken = [sentence.text for sentence in phoneme_tts.read("Hello. 日本語。 Bye.", seed=3)]
    assert spoken == ["Hello.", "日本語。", "Bye."]
    assert phoneme_tts.model.prepare(Request("日本語。", segment=1)).silent
    assert not phoneme_tts.model.prepare(Request("Bye.", segment=1)).silent


@pytest.mark.parametrize("text", ["...", "日本語。", '"?!"'])
@pytest.mark.parametrize("live", [False, True])
def test_a_later_sentence_without_words_has_no_audio(embedded: TTS, text: str, live: bool) -> None:
    stream = embedded.engine.submit(Request(text, seed=1, segment=1, live=live))
    if live:
        stream.append(" —")
        stream.finish_text()
    (chunk,) = stream.chunks()
    assert chunk.final
    assert not len(chunk.samples)
    assert stream.result is not None
    assert (stream.result.finish_reason, stream.result.frames) == ("stop", 0)


def test_a_sentence_without_words_leaves_a_pause_between_its_neighbours(embedded: TTS) -> None:
    first, without, last = embedded.read("Hello. ... Next.", seed=1, word_times=True)
    assert (without.start, without.end, without.finish_reason) == (last.start - without.pause,) * 2 + ("stop",)
    assert last.start == first.end + first.pause + without.pause
    assert [[word.word for word in sentence.words] for sentence in (first, without, last)] == [
        ["Hello."],
        [],
        ["Next."],
    ]


def test_live_text_whose_first_words_follow_marks_is_spoken(embedded: TTS) -> None:
    stream = embedded.engine.submit(Request("... ", seed=1, segment=1, live=True, max_frames=4))
    stream.append("日本語 — hello there ")
    stream.finish_text()
    samples = np.concatenate([chunk.samples for chunk in stream.chunks()])
    assert np.abs(samples).max() > 0.01


def test_speech_is_that_of_the_phoneme_string(phoneme_tts: TTS, loaded: Loaded) -> None:
    plain = loaded("custom_voice", "float32")
    assert phoneme_tts.model.info().takes_phonemes
    assert not plain.model.info().takes_phonemes
    spoken = phoneme_tts.say(TEXT, seed=3, max_frames=8).samples
    assert np.array_equal(spoken, plain.say(phonemize(TEXT), seed=3, max_frames=8).samples)
    marked = phoneme_tts.say(f"I {mark_phonemes('read', 'ɹˈɛd')} it", seed=3, max_frames=8).samples
    assert np.array_equal(marked, phoneme_tts.say("I read it", seed=3, max_frames=8).samples)


def test_live_text_is_spoken_as_the_whole_text(phoneme_tts: TTS) -> None:
    whole = np.concatenate(list(phoneme_tts.stream(TEXT, seed=3, layout="streaming", max_frames=8)))
    live = phoneme_tts.stream("I re", seed=3, live=True, max_frames=8)
    for piece in ("ad the rec", "ord. Did you read it ", "at 10 a.m", ".?"):
        live.append(piece)
    live.finish_text()
    assert np.array_equal(np.concatenate(list(live)), whole)


def test_long_form_text_and_its_subtitles_are_the_written_text(phoneme_tts: TTS) -> None:
    sentences = [sentence.text for sentence in phoneme_tts.read("Read it. I have read it.", seed=3)]
    assert sentences == ["Read it.", "I have read it."]


def test_a_checkpoint_with_an_unknown_alphabet_is_rejected(checkpoints: Path, tmp_path: Path) -> None:
    folder = phoneme_checkpoint(
        checkpoints / "custom_voice", tmp_path / "a", text_input="phonemes", phoneme_alphabet="x"
    )
    with pytest.raises(CheckpointError, match='phoneme_alphabet is "x"; supported is "kokoro-en-us"'):
        read_config(folder)
    folder = phoneme_checkpoint(checkpoints / "custom_voice", tmp_path / "b", text_input="letters")
    with pytest.raises(CheckpointError, match='text_input is "letters"; supported is "text" or "phonemes"'):
        read_config(folder)
