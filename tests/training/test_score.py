# SPDX-License-Identifier: Apache-2.0
"""A transcript shows whether the end of a sentence was spoken; phoneme strings survive the teacher's ids."""

import pytest

from polyvox.bench.wer import WordErrors
from polyvox.text.phonemes import SYMBOLS, phonemize
from training.score import Transcript
from training.symbols import IDS, to_ids, to_phonemes

TEXT = "The meeting is in room twelve at nine."


@pytest.mark.parametrize(
    ("recognised", "has_end"),
    [
        ("The meeting is in room 12 at 9.", True),
        ("The meeting is in room twelve at night.", True),
        ("The meeting is in room twelve at nine, thank you.", True),
        ("The meeting is in room.", False),
        ("The meeting is in.", False),
        ("", False),
    ],
)
def test_a_sentence_has_its_end_if_two_of_the_last_three_words_are_recognised(recognised: str, has_end: bool) -> None:
    assert Transcript(TEXT, recognised, WordErrors(0, 8)).has_end == has_end


def test_a_text_of_one_word_must_be_recognised() -> None:
    assert Transcript("Yes.", "Yes!", WordErrors(0, 1)).has_end
    assert not Transcript("Yes.", "Less.", WordErrors(1, 1)).has_end


def test_the_teacher_has_an_id_for_every_phoneme_symbol() -> None:
    assert set(IDS) == set(SYMBOLS)
    assert len(set(IDS.values())) == len(IDS)
    text = phonemize("Could you pass me the salad bowl, please?")
    assert to_phonemes(to_ids(text)) == text
