# SPDX-License-Identifier: Apache-2.0
"""Which part of a spoken answer was played, by word times or in proportion, and what a player can have played."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyvox.alignment import WordTime
from polyvox.server.realtime.spoken_transcript import PlaybackClock, SpokenTranscript

TEXT = "One two, three."


def spoken(with_words: bool = True) -> SpokenTranscript:
    transcript = SpokenTranscript()
    transcript.add_text(TEXT)
    transcript.seconds = 3.0
    if with_words:
        starts = (("One", 0.0, 0), ("two,", 1.0, 4), ("three.", 2.0, 9))
        transcript.add_words([WordTime(word, at, at + 0.8, start, start + len(word)) for word, at, start in starts])
    return transcript


@pytest.mark.parametrize(
    ("seconds", "played"),
    [(0.0, ""), (0.39, ""), (0.41, "One"), (1.3, "One"), (1.5, "One two,"), (2.5, TEXT), (9.0, TEXT)],
)
def test_the_text_ends_with_the_last_word_of_which_half_was_played(seconds: float, played: str) -> None:
    assert spoken().text_played(seconds) == played


def test_text_whose_audio_was_not_sent_was_not_played() -> None:
    transcript = spoken()
    transcript.add_text(" More text")
    assert transcript.text_played(3.0) == TEXT
    transcript.is_complete = True
    assert transcript.text_played(3.0) == f"{TEXT} More text"


@given(st.text("ab, .\n", max_size=60), st.floats(0, 10), st.floats(0, 10))
def test_without_word_times_the_text_is_cut_between_words(text: str, seconds: float, played: float) -> None:
    transcript = SpokenTranscript()
    transcript.add_text(text)
    transcript.seconds = seconds
    found = transcript.text_played(played)
    assert text.startswith(found)
    rest = text[len(found) :]
    assert not found or not rest or rest[0].isspace()


def test_more_is_played_in_more_time() -> None:
    transcript = spoken(with_words=False)
    found = [transcript.text_played(step / 10) for step in range(31)]
    assert found == sorted(found, key=len)
    assert (found[0], found[15], found[30]) == ("", "One", TEXT)


def test_audio_is_played_in_real_time_from_its_arrival() -> None:
    now = 100.0
    clock = PlaybackClock(lambda: now)
    assert clock.remaining == 0
    clock.add(2.0)
    now += 0.5
    clock.add(1.0)
    assert clock.remaining == pytest.approx(2.5)
    now += 5
    assert clock.remaining == 0
    clock.add(1.0)  # after a gap
    assert clock.remaining == pytest.approx(1.0)
    clock.stop()
    assert clock.remaining == 0
