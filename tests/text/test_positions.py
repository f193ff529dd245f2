# SPDX-License-Identifier: Apache-2.0
"""Positions of the written text in the spoken text."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyvox.errors import InvalidRequest
from polyvox.text import TextNormalizer, TextRules, Words
from polyvox.text.position_map import PositionMap
from text.test_normalizer import CASES
from text.test_normalizer_streaming import RULES, SHARDS

WRITTEN = [source for source, _ in CASES]
TEXTS = st.lists(st.sampled_from([*WRITTEN, *SHARDS]), max_size=12).map("".join)


def spoken(text: str, rules: TextRules, fragment: int) -> tuple[str, TextNormalizer]:
    """The words of a text in fragments, and the normalizer with its positions."""
    normalizer = TextNormalizer(rules, track_positions=True)
    parts = []
    with suppress(InvalidRequest):
        for start in range(0, len(text), fragment):
            parts += normalizer.append(text[start : start + fragment])
        parts += normalizer.finish()
    return "".join(part.text for part in parts if isinstance(part, Words)), normalizer


def spoken_words(text: str, fragment: int = 1000) -> list[tuple[str, str]]:
    """Each written word with what is spoken for it."""
    words, normalizer = spoken(text, TextRules(), fragment)
    found, at = [], 0
    for word in text.split():
        at = text.index(word, at)
        start, end = normalizer.spoken_positions([at, at + len(word)])
        found.append((word, words[round(start) : round(end)]))
        at += len(word)
    return found


@pytest.mark.parametrize("fragment", [1, 7, 1000])
def test_each_written_word_has_what_is_spoken_for_it(fragment: int) -> None:
    text = "Hello  world,\tit is 15 km; $5 “now” <think>15 km</think> 1,000.5 **bold** 🙂 end."
    assert spoken_words(text, fragment) == [
        ("Hello", "Hello"),
        ("world,", "world,"),
        ("it", "it"),
        ("is", "is"),
        ("15", "fifteen"),
        ("km;", "kilometers;"),
        ("$5", "five dollars"),
        ("“now”", '"now"'),
        ("<think>15", ""),
        ("km</think>", ""),
        ("1,000.5", "one thousand point five"),
        ("**bold**", " bold "),
        ("🙂", "slightly smiling face"),
        ("end.", "end."),
    ]


@pytest.mark.parametrize("fragment", [1, 1000])
def test_positions_go_through_ssml(fragment: int) -> None:
    text = "<speak>One &amp; <sub alias='World Health Organisation'>WHO</sub> <break time='1s'/>5</speak>"
    words, normalizer = spoken(text, TextRules(), fragment)
    assert words == "One and World Health Organisationfive"
    for written, said in (("One", "One"), ("&amp;", "and"), ("WHO", "World Health Organisation"), ("5", "five")):
        start, end = normalizer.spoken_positions([text.index(written), text.index(written) + len(written)])
        assert words[round(start) : round(end)] == said


def test_positions_continue_after_a_flush() -> None:
    normalizer = TextNormalizer(track_positions=True)
    parts = [*normalizer.append("I have 5"), *normalizer.flush(), *normalizer.append("6 cats"), *normalizer.finish()]
    words = "".join(part.text for part in parts if isinstance(part, Words))
    start, end = normalizer.spoken_positions([8, 9])
    assert words[round(start) : round(end)].lower() == "six"


@given(text=TEXTS, rules=st.sampled_from(RULES), fragment=st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_positions_ascend_reach_the_end_and_do_not_depend_on_fragments(
    text: str, rules: TextRules, fragment: int
) -> None:
    words, normalizer = spoken(text, rules, fragment)
    found = normalizer.spoken_positions(np.arange(len(text) + 1))
    assert (np.diff(found) >= 0).all()
    assert found[0] >= 0
    assert found[-1] <= len(words)
    whole_words, whole = spoken(text, rules, len(text) or 1)
    assert whole_words == words
    np.testing.assert_allclose(whole.spoken_positions(np.arange(len(text) + 1)), found, atol=1e-6)


def test_unchanged_text_needs_no_memory_for_positions() -> None:
    positions = PositionMap()
    for _ in range(1000):
        positions.copy(3)
    assert len(positions._inputs) == 2
    assert positions([2999.5, 3000, 3004]).tolist() == [2999.5, 3000, 3000]


@pytest.mark.parametrize("fragment", [1, 90, 1000])
@pytest.mark.parametrize("text", ["Hello.", "<speak>Hello.</speak>"])
def test_white_space_before_a_text_does_not_move_its_positions(text: str, fragment: int) -> None:
    written = " " * 250 + text
    words, normalizer = spoken(written, TextRules(), fragment)
    at = written.index("Hello")
    start, end = normalizer.spoken_positions([at, at + 5])
    assert words[round(start) : round(end)] == "Hello"
