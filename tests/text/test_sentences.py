# SPDX-License-Identifier: Apache-2.0
"""Sentence splitting: abbreviations, decimals, addresses, streaming."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyvox.text import SentenceSplitter, split_sentences
from text.test_normalizer_streaming import TEXTS, cut


@pytest.mark.parametrize(
    "text",
    [
        "Dr. Smith met Mr. Jones.|They spoke.",
        "It costs 3.50 today.|Tomorrow it is 4.",
        "J. R. R. Tolkien wrote it.|He was good.",
        "The U.S. Army is large.|It is old.",
        "Wait... there is more.|Wait...|What?",
        "What?!|No way!|Yes.",
        'He said "Stop."|Then he left.',
        "(It rained.)|We stayed.",
        "See https://example.com/a.b.|It helps.",
        "See example.com for more.|Bye.",
        "At 3 p.m. we left.|It was late.",
        "Use it, e.g. here, i.e. now.|Done.",
        "No. 5 is alive.|The answer is no.|Really.",
        "One line\nof one sentence.|Another.",
        "A title|A paragraph.",
        "你好。|我很好！|「是。」|她说。",
        "Cats, dogs, etc. are here.|Then cats, etc.|We left.",
        "Fig. 3 and p. 5 show it.|So does vol. 2.",
        "I saw 5.|5 saw me.",
        "Das gilt z.B. Samstag, d.h. immer.|Siehe Nr. 5 usw.|Ja.",
        "Wir kommen am 3. Oktober.|Bis dann.",
        "Er wohnt in der Hauptstr. 5.|Dort ist es schön.",
        "« Bonjour ! »|Il est parti ?|« Oui. » dit-elle.|Non !",
        "« Non ! », dit-il.|Bien.",
        "¿Qué hora es?|¡Vamos!|¿La Sra. López?|Sí.",
        "Il sig. Rossi e il dott. Verdi.|Poi basta.",
        "Он живёт на ул. Ленина в г. Москва, т. е. рядом.|А. С. Пушкин тоже.|Да.",
        "end",
    ],
)
def test_a_text_is_split_into_these_sentences(text: str) -> None:
    expected = text.split("|")
    glue = "\n\n" if expected[0] == "A title" else "" if "你" in text else " "
    assert split_sentences(glue.join(expected)) == expected


@given(TEXTS, st.lists(st.integers(0, 10_000), max_size=12), st.sampled_from([1, 7, 40, 400]))
@settings(max_examples=300, deadline=None)
def test_chunks_do_not_change_sentences_and_nothing_is_lost(text: str, positions: list[int], limit: int) -> None:
    whole = split_sentences(text, limit)
    for pieces in (cut(text, positions), list(text)):
        splitter = SentenceSplitter(limit)
        assert [sentence for piece in pieces for sentence in splitter.append(piece)] + splitter.finish() == whole
    assert "".join("".join(whole).split()) == "".join(text.split())
    at = 0
    for sentence in whole:
        assert 0 < len(sentence) <= limit
        assert sentence == sentence.strip()
        at = text.index(sentence, at) + len(sentence)


@given(TEXTS, st.lists(st.integers(0, 10_000), max_size=12), st.sampled_from([7, 40, 400]))
@settings(max_examples=300, deadline=None)
def test_the_certain_beginning_of_a_sentence_never_changes(text: str, positions: list[int], limit: int) -> None:
    for pieces in (cut(text, positions), list(text)):
        splitter = SentenceSplitter(limit)
        known = ""
        for found in (*map(splitter.append, pieces), splitter.finish()):
            for sentence in found:
                assert sentence.startswith(known)
                known = ""
            assert splitter.certain.startswith(known)
            known = splitter.certain
        assert known == ""


@given(TEXTS, st.lists(st.integers(0, 10_000), max_size=12), st.sampled_from([40, 400]))
@settings(max_examples=300, deadline=None)
def test_chunks_do_not_change_clauses_and_nothing_is_lost(text: str, positions: list[int], limit: int) -> None:
    whole = SentenceSplitter(limit, clauses=True)
    expected = whole.append(text) + whole.finish()
    for pieces in (cut(text, positions), list(text)):
        splitter = SentenceSplitter(limit, clauses=True)
        assert [clause for piece in pieces for clause in splitter.append(piece)] + splitter.finish() == expected
    assert "".join("".join(expected).split()) == "".join(text.split())


def test_clauses_end_at_commas_unless_they_are_short() -> None:
    splitter = SentenceSplitter(clauses=True)
    text = "Well, this one is long enough, I think: it has 1,000 words. No."
    assert splitter.append(text) + splitter.finish() == [
        "Well, this one is long enough,",
        "I think: it has 1,000 words.",
        "No.",
    ]


def test_text_of_a_sentence_is_certain_at_once_up_to_half_of_the_maximum_length() -> None:
    """Later it waits for the end of its clause, because the last one within the maximum length is a split point."""
    splitter = SentenceSplitter(40)
    assert splitter.append("One, two three four") == []
    assert splitter.certain == "One, two three four"
    assert splitter.append(" five, six seven") == []
    assert splitter.certain == "One, two three four five,"


def test_a_long_sentence_is_split_at_clauses_then_at_words() -> None:
    assert split_sentences("One two three four, five six seven eight nine ten eleven.", 30) == [
        "One two three four,",
        "five six seven eight nine ten",
        "eleven.",
    ]
    assert split_sentences("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]
