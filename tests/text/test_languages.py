# SPDX-License-Identifier: Apache-2.0
"""Languages other than English: detection, and the words of numbers, dates, times and amounts."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ipc.fake_engine import ABOUT
from polyvox.text import TextNormalizer, TextRules, format_parts, normalize_text
from polyvox.text.language_detector import MAX_LOOKAHEAD, detect
from polyvox.text.languages import LANGUAGES, _load, load_rules
from tools.text_accuracy import accuracy_table, load_cases

FOLDER = Path(__file__).with_name("languages")
DETECTION = [line.split("\t") for line in (FOLDER / "detection.tsv").read_text(encoding="utf-8").splitlines()]
OTHERS = [language for language in LANGUAGES if language != "english"]


HELD_OUT = [line.split("\t") for line in (FOLDER / "held_out.tsv").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("language", OTHERS)
def test_texts_written_after_the_rules_stay_correct(language: str) -> None:
    texts = [(written, spoken) for name, written, spoken in HELD_OUT if name == language]
    assert len(texts) >= 20
    assert [format_parts(normalize_text(written)) for written, _ in texts] == [spoken for _, spoken in texts]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_language_of_at_least_95_percent_of_the_sentences_is_detected(language: str) -> None:
    sentences = [sentence for name, sentence in DETECTION if name == language]
    found = Counter(detect(sentence, True, None, "english") for sentence in sentences)
    assert len(sentences) >= 40
    assert found[language] >= 0.95 * len(sentences), found


def test_the_english_cases_are_detected_as_english() -> None:
    """The cases are short, and many have no English word."""
    cases = [case.written for case in load_cases()]
    others = [written for written in cases if detect(written, True, None, "english") != "english"]
    assert len(others) <= 0.01 * len(cases), others


@pytest.mark.parametrize("sentence", [sentence for _, sentence in DETECTION])
def test_a_decision_about_the_language_is_never_taken_back(sentence: str) -> None:
    text = f"{sentence} {sentence}"
    decisions = [detect(text[:size], False, None, "english") for size in range(1, MAX_LOOKAHEAD + 2)]
    decided = [decision for decision in decisions if decision is not None]
    assert len(set(decided)) <= 1
    assert None not in decisions[len(decisions) - len(decided) :]
    if len(text) > MAX_LOOKAHEAD:
        assert decided


@pytest.mark.parametrize("language", OTHERS)
def test_at_least_60_cases_are_read_correctly(language: str) -> None:
    cases = load_cases(FOLDER / f"{language}.tsv", TextRules(language=language))
    assert len({case.written for case in cases}) >= 60
    assert [(case.written, case.spoken) for case in cases if not case.is_correct] == []


@pytest.mark.parametrize("language", OTHERS)
def test_cases_are_read_the_same_when_the_language_is_detected(language: str) -> None:
    table, accuracy = accuracy_table(load_cases(FOLDER / f"{language}.tsv", TextRules()))
    assert accuracy >= 0.95, table


def spoken(text: str, language: str = "auto", default: str = "english") -> str:
    normalizer = TextNormalizer(TextRules(language=language, default_language=default))
    return format_parts([*normalizer.append(text), *normalizer.finish()])


def test_each_sentence_is_read_in_its_language() -> None:
    text = "Das kostet 5 €. It costs $5. Ça coûte 5 €."
    assert spoken(text) == "Das kostet fünf Euro. It costs five dollars. Ça coûte cinq euros."


def test_the_requested_language_takes_precedence() -> None:
    for language in ("french", "French", "fr", "fr-CA", "FR_ca"):
        assert spoken("Das kostet 5 €.", language) == "Das kostet cinq euros."


def test_a_sentence_without_words_has_the_language_of_the_text_before() -> None:
    assert spoken("Wie viele sind es? 25.") == "Wie viele sind es? Fünfundzwanzig."
    assert spoken("How many are there? 25.") == "How many are there? Twenty-five."
    assert spoken("25.", default="german") == "Fünfundzwanzig."


def test_numbers_of_a_language_without_rules_stay_as_written() -> None:
    assert spoken("Jag har inte 25 bilar, det är sant.") == "Jag har inte 25 bilar, det är sant."
    assert spoken("Η τιμή είναι 25 ευρώ σήμερα.") == "Η τιμή είναι 25 ευρώ σήμερα."


def test_the_names_of_languages_without_rules_are_not_kept() -> None:
    languages = [f"unknown {number}" for number in range(100)]
    before = _load.cache_info().currsize
    assert [load_rules(language).name for language in languages] == languages
    assert _load.cache_info().currsize == before


def test_the_detected_languages_are_reported() -> None:
    normalizer = TextNormalizer()
    normalizer.append("Das ist gut. Und das auch. This is good.")
    normalizer.finish()
    assert normalizer.languages == {"german": 2, "english": 1}


def test_a_model_that_speaks_no_english_has_another_default_language() -> None:
    assert ABOUT.default_language == "english"
    assert replace(ABOUT, languages=("auto", "korean")).default_language == "korean"
