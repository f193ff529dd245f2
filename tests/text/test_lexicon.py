# SPDX-License-Identifier: Apache-2.0
"""Pronunciation lexicons: matching, files and the order of precedence."""

import json
import re
import time
from pathlib import Path

import pytest

from polyvox.errors import InvalidRequest
from polyvox.text import Lexicon, Note, Pronunciation, TextNormalizer, TextRules, format_parts, load_lexicon
from polyvox.text import normalize_text as normalize
from polyvox.text.phonemes import unmark_phonemes


def speak(text: str, lexicon: Lexicon, language: str = "auto") -> str:
    return format_parts(normalize(text, TextRules(language, lexicon)))


def test_whole_words_are_respelled_in_any_case_and_the_longest_first() -> None:
    lexicon = Lexicon.from_words(
        {"SQL": "sequel", "New York": "Noo Yawk", "New York City": "the city", "example.com": "our site"}
    )
    spoken = speak("sql, MySQL and new  york; New York City at example.com (SQL).", lexicon)
    assert spoken == "sequel, MySQL and Noo Yawk; the city at our site (sequel)."


def test_a_lexicon_works_in_every_language() -> None:
    assert speak("Das GIF.", Lexicon.from_words({"gif": "Giff"}), "german") == "Das Giff."


def test_a_pronunciation_may_match_case() -> None:
    lexicon = Lexicon((Pronunciation("US", "the States", match_case=True), Pronunciation("us", "uss")))
    assert speak("US beats us, Us.", lexicon) == "the States beats uss, uss."


def test_words_with_digits_and_signs_are_respelled_before_any_other_rule() -> None:
    lexicon = Lexicon.from_words({"5G": "five gee", "C#": "see sharp", "Dr. Who": "the Doctor"})
    assert speak("5G, C# and Dr. Who. 5GB", lexicon) == "Five gee, see sharp and the Doctor. Five gigabytes"


def test_other_pronunciations_replace_those_of_equal_words() -> None:
    server = Lexicon.from_words({"SQL": "sequel", "GIF": "jiff"})
    lexicon = server.updated([Pronunciation("sql", "S Q L")])
    assert speak("SQL GIF", lexicon) == "S Q L jiff"
    assert server.updated([]) is server


def test_phonemes_are_given_to_models_that_take_them() -> None:
    lexicon = Lexicon((Pronunciation("tomato", phonemes="təˈmɑːtoʊ"),))
    normalizer = TextNormalizer(TextRules(lexicon=lexicon, phonemes=True))
    spoken = format_parts(normalizer.append("A tomato.") + normalizer.finish())
    assert spoken != "A tomato."
    assert unmark_phonemes(spoken) == "A tomato."
    assert normalizer.notes == []


def test_other_models_speak_the_written_word_with_a_note() -> None:
    normalizer = TextNormalizer(TextRules(lexicon=Lexicon((Pronunciation("tomato", phonemes="təˈmɑːtoʊ"),))))
    assert format_parts(normalizer.append("A tomato.") + normalizer.finish()) == "A tomato."
    assert normalizer.notes == [Note("phonemes", "tomato")]


def test_phonemes_that_do_not_exist_are_noted_and_the_written_word_is_spoken() -> None:
    lexicon = Lexicon((Pronunciation("tomato", phonemes="☃"),))
    normalizer = TextNormalizer(TextRules(lexicon=lexicon, phonemes=True))
    assert format_parts(normalizer.append("A tomato.") + normalizer.finish()) == "A tomato."
    assert [note.kind for note in normalizer.notes] == ["malformed"]


@pytest.mark.parametrize(
    ("word", "respelling", "phonemes"),
    [
        ("", "x", ""),
        ("a", " ", ""),
        ("--", "x", ""),
        ("a\nb", "x", ""),
        ("a", "x", "y"),
        ("a" * 101, "x", ""),
        ("a", "x" * 241, ""),
        ("a\ud800", "x", ""),
        ("a", "x\x01", ""),
        ("a", "", "b\udfff"),
    ],
)
def test_an_invalid_pronunciation_is_rejected(word: str, respelling: str, phonemes: str) -> None:
    with pytest.raises(InvalidRequest, match="pronunciation"):
        Pronunciation(word, respelling, phonemes)


def test_a_run_of_spaces_in_a_phrase_counts_as_one() -> None:
    lexicon = Lexicon.from_words({"word 5": "y", "word 99 x": "z"})
    assert speak("word 5 and word   99  x", lexicon) == "y and z"


def test_many_phrases_with_the_same_first_word_take_no_longer_than_one() -> None:
    text = "word " * 2_000

    def seconds(num_phrases: int) -> float:
        lexicon = Lexicon.from_words({f"word {number:04}": "y" for number in range(num_phrases)})
        began = time.process_time()
        assert speak(text, lexicon) == text.strip()
        return time.process_time() - began

    seconds(1)  # caches
    assert seconds(1_000) < 4 * seconds(1) + 0.1


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_file_has_one_word_per_line_and_comments(tmp_path: Path) -> None:
    text = "# names\nSQL = sequel\n\nC# = see sharp  # the language\nAn Lushan = ahn loo-shahn\ntomato = /təˈmɑːtoʊ/\n"
    assert load_lexicon(write(tmp_path, "words.txt", text)).pronunciations == (
        Pronunciation("SQL", "sequel"),
        Pronunciation("C#", "see sharp"),
        Pronunciation("An Lushan", "ahn loo-shahn"),
        Pronunciation("tomato", phonemes="təˈmɑːtoʊ"),
    )


def test_the_file_of_the_documentation_is_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/text.md").read_text()
    (text,) = re.findall(r"^```\n(SQL = .*?)^```", page, re.DOTALL | re.MULTILINE)
    lexicon = load_lexicon(write(tmp_path, "lexicon.txt", text))
    assert speak("SQL in New York", lexicon) == "sequel in Noo Yawk"
    assert lexicon.pronunciations[-1] == Pronunciation("tomato", phonemes="təˈmɑːtoʊ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = b\nSQL sequel\n", "line 2.*'SQL sequel'"),
        ("SQL =\n", "line 1"),
        ("= x\n", "line 1"),
        ("sql = a\nSQL = b\n", "line 2.*already defined on line 1"),
    ],
)
def test_the_error_for_an_invalid_line_has_its_number(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        load_lexicon(write(tmp_path, "words.txt", text))


def test_a_missing_or_binary_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "sound").write_bytes(b"RIFF\xff\xfe")
    for name, requirement in (("nowhere", "cannot be read: No such file"), ("sound", "must be a UTF-8 text file")):
        with pytest.raises(InvalidRequest, match=requirement):
            load_lexicon(tmp_path / name)


PLS = """<?xml version="1.0" encoding="UTF-8"?>
<lexicon version="1.0" xmlns="http://www.w3.org/2005/01/pronunciation-lexicon" alphabet="ipa" xml:lang="en-US">
  <lexeme><grapheme>tomato</grapheme><grapheme>Tomato</grapheme><phoneme>təˈmɑːtoʊ</phoneme></lexeme>
  <lexeme><grapheme>UN</grapheme><alias>United Nations</alias></lexeme>
</lexicon>
"""


def test_a_pls_file_has_aliases_and_phonemes(tmp_path: Path) -> None:
    assert load_lexicon(write(tmp_path, "words.pls", PLS)).pronunciations == (
        Pronunciation("tomato", phonemes="təˈmɑːtoʊ", match_case=True),
        Pronunciation("Tomato", phonemes="təˈmɑːtoʊ", match_case=True),
        Pronunciation("UN", "United Nations", match_case=True),
    )


@pytest.mark.parametrize(
    "text", ["<lexicon>", "<!DOCTYPE x><lexicon/>", "<lexicon><lexeme><grapheme>a</grapheme></lexeme></lexicon>", ""]
)
def test_an_invalid_pls_file_is_rejected(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"lexicon|pronunciation"):
        load_lexicon(write(tmp_path, "words.pls", text))


def test_a_json_file_has_rules(tmp_path: Path) -> None:
    rules = [
        {"string_to_replace": "UN", "type": "alias", "alias": "United Nations"},
        {"string_to_replace": "gif", "type": "alias", "alias": "jiff", "case_sensitive": False},
        {"string_to_replace": "tomato", "type": "phoneme", "phoneme": "T AH0 M", "alphabet": "cmu-arpabet"},
    ]
    expected = (
        Pronunciation("UN", "United Nations", match_case=True),
        Pronunciation("gif", "jiff"),
        Pronunciation("tomato", phonemes="T AH0 M", alphabet="cmu-arpabet", match_case=True),
    )
    for content in (rules, {"rules": rules}):
        assert load_lexicon(write(tmp_path, "words.json", json.dumps(content))).pronunciations == expected


@pytest.mark.parametrize(
    "rules",
    ["{", "3", "[" * 100_000, '["a"]', '[{"type": "sound"}]', '[{"type": ["alias"]}]', '[{"string_to_replace": "a"}]'],
    ids=lambda rules: rules[:30],
)
def test_invalid_json_rules_are_rejected(tmp_path: Path, rules: str) -> None:
    with pytest.raises(InvalidRequest, match=r"lexicon|pronunciation"):
        load_lexicon(write(tmp_path, "words.json", rules))
