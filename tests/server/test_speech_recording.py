# SPDX-License-Identifier: Apache-2.0
"""The last word that was played of a recorded utterance."""

import asyncio
from itertools import accumulate

import numpy as np
import pytest

from alignment.test_timeline import vowel
from polyvox.alignment import SpeechTimeline, WordTime
from polyvox.audio.pcm import Pcm, from_pcm, to_pcm
from polyvox.server.synthesis import speech_recording
from polyvox.server.synthesis.segments import Segment
from polyvox.server.synthesis.speech_recording import SpeechRecording, last_played
from polyvox.server.synthesis.timestamps import AlignmentScheduler
from polyvox.text.segment_text import SegmentText

RATE = 24_000
TEXTS = ("Ah, ah, ah.", " Oh, oh, oh.")
SILENCE = 0.5


def segment(index: int) -> Segment:
    text = TEXTS[index]
    source = SegmentText(len("".join(TEXTS[:index])), text, text, [float(at) for at in range(len(text))], True)
    return Segment(text, SILENCE if index else 0.0, source=source)


def speech() -> list[Pcm]:
    """Three vowels and silence between them, in chunks of 0.25 s."""
    quiet = np.zeros(RATE // 4, np.float32)
    return np.split(to_pcm(np.concatenate([vowel(0.25), quiet] * 3)), 6)


def recorded() -> SpeechRecording:
    """Speech of 1.5 s, a silence, and speech of 1.5 s."""
    recording = SpeechRecording(RATE, 1.0, AlignmentScheduler())
    for index in range(2):
        recording.begin(segment(index))
        if index:
            recording.add(np.zeros(round(SILENCE * RATE), np.int16))
        for chunk in speech():
            recording.add(chunk)
    recording.finish()
    return recording


def text_played(recording: SpeechRecording, seconds: float) -> str:
    end = asyncio.run(recording.text_end(seconds))
    assert end is not None
    return "".join(TEXTS)[:end]


@pytest.mark.parametrize(
    ("seconds", "played"),
    [(0.0, ""), (0.39, ""), (0.41, "One"), (1.3, "One"), (1.5, "One two,"), (2.5, "One two, three."), (9.0, None)],
)
def test_the_text_ends_with_the_last_word_of_which_half_was_played(seconds: float, played: str | None) -> None:
    text = "One two, three."
    starts = (("One", 0.0, 0), ("two,", 1.0, 4), ("three.", 2.0, 9))
    words = [WordTime(word, at, at + 0.8, start, start + len(word)) for word, at, start in starts]
    assert text[: last_played(words, seconds)] == (text if played is None else played)


def test_words_are_found_at_the_times_of_the_streamed_alignment() -> None:
    timeline = SpeechTimeline(RATE)
    source = segment(0).source
    assert source is not None
    timeline.begin(source)
    *chunks, last = speech()
    timed = [*(timeline.push(from_pcm(chunk), False) for chunk in chunks), timeline.push(from_pcm(last), True)]
    words = [word for each in timed for word in each.words]
    assert [word.word for word in words] == ["Ah,", "ah,", "ah."]
    recording = recorded()
    for seconds in (0.1, 0.6, 1.1, 1.4):  # alignment continues where it has stopped
        started = [word for word in words if word.start <= seconds]
        assert text_played(recording, seconds) == TEXTS[0][: last_played(started, seconds)]


def test_a_segment_before_the_end_was_played_as_a_whole() -> None:
    recording = recorded()
    assert [text_played(recording, seconds) for seconds in (1.5, 1.99)] == [TEXTS[0]] * 2
    assert text_played(recording, 3.4).startswith(TEXTS[0])


def test_without_its_audio_a_segment_is_cut_in_proportion() -> None:
    recording = recorded()
    recording.drop_audio()
    found = [text_played(recording, seconds) for seconds in (0.0, 0.5, 1.0, 1.6, 2.0, 2.6, 3.5)]
    expected = ["", "Ah,", "Ah, ah,", TEXTS[0], TEXTS[0], "Ah, ah, ah. Oh,", "".join(TEXTS)]
    assert found == expected


def test_the_audio_of_the_oldest_segments_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech_recording, "MAX_SECONDS", 2.0)
    recording = recorded()
    assert text_played(recording, 0.5) == "Ah,"  # in proportion
    kept = [sum(map(len, each.chunks or [])) / RATE for each in recording._segments]
    assert kept == [0.0, 1.5]


def test_more_is_played_in_more_time() -> None:
    recording = recorded()
    lengths = [len(text_played(recording, step / 10)) for step in range(36)]
    assert lengths == list(accumulate(lengths, max))


def test_segments_without_positions_have_no_words() -> None:
    recording = SpeechRecording(RATE, 1.0, AlignmentScheduler())
    recording.begin(Segment("One"))
    recording.add(np.zeros(RATE, np.int16))
    assert asyncio.run(recording.text_end(0.5)) is None
