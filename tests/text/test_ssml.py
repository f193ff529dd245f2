# SPDX-License-Identifier: Apache-2.0
"""SSML: elements, malformed documents and fragments."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polyvox.errors import InvalidRequest
from polyvox.text import Pause, Rate, TextNormalizer, TextRules, Words, format_parts, merge_parts, normalize_text
from polyvox.text.phonemes import unmark_phonemes
from polyvox.text.ssml import MAX_LEADING_SPACE
from text.test_normalizer_streaming import cut, read


def speak(text: str) -> str:
    return format_parts(normalize_text(text))


@pytest.mark.parametrize(
    ("document", "spoken"),
    [
        ("<speak>Hello there.</speak>", "Hello there."),
        ('<?xml version="1.0"?>\n<speak version="1.1">Hi.</speak>', "Hi."),
        ("  <speak>\n  Hello\n\n  there.\n</speak>\n", "Hello there."),
        ("<speak>Wait<break time='1s'/>here</speak>", "Wait [pause:1s] here"),
        ("<speak>Wait <break strength='weak'/> here</speak>", "Wait [pause:0.25s] here"),
        ("<speak>One<break/>two</speak>", "One [pause:0.5s] two"),
        ("<speak><p>One.</p><p>Two.</p></speak>", "One.\n\nTwo."),
        ("<speak><s>one two</s><s>three</s></speak>", "one two.\nthree."),
        ("<speak>I <emphasis level='strong'>really</emphasis> do.</speak>", "I really do."),
        ("<speak><voice name='x'>A <amazon:effect name='w'>b</amazon:effect></voice></speak>", "A b"),
        ("<speak><metadata>secret</metadata>Hi <audio src='x.wav'><desc>no</desc>bell</audio></speak>", "Hi bell"),
        ("<speak>a &lt; b &amp; c &gt; d</speak>", "a less than b and c greater than d"),
        ("<speak>I &lt;3 you</speak>", "I less than three you"),
        ("<speak><!-- secret -->Hi <![CDATA[a < b]]></speak>", "Hi a less than b"),
        ('<speak><sub alias="World Wide Web">WWW</sub> is old.</speak>', "World Wide Web is old."),
        ("<speak>It is <emphasis>5</emphasis> km</speak>", "It is five kilometers"),
        ("<speak>One.</speak><speak>Two.</speak>", "One. Two."),
        ("\ufeff<speak>a<desc>b</desc></speak>", "a"),
        ("<speak>One.</speak> And 2.", "One. And two."),
        ("<speak/>Yes", "Yes"),
        ('<!DOCTYPE speak PUBLIC "-//W3C//DTD SYNTHESIS 1.0//EN" "x.dtd"><speak>Hi.</speak>', "Hi."),
    ],
)
def test_a_document_is_spoken(document: str, spoken: str) -> None:
    assert speak(document) == spoken


@pytest.mark.parametrize(
    ("attributes", "content", "spoken"),
    [
        ('interpret-as="characters"', "Ab1-2", "A B one dash two"),
        ('interpret-as="spell-out"', "SQL", "S Q L"),
        ('interpret-as="digits"', "2024", "two zero two four"),
        ('interpret-as="cardinal"', "2024", "two thousand twenty-four"),
        ('interpret-as="cardinal"', "XIV", "fourteen"),
        ('interpret-as="number"', "-1.5", "minus one point five"),
        ('interpret-as="ordinal"', "3", "third"),
        ('interpret-as="ordinal"', "VIII", "eighth"),
        ('interpret-as="year"', "1066", "ten sixty-six"),
        ('interpret-as="date" format="mdy"', "3/4/2026", "March fourth, twenty twenty-six"),
        ('interpret-as="date" format="dmy"', "3/4/2026", "April third, twenty twenty-six"),
        ('interpret-as="date" format="ymd"', "20260304", "March fourth, twenty twenty-six"),
        ('interpret-as="date" format="yyyymmdd"', "20260304", "March fourth, twenty twenty-six"),
        ('interpret-as="date" format="md"', "12-25", "December twenty-fifth"),
        ('interpret-as="date" format="my"', "Mar 1999", "March nineteen ninety-nine"),
        ('interpret-as="date" format="y"', "1905", "nineteen oh five"),
        ('interpret-as="date" format="mdy"', "soon", "soon"),
        ('interpret-as="date"', "2026-03-04", "March fourth, twenty twenty-six"),
        ('interpret-as="time"', "2:30pm", "two thirty p.m."),
        ('interpret-as="duration"', "1:05:09", "one hour five minutes and nine seconds"),
        ('interpret-as="telephone"', "+1 555 0100", "plus one, five five five, zero one zero zero"),
        ('interpret-as="currency"', "$5", "five dollars"),
        ('interpret-as="fraction"', "3/4", "three quarters"),
        ('interpret-as="unit"', "5 km", "five kilometers"),
        ('interpret-as="expletive"', "darn", "bleep"),
        ('interpret-as="nonsense"', "Dr. Lee", "Doctor Lee"),
        ("", "Dr. Lee", "Doctor Lee"),
    ],
)
def test_say_as_chooses_the_reading(attributes: str, content: str, spoken: str) -> None:
    element = f"<say-as {attributes}>{content}</say-as>"
    for text in (f"So {element} it is", f"<speak>So {element} it is</speak>"):
        assert speak(text).lower() == f"so {spoken} it is".lower()


def test_prosody_changes_the_rate() -> None:
    text = (
        'One <prosody rate="slow">two <prosody rate="+50%">three</prosody> four</prosody> '
        '<prosody pitch="high">five</prosody>'
    )
    expected = [
        Words("One"),
        Rate(0.75),
        Words("two"),
        Rate(1.5),
        Words("three"),
        Rate(0.75),
        Words("four"),
        Rate(1.0),
        Words("five"),
    ]
    assert normalize_text(text) == normalize_text(f"<speak>{text}</speak>") == expected


@pytest.mark.parametrize(
    ("rate", "value"),
    [
        ("x-slow", 0.5),
        ("fast", 1.25),
        ("80%", 0.8),
        ("200%", 2.0),
        ("-20%", 0.8),
        ("1.2", 1.2),
        ("999%", 4.0),
        ("-99%", 0.25),
    ],
)
def test_rates_are_names_percentages_or_factors(rate: str, value: float) -> None:
    first = normalize_text(f"<prosody rate='{rate}'>a</prosody>")[0]
    assert isinstance(first, Rate)
    assert first.value == pytest.approx(value)


def test_a_malformed_rate_is_noted_and_changes_nothing() -> None:
    parts, notes = read(["<prosody rate='soon'>a</prosody> b"])
    assert parts == [Words("a b")]
    assert [note.kind for note in notes] == ["malformed"]


def test_phonemes_are_used_where_the_model_takes_them() -> None:
    element = '<phoneme alphabet="ipa" ph="təˈmɑːtoʊ">tomato</phoneme>'
    for text in (f"A {element}.", f"<speak>A {element}.</speak>"):
        assert speak(text) == "A tomato."
        marked = format_parts(normalize_text(text, TextRules(phonemes=True)))
        assert marked != "A tomato."
        assert unmark_phonemes(marked) == "A tomato."


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("I <3 you", "I heart you"),
        ("a < b", "a less than b"),
        ("a<b and c>d", "a less than b and c greater than d"),
        ("Map<String, int>", "Map less than String, int greater than"),
        ("an <outbreak of flu>", "an less than outbreak of flu greater than"),
        ("if x <speak", "if x less than speak"),
        ("speak up", "speak up"),
        ("<spe", "Less than spe"),
    ],
)
def test_plain_text_is_not_parsed(text: str, spoken: str) -> None:
    for pieces in ([text], list(text)):
        parts, notes = read(pieces)
        assert (format_parts(parts), notes) == (spoken, [])


@pytest.mark.parametrize(
    "tag",
    [
        *("<speaker>", "</speak>", "</speaker >", "<br/>", "<hr />", "<x:y>", "<video controls loop>"),
        *("<p class='a b' id=c>", '<a href="https://a.example/?b=c" target=_blank>', "<prosody rate>"),
    ],
)
def test_tags_with_attributes_are_not_spoken(tag: str) -> None:
    for pieces in ([f"the {tag} tag"], ["the ", *tag, " tag"]):
        assert format_parts(read(pieces)[0]).split() == ["the", "tag"]


@pytest.mark.parametrize("space", [" ", "\n", "\ufeff", " \n\t"])
def test_white_space_before_a_text_is_buffered_to_a_limit(space: str) -> None:
    stream = TextNormalizer()
    for _ in range(10):
        assert stream.append(space * 5000) == []
        assert stream.num_pending <= MAX_LEADING_SPACE
    assert format_parts(merge_parts(stream.append("<speak>Hi.</speak>") + stream.finish())) == "Hi."


def test_plain_text_with_signs_is_unchanged_by_ssml() -> None:
    assert speak("I <3 you, and a < b.") == "I heart you, and a less than b."


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("<speak>a", r"<speak> is not closed \(line 1, column 9\)"),
        ("<speak>\n<prosody>a</speak>", r"mismatched tag \(line 2, column 13\)"),
        ("<speak><p>a", "<p> is not closed"),
        ("<speak>a & b</speak>", r"invalid token.*line 1, column 11"),
        ("<speak>a < b</speak>", r"line 1, column 11"),
        ("<speak>&nbsp;</speak>", "undefined entity"),
        ("<speak " + "a" * 5000, "4,096"),
        ("<speak>" + "<x>" * 64, "64 nested"),
        ("<speak><sub alias='x'>" + "a" * 300 + "</sub></speak>", "240 characters"),
        ("<speak><sub alias='" + "a" * 300 + "'/></speak>", "<sub> has at most 240 characters"),
        ("<speak><break time='" + "1" * 300 + "'/></speak>", "<break> has at most 240 characters"),
    ],
)
def test_a_malformed_document_is_rejected_with_the_position(document: str, message: str) -> None:
    for pieces in ([document], list(document)):
        with pytest.raises(InvalidRequest, match=message):
            read(pieces)


def test_entities_cannot_be_defined() -> None:
    with pytest.raises(InvalidRequest, match="document type"):
        speak('<?xml version="1.0"?><!DOCTYPE speak [<!ENTITY a "aaaa">]><speak>&a;</speak>')
    with pytest.raises(InvalidRequest, match="invalid token"):
        speak('<speak><!DOCTYPE speak [<!ENTITY a "aaaa">]>&a;</speak>')


def test_an_error_is_raised_once() -> None:
    stream = TextNormalizer()
    with pytest.raises(InvalidRequest):
        stream.append("<speak>a & b")
    assert stream.append("more") == []
    assert stream.finish() == []


def test_a_document_goes_on_after_a_flush() -> None:
    stream = TextNormalizer()
    parts = stream.append("<speak>One <prosody rate='2'>two") + stream.flush()
    assert merge_parts(parts) == [Words("One"), Rate(2.0), Words("two")]
    parts = stream.append(" three</prosody> 4") + stream.flush() + stream.append("</speak>") + stream.finish()
    assert merge_parts(parts) == [Words("three"), Rate(1.0), Words("four")]


def test_a_document_may_follow_a_flush() -> None:
    stream = TextNormalizer()
    assert merge_parts(stream.append("Hi.") + stream.flush()) == [Words("Hi.")]
    assert merge_parts(stream.append("<speak>a<break/></speak>") + stream.finish()) == [Words("a"), Pause(0.5)]


TAGS = st.sampled_from(
    [
        *(
            "<break/>",
            "<break time='1s'/>",
            "<p>a</p>",
            "<s>b 5</s>",
            "<emphasis>c</emphasis>",
            "&amp;",
            "&lt;",
            "5 km",
        ),
        *("<say-as interpret-as='digits'>42</say-as>", "<sub alias='x y'>z</sub>", "<phoneme ph='a'>b</phoneme>"),
        *("<prosody rate='80%'>slow 3</prosody>", "<prosody rate='x'>d", "</prosody>", "Dr. Lee", "$5", "😀", "中文"),
        *(
            "<unknown a='1'>e</unknown>",
            "<!-- f -->",
            "\n",
            "<p>",
            "</speak>",
            "<speak>",
            "text",
            "  ",
            "1 <b",
            "a<b and c>d",
            "1/2",
            "5 km",
        ),
    ]
)


@given(st.lists(TAGS, max_size=12), st.booleans(), st.lists(st.integers(0, 10_000), max_size=12))
@example(["<prosody rate='x'>d", "</prosody>"], True, [])
@example(["<break time='1s'/>", "5 km", "中文"], False, [])
@settings(max_examples=300, deadline=None)
def test_fragments_do_not_change_the_result(tags: list[str], wrapped: bool, positions: list[int]) -> None:
    text = " ".join(tags)
    text = f"<speak>{text}</speak>" if wrapped else text

    def outcome(pieces: list[str]) -> object:
        try:
            return read(pieces)
        except InvalidRequest:
            return "rejected"

    whole = outcome([text])
    assert outcome(cut(text, positions)) == whole
    assert outcome(list(text)) == whole
