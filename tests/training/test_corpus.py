"""Texts, the time grid and packing: what must hold before an hour of speech is made of it."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from training.corpus import Timed
from training.everyday import PHRASES, Everyday
from training.pool import UNKNOWN, Packing
from training.sentences import DEVELOPMENT, TEST
from training.sound import windows
from training.texts import key, sentence, sentences
from training.tokens import SPECIAL, VOCABULARY, tokenizer_files
from training.units import LEAD, UNITS_PER_FRAME, Span, cut, slower, spoken_span, unit_features

WORDNET = {
    "data.noun": '00001740 03 n 01 bread 0 000 | food made of dough; "the bread is still warm from the oven"; '
    '"she cut the loaf of bread"\n',
    "cntlist.rev": "bread%1:13:00:: 1 20\nwarm%3:00:01:: 1 12\noven%1:06:00:: 1 3\ncut%2:35:00:: 1 9\n",
}


@pytest.fixture
def wordnet(tmp_path: Path) -> Path:
    for name in ("data.noun", "data.verb", "data.adj", "data.adv", "cntlist.rev"):
        (tmp_path / name).write_text(WORDNET.get(name, ""), encoding="latin-1")
    return tmp_path


def test_no_evaluation_sentence_is_in_the_training_text(wordnet: Path) -> None:
    made = {key(text) for text in sentences(wordnet, 300)}
    assert key("The bread is still warm from the oven.") not in made  # WordNet has it, and so has the list
    assert not made & {key(text) for text in (*TEST, *DEVELOPMENT)}
    assert len(TEST) == 100
    assert not {key(text) for text in TEST} & {key(text) for text in DEVELOPMENT}


def test_the_same_seed_gives_the_same_texts(wordnet: Path) -> None:
    assert sentences(wordnet, 50) == sentences(wordnet, 50)


def test_every_template_is_filled() -> None:
    everyday = Everyday(0)
    for _ in range(2000):
        text = everyday.sentence()
        assert not re.search(r"[{}]|numbers\b", text), text
        assert text[-1] in ".!?"
    assert all(PHRASES)


def test_a_sentence_has_a_capital_and_an_end() -> None:
    assert sentence("she came; he left") == "She came, he left."
    assert sentence("why?") == "Why?"


def test_the_vocabulary_has_the_role_as_one_token() -> None:
    files = tokenizer_files(["the cat sat on the mat and the dog sat on the log"] * 40)
    assert files["vocab.json"]["assistant"] == 263
    assert len(SPECIAL) + len(files["vocab.json"]) <= VOCABULARY + len(SPECIAL)


def test_speech_is_cut_on_whole_frames_around_what_sounds() -> None:
    durations = np.array([12, 4, 6, 20, 7, 1])
    samples = torch.zeros(int(durations.sum()) * 600)
    samples[11 * 600 : 26 * 600] = 0.5
    span = spoken_span(durations, samples)
    assert span.start == 12 - LEAD
    assert span.units % UNITS_PER_FRAME == 0
    assert span.start + span.units >= 26
    assert len(cut(samples, span)) == span.units * 640


def test_slowing_down_keeps_a_tone_one_sixteenth_lower() -> None:
    time = torch.arange(4800) / 24_000
    made = slower(torch.sin(2 * torch.pi * 480 * time))
    wanted = torch.sin(2 * torch.pi * 450 * torch.arange(len(made)) / 24_000)
    assert len(made) == 5120
    assert (made - wanted)[100:-100].abs().max() < 1e-3


def test_a_unit_knows_its_phoneme_and_its_place_in_it() -> None:
    rows = unit_features(np.array([50, 60]), np.array([3, 2, 4, 5]), Span(2, 6), before=1, after=1)
    assert rows[:, 0].tolist() == [0, 0, 50, 50, 60, 60, 60, 60]
    assert rows[:, 1].tolist() == [1, 2, 0, 1, 0, 1, 2, 3]
    assert rows[:, 2].tolist() == [1, 0, 1, 0, 3, 2, 1, 0]


def test_each_frame_sees_its_own_units() -> None:
    timed = Timed(0, np.array([3, 2, 4, 5]), Span(0, 9))
    assert windows(np.array([50, 60]), timed)[:, 1:4, 0].tolist() == [[0, 0, 0], [50, 50, 60], [60, 60, 60]]


def test_cuts_of_one_text_share_their_frames() -> None:
    class Letters:
        def encode(self, text: str, add_special_tokens: bool) -> "Letters":
            assert not add_special_tokens
            self.ids = [ord(letter) for letter in text]
            return self

    packing = Packing([Letters(), Letters()])
    packing.add("abc", np.zeros((5, 4), np.uint16), 1, True, False)
    packing.add("de", np.full((3, 4), UNKNOWN, np.uint16), 0, False, True)
    pool = packing.pool()
    assert pool.first_frame.tolist() == [0, 0, 5]
    assert pool.frame_count.tolist() == [5, 5, 3]
    assert pool.token_count.tolist() == [3, 3, 2]
    assert pool.held_out.tolist() == [False, False, True]
