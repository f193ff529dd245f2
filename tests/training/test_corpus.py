# SPDX-License-Identifier: Apache-2.0
"""Training texts, the time grid, interrupted workers and the pool."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from polyvox.text import split_sentences
from polyvox.text.phonemes import phonemize
from training.carriers import MIN_COUNTS, MIN_FORM_COUNTS, carriers, frequent_words, spoken_words
from training.corpus import Phonemes, TimedUtterance, alike, recover, write_texts
from training.everyday import PHRASES, Everyday
from training.pool import UNKNOWN, Packing, Utterance
from training.sentences import DEVELOPMENT, PROSE, TEST
from training.speech_data import windows
from training.texts import CARRIED, key, sentence, sentences
from training.tokens import SPECIAL, VOCABULARY, tokenizer_files
from training.units import (
    LAST,
    LEAD,
    TEACHER_UNIT,
    TONES,
    UNITS_PER_FRAME,
    Span,
    cut,
    slower,
    speech_span,
    timed_span,
    unit_features,
    without_tones,
)
from training.word_frequency import classes, frame_counts, word_counts

WORDNET = {
    "data.noun": '00001740 03 n 01 bread 0 000 | food made of dough; "the bread is still warm from the oven"; '
    '"she cut the loaf of bread"\n',
    "cntlist.rev": "bread%1:13:00:: 1 20\nwarm%3:00:01:: 1 12\noven%1:06:00:: 1 3\ncut%2:35:00:: 1 9\n"
    "loaf%1:13:00:: 1 4\ncarry%2:35:00:: 1 4\nbake%2:36:00:: 1 4\ndaily%4:02:00:: 1 3\n",
    "noun.exc": "loaves loaf\n",
    "verb.exc": "cut cut\ncutting cut\nco-cut cut\n",
}


@pytest.fixture
def wordnet(tmp_path: Path) -> Path:
    for name in ("data.noun", "data.verb", "data.adj", "data.adv", "cntlist.rev", "noun.exc", "verb.exc"):
        (tmp_path / name).write_text(WORDNET.get(name, ""), encoding="latin-1")
    return tmp_path


def test_no_evaluation_sentence_is_in_the_training_text(wordnet: Path) -> None:
    made = {key(text) for text in sentences(wordnet, 300)}
    assert key("The bread is still warm from the oven.") not in made  # in WordNet and in the list
    prose = [sentence for paragraph in PROSE for sentence in split_sentences(paragraph)]
    assert len(PROSE) == 4
    assert not made & {key(text) for text in (*TEST, *DEVELOPMENT, *prose)}
    assert len(TEST) == 100
    assert not {key(text) for text in TEST} & {key(text) for text in DEVELOPMENT}


def test_the_same_seed_gives_the_same_texts(wordnet: Path) -> None:
    assert sentences(wordnet, 50) == sentences(wordnet, 50)


def test_every_frequent_word_and_its_forms_occur_often(wordnet: Path) -> None:
    made = carriers(["The bread is warm."], frequent_words(wordnet), wordnet, 1)
    counts = Counter(word for text in made for word in spoken_words(text))
    for word in ("bread", "warm", "oven", "carry", "bake", "daily"):
        assert counts[word] >= MIN_COUNTS[0], word
    for form in ("loaves", "breads", "carries", "carried", "carrying", "bakes", "baked", "baking", "cutting", "cut"):
        assert counts[form] >= MIN_FORM_COUNTS[0], form
    assert not counts.keys() & {"loafs", "cutted", "bakeed", "carryed", "bakeing"}


def test_carriers_are_a_limited_share_of_the_texts(wordnet: Path) -> None:
    made = sentences(wordnet, 40)
    assert 40 < len(made) <= (1 + CARRIED) * 40


def test_every_template_is_filled() -> None:
    everyday = Everyday(0)
    for _ in range(2000):
        text = everyday.sentence()
        assert not re.search(r"[{}]|numbers\b", text), text
        assert text[-1] in ".!?"
    assert all(PHRASES)


def test_texts_are_spoken_as_the_front_end_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.texts.sentences", lambda *_: ["It opens at 7:30 a.m.", "It costs $4."])
    write_texts(tmp_path, tmp_path, 2)
    phonemes = Phonemes(tmp_path)
    assert [phonemes.text(index) for index in range(len(phonemes))] == [
        phonemize("It opens at seven thirty a.m."), phonemize("It costs four dollars."),
    ]  # fmt: skip


def test_a_paragraph_has_several_sentences() -> None:
    everyday = Everyday(0)
    assert all(len(split_sentences(everyday.paragraph())) > 1 for _ in range(50))


def test_a_sentence_has_a_capital_letter_and_final_punctuation() -> None:
    assert sentence("she came; he left") == "She came, he left."
    assert sentence("why?") == "Why?"


def test_the_vocabulary_has_the_role_as_one_token() -> None:
    files = tokenizer_files(["the cat sat on the mat and the dog sat on the log"] * 40)
    assert files["vocab.json"]["assistant"] == 263
    assert len(SPECIAL) + len(files["vocab.json"]) <= VOCABULARY + len(SPECIAL)


def test_a_span_has_complete_frames_around_the_speech() -> None:
    durations = np.array([12, 4, 6, 20, 7, 1])
    samples = torch.zeros(int(durations.sum()) * 600)
    samples[11 * 600 : 26 * 600] = 0.5
    span = speech_span(durations, samples)
    assert span.start == 12 - LEAD
    assert span.units % UNITS_PER_FRAME == 0
    assert span.start + span.units >= 26
    assert len(cut(samples, span)) == span.units * 640


def test_a_span_has_at_least_one_frame() -> None:
    samples = torch.zeros(40 * TEACHER_UNIT)
    samples[TEACHER_UNIT : 2 * TEACHER_UNIT] = 0.5
    span = speech_span(np.array([30, 5, 5]), samples)
    assert span.units == UNITS_PER_FRAME


def test_the_span_of_a_timed_text_equals_the_span_of_its_audio() -> None:
    """For audio that ends at the voice's usual offset."""
    durations = np.array([12, 4, 6, 14, 7, 1])
    for voice, after in enumerate(LAST):
        samples = torch.zeros(int(durations.sum()) * 600)
        samples[11 * 600 : (22 + after) * 600] = 0.5
        assert timed_span(durations, voice) == speech_span(durations, samples)


def test_texts_of_a_batch_have_equal_length() -> None:
    sizes = {index: index % 5 for index in range(100)}
    batches = list(alike(list(sizes), sizes, 8))
    assert sorted(index for batch in batches for index in batch) == list(range(100))
    assert all(len({sizes[index] for index in batch}) == 1 for batch in batches)
    assert max(map(len, batches)) == 8
    assert [sizes[batch[0]] for batch in batches] != sorted(sizes[batch[0]] for batch in batches)


def test_recovery_truncates_an_incomplete_utterance(tmp_path: Path) -> None:
    lines, audio = tmp_path / "speech-00.jsonl", tmp_path / "speech-00.i16"
    lines.write_text("[4, 7, 3, [12, 1]]\n[9, 7, 6, [12, 4]]\n[11, 7, 3, [12")
    audio.write_bytes(bytes(2 * 640 * 3 * 2))
    assert recover(lines) == {4}
    assert lines.read_text() == "[4, 7, 3, [12, 1]]\n"
    assert audio.stat().st_size == 2 * 640 * 3
    audio.write_bytes(b"")
    assert recover(lines) == set()
    assert recover(tmp_path / "speech-01.jsonl") == set()
    timed = tmp_path / "durations-00.jsonl"
    timed.write_text("[4, 7, 3, [12, 1]]\n[9, 7,")
    assert recover(timed) == {4}


def test_slowing_down_lowers_a_tone_by_one_sixteenth() -> None:
    time = torch.arange(4800) / 24_000
    made = slower(torch.sin(2 * torch.pi * 480 * time))
    wanted = torch.sin(2 * torch.pi * 450 * torch.arange(len(made)) / 24_000)
    assert len(made) == 5120
    assert (made - wanted)[100:-100].abs().max() < 1e-3


def test_the_teachers_tones_are_removed_and_nothing_else() -> None:
    time = torch.arange(24_000) / 24_000
    speech = torch.sin(2 * torch.pi * 440 * time) + torch.sin(2 * torch.pi * 5000 * time)
    tones = sum(0.1 * torch.sin(2 * torch.pi * tone * time) for tone in TONES)
    assert (without_tones(speech + tones) - speech)[4800:-4800].abs().max() < 2e-3


def test_unit_features_are_the_phoneme_and_the_position_in_it() -> None:
    rows = unit_features(np.array([50, 60]), np.array([3, 2, 4, 5]), Span(2, 6), before=1, after=1)
    assert rows[:, 0].tolist() == [0, 0, 50, 50, 60, 60, 60, 60]
    assert rows[:, 1].tolist() == [1, 2, 0, 1, 0, 1, 2, 3]
    assert rows[:, 2].tolist() == [1, 0, 1, 0, 3, 2, 1, 0]


def test_each_frame_has_its_own_units() -> None:
    timed = TimedUtterance(0, np.array([3, 2, 4, 5]), Span(0, 9))
    assert windows(np.array([50, 60]), timed)[:, 1:4, 0].tolist() == [[0, 0, 0], [50, 50, 60], [60, 60, 60]]


def test_tokenizations_of_one_text_share_their_frames() -> None:
    class Letters:
        def __init__(self, text: str = "") -> None:
            self.ids = [ord(letter) for letter in text]

        def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list["Letters"]:
            assert not add_special_tokens
            return [Letters(text) for text in texts]

    packing = Packing([Letters(), Letters()])
    packing.add(Utterance("abc", np.zeros((5, 4), np.uint16), 1, 7, True, False))
    packing.add(Utterance("de", np.full((3, 4), UNKNOWN, np.uint16), 0, 8, False, True, np.array([2, 2, -1])))
    pool = packing.pool()
    assert pool.tokens.tolist() == [ord(letter) for letter in "abcdeabc"]
    assert pool.first_token.tolist() == [0, 3, 5]
    assert pool.token_count.tolist() == [3, 2, 3]
    assert pool.first_frame.tolist() == [0, 5, 0]
    assert pool.frame_count.tolist() == [5, 3, 5]
    assert pool.speaker.tolist() == [1, 0, 1]
    assert pool.text.tolist() == [7, 8, 7]
    assert pool.spoken.tolist() == [True, False, True]
    assert pool.held_out.tolist() == [False, True, False]
    assert pool.word_counts.tolist() == [-1] * 5 + [2, 2, -1]


def test_frame_counts_are_training_counts_of_words(tmp_path: Path) -> None:
    texts = [[50, 60, 16, 70, 4], [50, 60, 3, 16, 50, 60, 4], [70, 4]]
    np.savez(
        tmp_path / "phonemes.npz",
        ids=np.concatenate(texts).astype(np.uint8),
        counts=np.array([len(ids) for ids in texts], np.int16),
        voices=np.zeros(3, np.uint8),
    )
    phonemes = Phonemes(tmp_path)
    counts = word_counts(phonemes, np.array([0, 1]))
    assert counts == {bytes([50, 60]): 3, bytes([70]): 1}
    timed = TimedUtterance(0, np.array([3, 3, 3, 3, 6, 3, 1]), Span(0, 21))
    # Labels are late by one unit, so a frame is looked up one unit after its middle.
    assert frame_counts(phonemes[0], timed, counts).tolist() == [-1, 3, 3, -1, 1, 1, -1]
    found = classes(np.array([-1, 0, 4, 5, 19, 20, 100]))
    assert {name: np.nonzero(chosen)[0].tolist() for name, chosen in found.items()} == {
        "below_5": [1, 2], "from_5": [3, 4], "from_20": [5], "from_100": [6],
    }  # fmt: skip
