# SPDX-License-Identifier: Apache-2.0
"""Text to phonemes: words, inflections, abbreviations, heteronyms, punctuation and streamed text."""

import doctest
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyvox.text.phonemes import SYMBOLS, PhonemeStream, mark_phonemes, phonemize, unmark_phonemes
from polyvox.text.phonemes.inflections import add_ed, add_ing, add_s
from polyvox.text.phonemes.lexicon import load_lexicon_entries
from polyvox.text.phonemes.pronouncer import isolated
from polyvox.text.phonemes.spelling_model import MAX_LETTERS, load_spelling_model


@pytest.mark.parametrize(
    ("text", "phonemes"),
    [
        ("Hello, world!", "həlˈO, wˈɜɹld!"),
        ("water", "wˈɔTəɹ"),
        ("Einstein and Obama", "ˈInstIn ænd Obˈɑmə"),
        ("NASA hired the FBI.", "nˈæsə hˈIəɹd ði ˌɛfbˌiˈI."),
        ("ten a.m. or five p.m.", "tˈɛn ˌAˈɛm ɔɹ fˈIv pˌiˈɛm."),
        ("two GPUs", "tˈu ʤˌipˌijˈuz"),
        ("café, naïve, résumé", "kæfˈA, nɑˈiv, ɹˈɛzəmˌA"),
        ("Zuckerberg's", "zˈʌkəɹbˌɜɹɡz"),
        ("floorboards", "flˈɔɹbˌɔɹdz"),
        ("U.S.-based", "jˌuˈɛs bˈAst"),
        ("room 12", "ɹˈum twˈɛlv"),
        ("the US and the WHO", "ðə jˌuˈɛs ænd ðə dˌʌbᵊljuˌAʧˈO"),
        ("STOP IT NOW", "stˈɑp ˈɪt nˈW"),
        ("Nice to meet you", "nˈIs tə mˈit ju"),
        ("polish the Polish chair", "pˈɑlɪʃ ðə pˈOlɪʃ ʧˈɛɹ"),
        ("'Hello', 'tis", "həlˈO, tˈɪz"),
        ("tours of Las Vegas", "tˈʊɹz ʌv lˈɑs vˈAɡəs"),
        ("Vikings expressing", "vˈIkɪŋz ɪkspɹˈɛsɪŋ"),
        ("finally, simply", "fˈInᵊli, sˈɪmpli"),
    ],
)
def test_words_have_their_usual_pronunciation(text: str, phonemes: str) -> None:
    assert phonemize(text) == phonemes


@pytest.mark.parametrize(
    ("text", "phonemes"),
    [
        ("the end", "ði ˈɛnd"),
        ("the hour", "ði ˈWəɹ"),
        ("the university", "ðə jˌunəvˈɜɹsəTi"),
        ("to eat", "tʊ ˈit"),
        ("to go", "tə ɡˌO"),
        ("Where to?", "wˌɛɹ tˈu?"),
        ("a cat", "ɐ kˈæt"),
        ("Plan A works", "plˈæn ˈA wˈɜɹks"),
        ("what for?", "wˌʌt fˈɔɹ?"),
    ],
)
def test_function_words_depend_on_what_follows(text: str, phonemes: str) -> None:
    assert phonemize(text) == phonemes


@pytest.mark.parametrize(
    ("text", "phonemes"),
    [
        ("(yes) no", "jˈɛs, nˈO"),
        ("well - yes", "wˈɛl — jˈɛs"),
        ("really?!", "ɹˈiᵊli?"),
        ('He said: "Hi."', "hi sˈɛd: hˈI."),
        ("wait...", "wˈAt…"),
        (", one", "wˈʌn"),
        ("one.\n\ntwo", "wˈʌn. tˈu"),
        ("…", ""),
    ],
)
def test_punctuation_is_kept_and_reduced_to_one_mark(text: str, phonemes: str) -> None:
    assert phonemize(text) == phonemes


def test_endings_follow_the_last_sound_of_the_stem() -> None:
    assert [add_s(stem) for stem in ("kˈæt", "dˈɔɡ", "hˈɔɹs")] == ["kˈæts", "dˈɔɡz", "hˈɔɹsᵻz"]
    assert [add_ed(stem) for stem in ("wˈɔk", "plˈA", "wˈɑnt", "nˈid", "kɹˈAt")] == [
        "wˈɔkt",
        "plˈAd",
        "wˈɑntᵻd",
        "nˈidᵻd",
        "kɹˈATᵻd",
    ]
    assert add_ing("ˈit") == "ˈiTɪŋ"


def test_the_lexicon_has_at_least_100_000_words_and_only_known_symbols() -> None:
    entries = load_lexicon_entries()
    assert len(entries) >= 100_000
    spoken = {form.rpartition("=")[2] for _, entry in entries.items() for form in entry.split(" ")}
    assert set("".join(spoken)) <= SYMBOLS


def test_the_lexicon_loads_in_less_than_300_ms_of_cpu_time() -> None:
    began = time.process_time()
    load_lexicon_entries.__wrapped__()
    assert time.process_time() - began < 0.3


def test_unknown_words_are_pronounced_from_their_spelling_with_one_main_stress() -> None:
    model = load_spelling_model()
    for word in ("blorfing", "zanthorples", "quibbleton", "x", "'", "é", "a" * 200):
        phonemes = model.pronounce(word)
        assert set(phonemes) <= SYMBOLS
        assert phonemes.count("ˈ") <= 1
        assert phonemes == model.pronounce(word)
    assert model.pronounce("blick") == "blˈɪk"


def test_inline_phonemes_replace_the_word_and_are_removed_from_the_shown_text() -> None:
    text = f"I say {mark_phonemes('tomato', 'təmˈɑtO')}, you say {mark_phonemes('New York', 'nˈu jˈɔɹk')}."
    assert phonemize(text) == "ˌI sˈA təmˈɑtO, ju sˈA nˈu jˈɔɹk."
    assert unmark_phonemes(text) == "I say tomato, you say New York."


def test_inline_phonemes_outside_the_alphabet_are_rejected() -> None:
    with pytest.raises(ValueError, match="unknown phonemes: 7 ξ"):
        mark_phonemes("word", "ξ7")


PAGE = Path(__file__).parents[2] / "docs/phonemes.md"
WORDS = st.sampled_from(
    [*("the", "to", "read", "I", "have", "live", "a.m.", "p.m.", "The", "NASA", "FBI", "U.S.", "it's", "end", "apple,"),
    *("record;", "(close)", "-", "…", "'em", "goin'", "12", "well-known", "US", "WHO", "Dr.", "in?", "for!", "résumé"),
    *("naïve", "—", "café", "?", "\n", "blorf")]
)  # fmt: skip


@given(st.lists(WORDS, max_size=12), st.data())
@settings(max_examples=200, deadline=None)
def test_any_fragmentation_gives_the_phonemes_of_the_whole_text(words: list[str], data: st.DataObject) -> None:
    text = " ".join(words)
    stream, made, at = PhonemeStream(), "", 0
    while at < len(text):
        size = data.draw(st.integers(1, 7))
        made += stream.append(text[at : at + size])
        at += size
    assert made + stream.finish() == phonemize(text)


@given(st.text(max_size=80), st.data())
@settings(max_examples=200, deadline=None)
def test_any_text_gives_only_symbols_of_the_alphabet_in_any_fragmentation(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    stream = PhonemeStream()
    made = stream.append(text[:cut]) + stream.append(text[cut:]) + stream.finish()
    assert made == phonemize(text)
    assert set(made) <= SYMBOLS


def test_a_word_without_alternatives_is_emitted_with_the_space_after_it() -> None:
    stream = PhonemeStream()
    assert stream.append("Hel") == ""
    assert stream.append("lo ") == "həlˈO"
    assert stream.append("the ") == ""
    assert stream.append("apple ") == " ði ˈæpᵊl"


def test_a_very_long_word_is_spoken_in_pieces_and_cached_in_pieces() -> None:
    isolated.cache_clear()
    assert phonemize("ba" * 2000).count(" ") == 2 * 2000 // MAX_LETTERS - 1
    assert isolated.cache_info().currsize <= 2


def test_long_text_takes_linear_time() -> None:
    def seconds(size: int) -> float:
        began = time.process_time()
        phonemize("a.b-c'd(" * size + "x" * size)
        return time.process_time() - began

    seconds(100)
    assert seconds(8000) < 40 * max(seconds(1000), 0.002)


HARD_WORDS = [line.split("\t") for line in Path(__file__).with_name("hard_words.tsv").read_text().splitlines()]


@pytest.mark.parametrize(("word", "phonemes"), HARD_WORDS)
def test_names_and_words_with_irregular_spelling_are_pronounced(word: str, phonemes: str) -> None:
    assert phonemize(word) == phonemes


@pytest.mark.parametrize(
    ("notation", "written", "phonemes"),
    [
        ("ipa", "təˈmeɪtoʊ", "təmˈAtO"),
        ("ipa", "/ˈstriːt/", "stɹˈit"),
        ("ipa", "həˈləʊ ˈwɝːld", "həlˈO wˈɜɹld"),
        ("ipa", "ˈt͡ʃiːz", "ʧˈiz"),
        ("ipa", "maʁi", "mæɹi"),
        ("cmu-arpabet", "B AH1 T ER0", "bˈʌTəɹ"),
        ("kokoro-en-us", "bˈʌTəɹ", "bˈʌTəɹ"),
    ],
)
def test_phonemes_in_other_notations_are_converted(notation: str, written: str, phonemes: str) -> None:
    assert phonemize(mark_phonemes("word", written, notation)) == phonemes


def test_unknown_notations_are_rejected() -> None:
    with pytest.raises(ValueError, match="supported are ipa, cmu-arpabet, kokoro-en-us"):
        mark_phonemes("word", "a", "x-sampa")


def test_the_documentation_is_true() -> None:
    assert doctest.testfile(str(PAGE), module_relative=False).failed == 0
    page = PAGE.read_text()
    assert f"{len(load_lexicon_entries()):,} words" in page
    rows = re.findall(r"^\| ((?:`[^`]+` ?)+) \|", page, re.MULTILINE)
    assert set("".join(rows)) - {"`"} == SYMBOLS
