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
from training.corpus import (
    LEVELS,
    Phonemes,
    TimedUtterance,
    Timings,
    alike,
    read_timings,
    recover,
    to_int16,
    write_texts,
)
from training.encoder import BEFORE, FRAMES_BEFORE, MAX_UNIT_COUNT, SHIFT, WINDOW
from training.everyday import PHRASES, Everyday
from training.sentences import DEVELOPMENT, PROSE, TEST
from training.speech_data import Frames, corpus_frames, make_frames
from training.texts import CARRIED, key, sentence, sentences
from training.tokens import SPECIAL, VOCABULARY, tokenizer_files
from training.units import (
    FRAME,
    LEAD,
    TEACHER_UNIT,
    TONES,
    UNIT,
    UNITS_PER_FRAME,
    cut,
    num_frames,
    slower,
    without_tones,
)

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


def test_the_frames_of_an_utterance_reach_beyond_the_start_of_its_last_sound() -> None:
    durations = np.array([12, 4, 6, 20, 7, 1])
    frames = num_frames(durations)
    end = 12 - LEAD + frames * UNITS_PER_FRAME
    assert 22 + 6 <= end < 22 + 6 + UNITS_PER_FRAME
    samples = torch.zeros(int(durations.sum()) * TEACHER_UNIT)
    samples[11 * TEACHER_UNIT : 26 * TEACHER_UNIT] = 0.5
    kept = cut(samples, 12 - LEAD, frames)
    assert len(kept) == frames * FRAME
    assert kept.sum() == pytest.approx(0.5 * 15 * UNIT, rel=0.01)


def test_a_short_text_has_frames() -> None:
    assert num_frames(np.array([1, 1, 1, 1])) > 0


def test_texts_of_a_batch_have_equal_length() -> None:
    sizes = {index: index % 5 for index in range(100)}
    batches = list(alike(list(sizes), sizes, 8))
    assert sorted(index for batch in batches for index in batch) == list(range(100))
    assert all(len({sizes[index] for index in batch}) == 1 for batch in batches)
    assert max(map(len, batches)) == 8
    assert [sizes[batch[0]] for batch in batches] != sorted(sizes[batch[0]] for batch in batches)


def test_recovery_truncates_an_incomplete_utterance(tmp_path: Path) -> None:
    first, second = (TimedUtterance(text, np.array([12, text]), np.array([40] * 2), np.zeros(6)) for text in (4, 9))
    path, audio = tmp_path / "speech-00.i32", tmp_path / "speech-00.i16"
    path.write_bytes(first.record() + second.record() + second.record()[:-4])
    audio.write_bytes(bytes(2 * FRAME * 3))
    assert recover(path) == {4}
    assert path.read_bytes() == first.record()
    assert audio.stat().st_size == 2 * FRAME * 2
    audio.write_bytes(b"")
    assert recover(path) == set()
    assert recover(tmp_path / "speech-01.i32") == set()
    timed = tmp_path / "durations-00.i32"
    timed.write_bytes(first.record() + second.record() + second.record()[:8])
    assert recover(timed) == {4, 9}
    assert timed.read_bytes() == first.record() + second.record()


def test_timings_are_what_the_workers_wrote(tmp_path: Path) -> None:
    made = [TimedUtterance(text, np.arange(text), np.arange(100, 103), np.arange(9) + text) for text in (7, 3, 5)]
    (tmp_path / "durations-00.i32").write_bytes(made[0].record())
    (tmp_path / "durations-01.i32").write_bytes(made[1].record() + made[2].record())
    timings = read_timings(tmp_path, "durations")
    assert timings.texts.tolist() == timings.counts.tolist() == [7, 3, 5]
    found = timings.utterances([3, 5])
    assert sorted(found) == [3, 5]
    assert found[5].durations.tolist() == [0, 1, 2, 3, 4]
    assert found[5].advance.tolist() == [100, 101, 102]
    assert timings[1:2].durations.tolist() == [0, 1, 2]
    assert timings[1:2].loudness.tolist() == found[3].loudness.tolist() == list(range(3, 12))
    assert len(read_timings(tmp_path, "speech")) == 0


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


def frames_of(durations: list[int], ids: list[int], frames: int) -> Frames:
    loudness = np.arange(1, frames * UNITS_PER_FRAME + 1)
    utterance = TimedUtterance(0, np.array(durations), np.full(frames, 50), loudness)
    return make_frames(np.array(ids), np.array([0]), Timings.single(utterance), torch.device("cpu"))


def test_a_window_has_the_phonemes_around_a_frame_and_the_position_in_them() -> None:
    made = frames_of([LEAD + 2, 2, 4, 5], [50, 60], 4)
    window = made.windows(torch.arange(4))
    assert window.shape[:2] == (4, WINDOW)
    frame = window[1:, BEFORE : BEFORE + UNITS_PER_FRAME].flatten(0, 1)
    assert frame[:, 0].tolist() == [0, 0, 50, 50, 60, 60, 60, 60, 0]
    assert frame[:, 1].tolist() == [5, 6, 0, 1, 0, 1, 2, 3, 0]
    assert frame[:, 2].tolist() == [1, 0, 1, 0, 3, 2, 1, 0, 4]
    assert frame[:, 3].tolist() == list(range(4, 13))
    assert torch.equal(window[2, :-UNITS_PER_FRAME], window[1, UNITS_PER_FRAME:])
    outside = window[0, 0], window[3, -1]
    assert all(unit.tolist() == [0, MAX_UNIT_COUNT, MAX_UNIT_COUNT, 0] for unit in outside)


def test_a_frame_has_the_position_of_its_phoneme_in_the_text() -> None:
    assert SHIFT == 1
    assert frames_of([LEAD + 2, 2, 4, 5], [50, 60], 5).phonemes.tolist() == [0, 0, 1, 1, 1]


def test_frames_of_many_utterances_equal_those_of_each(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    counts = np.array([4, 7, 2, 5])
    np.savez(
        tmp_path / "phonemes.npz",
        ids=draw.integers(1, 178, counts.sum()).astype(np.uint8),
        counts=counts.astype(np.int16),
        voices=np.array([0, 1, 1, 0], np.uint8),
    )
    phonemes = Phonemes(tmp_path)
    for text in (2, 0, 3, 1):
        durations = draw.integers(1, 12, counts[text] + 2)
        frames = num_frames(durations)
        prosody = draw.integers(40, 70, frames), draw.integers(0, 256, frames * UNITS_PER_FRAME)
        utterance = TimedUtterance(text, durations, *prosody)
        with (tmp_path / "durations-00.i32").open("ab") as file:
            file.write(utterance.record())
    timings, cpu = read_timings(tmp_path, "durations"), torch.device("cpu")
    together = corpus_frames(phonemes, timings, cpu)
    alone = [corpus_frames(phonemes, timings[number : number + 1], cpu) for number in range(4)]
    windows = [one.windows(torch.arange(len(one.first))) for one in alone]
    assert torch.equal(together.windows(torch.arange(len(together.first))), torch.cat(windows))
    assert torch.equal(together.source, torch.cat([one.source for one in alone]))
    assert together.phonemes.tolist() == [position for one in alone for position in one.phonemes]
    assert (alone[0].source[0, :FRAMES_BEFORE] == alone[0].source[0, FRAMES_BEFORE]).all()  # none before the first


def test_stored_samples_have_the_level_of_their_voice() -> None:
    wave = 0.1 * torch.sin(torch.arange(24_000) * 0.05)
    first, second = (to_int16(wave, voice).double().square().mean().log10() for voice in (0, 1))
    assert float(10 * (second - first)) == pytest.approx(LEVELS[1] - LEVELS[0], abs=0.01)
