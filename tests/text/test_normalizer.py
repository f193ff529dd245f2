# SPDX-License-Identifier: Apache-2.0
"""Text normalisation: written text and its spoken form."""

import doctest
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyvox.text import (
    Note,
    Part,
    Pause,
    TextNormalizer,
    TextRules,
    Words,
    format_parts,
    merge_parts,
    normalize_text,
)
from polyvox.text.languages.english.word_tables import ABBREVIATIONS

LINES = (Path(__file__).parent / "cases.tsv").read_text().split("\n")
CASES = [line.replace("\\n", "\n").replace("\\t", "\b").split("\t") for line in LINES if "\t" in line]
CASES = [[source.replace("\b", "\t"), spoken] for source, spoken in CASES]


def read(text: str, rules: TextRules | None = None) -> tuple[list[Part], list[Note]]:
    stream = TextNormalizer(rules)
    return merge_parts(stream.append(text) + stream.finish()), stream.notes


def test_there_are_at_least_250_cases() -> None:
    assert len({source for source, _ in CASES}) >= 250


@pytest.mark.parametrize(("source", "spoken"), CASES)
def test_written_text_becomes_its_spoken_form(source: str, spoken: str) -> None:
    assert format_parts(normalize_text(source)) == spoken


@pytest.mark.parametrize("spoken", sorted({spoken for _, spoken in CASES}))
def test_normalisation_is_idempotent(spoken: str) -> None:
    assert format_parts(normalize_text(spoken)) == spoken


# A word that is an abbreviation, a month or a Roman numeral is not plain before a full stop.
WORD = st.text("abcdefghijklmnopqrstuvwxyz", min_size=2, max_size=9).filter(lambda word: word not in ABBREVIATIONS)
SENTENCE = st.builds(
    lambda words, end: " ".join(words).capitalize() + end,
    st.lists(WORD, min_size=1, max_size=12),
    st.sampled_from(".!?"),
)


@given(st.lists(SENTENCE, min_size=1, max_size=5).map(" ".join))
def test_plain_sentences_are_not_changed(text: str) -> None:
    assert normalize_text(text) == [Words(text)]


def test_disabled_rules_pass_text_through() -> None:
    text = "  # 5 km\u200b <think>x</think> 😀 [pause:1s] e\u0301  "
    parts, notes = read(text, TextRules(enabled=False))
    assert parts == [Words(text)]
    assert notes == []


def test_other_languages_keep_their_numbers_with_a_note() -> None:
    parts, notes = read("**Es** kostet 3,50 € am 4. März 😀 `x` [pause:1s] usw.", TextRules(language="Dutch"))
    assert parts == [Words("Es kostet 3,50 € am 4. März x"), Pause(1.0), Words("usw.")]
    assert Note("language", "Dutch") in notes
    assert Note("emoji", "😀") in notes


def test_pauses_are_limited() -> None:
    parts, notes = read('One [pause:0.5s] two <break time="20s"/> three [pause:0] four [pause:soon] five')
    assert parts == [Words("One"), Pause(0.5), Words("two"), Pause(10.0), Words("three four five")]
    assert notes == [Note("pause", '<break time="20s"/>'), Note("malformed", "[pause:soon]")]


def test_the_pauses_between_two_words_are_limited_in_all() -> None:
    tag = "[pause:10s]"
    parts, notes = read(f"One {' '.join([tag] * 4)} - <prosody rate='slow'>{' '.join([tag] * 3)} two. {tag}")
    pauses = [part.seconds for part in parts if isinstance(part, Pause)]
    assert (sum(pauses), parts[-2:]) == (70.0, [Words("two."), Pause(10.0)])
    assert notes == [Note("pause", tag)]


def test_a_flush_does_not_permit_more_silence() -> None:
    normalizer = TextNormalizer()
    parts = [part for _ in range(10) for part in [*normalizer.append("[pause:10s]"), *normalizer.flush()]]
    assert parts == [Pause(10.0)] * 6


def test_omissions_are_noted() -> None:
    text = "<think>secret</think>A <b>b</b> [c](http://d.example) ![e](f.png)\n```sh\nrm\n```\n😂😂 \ue000 https://g.com/?q=1"
    _, notes = read(text)
    assert set(notes) == {
        Note("thought", "<think>secret</think>"),
        Note("tag", "<b>"),
        Note("tag", "</b>"),
        Note("link", "[c](http://d.example)"),
        Note("image", "![e](f.png)"),
        Note("code", "```sh\nrm\n```\n"),
        Note("repeated", "😂😂"),
        Note("unspeakable", "\ue000"),
        Note("url", "https://g.com/?q=1"),
    }


PAGE = (Path(__file__).parents[2] / "docs/text.md").read_text()
ROWS = [line.strip("| ").split("` | `") for line in PAGE.split("\n") if line.startswith("| `") and "` | `" in line]


@pytest.mark.parametrize(("source", "spoken"), [(source.strip("`"), spoken.strip("`")) for source, spoken in ROWS])
def test_examples_of_the_documentation(source: str, spoken: str) -> None:
    assert format_parts(normalize_text(source.replace("\\n", "\n"))) == spoken.replace("\\n", "\n")


def test_the_documentation_has_examples() -> None:
    assert len(ROWS) >= 20


def test_doctests_of_the_documentation() -> None:
    results = doctest.testfile(str(Path(__file__).parents[2] / "docs/text.md"), module_relative=False)
    assert results.attempted >= 6
    assert results.failed == 0
