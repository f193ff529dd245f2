"""Sentences survive abbreviations, decimals and addresses, and no character is lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyvox.text import SentenceStream, sentences
from text.test_text_stream import TEXTS, cut


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
        "end",
    ],
)
def test_a_text_has_these_sentences(text: str) -> None:
    wanted = text.split("|")
    glue = "\n\n" if wanted[0] == "A title" else "" if "你" in text else " "
    assert sentences(glue.join(wanted)) == wanted


@given(TEXTS, st.lists(st.integers(0, 10_000), max_size=12), st.sampled_from([1, 7, 40, 400]))
@settings(max_examples=300, deadline=None)
def test_any_cuts_give_the_sentences_of_the_whole_and_lose_nothing(text: str, places: list[int], limit: int) -> None:
    whole = sentences(text, limit)
    for pieces in (cut(text, places), list(text)):
        stream = SentenceStream(limit)
        assert [sentence for piece in pieces for sentence in stream.append(piece)] + stream.finish() == whole
    assert "".join("".join(whole).split()) == "".join(text.split())
    at = 0
    for sentence in whole:
        assert 0 < len(sentence) <= limit
        assert sentence == sentence.strip()
        at = text.index(sentence, at) + len(sentence)


@given(TEXTS, st.lists(st.integers(0, 10_000), max_size=12), st.sampled_from([7, 40, 400]))
@settings(max_examples=300, deadline=None)
def test_what_is_certain_of_a_sentence_is_what_it_begins_with(text: str, places: list[int], limit: int) -> None:
    for pieces in (cut(text, places), list(text)):
        stream = SentenceStream(limit)
        known = ""
        for found in (*map(stream.append, pieces), stream.finish()):
            for sentence in found:
                assert sentence.startswith(known)
                known = ""
            assert stream.certain.startswith(known)
            known = stream.certain
        assert known == ""


@given(TEXTS, st.lists(st.integers(0, 10_000), max_size=12), st.sampled_from([40, 400]))
@settings(max_examples=300, deadline=None)
def test_any_cuts_give_the_clauses_of_the_whole_and_lose_nothing(text: str, places: list[int], limit: int) -> None:
    whole = SentenceStream(limit, clauses=True)
    wanted = whole.append(text) + whole.finish()
    for pieces in (cut(text, places), list(text)):
        stream = SentenceStream(limit, clauses=True)
        assert [clause for piece in pieces for clause in stream.append(piece)] + stream.finish() == wanted
    assert "".join("".join(wanted).split()) == "".join(text.split())


def test_clauses_end_at_commas_but_not_after_a_word() -> None:
    stream = SentenceStream(clauses=True)
    text = "Well, this one is long enough, I think: it has 1,000 words. No."
    assert stream.append(text) + stream.finish() == [
        "Well, this one is long enough,",
        "I think: it has 1,000 words.",
        "No.",
    ]


def test_a_long_sentence_is_cut_at_clauses_then_at_words() -> None:
    assert sentences("One two three, four five six seven eight nine ten.", 30) == [
        "One two three,",
        "four five six seven eight",
        "nine ten.",
    ]
    assert sentences("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]
