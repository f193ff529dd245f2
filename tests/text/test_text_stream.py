"""What is said does not depend on how the text was cut; nothing is lost, nothing is slow, little is held back."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polyvox.text import Note, Part, SpokenText, TextRules, Words, merged, speakable, spoken
from polyvox.text.borders import WINDOW, Borders
from polyvox.text.characters import LONGEST_CLUSTER
from polyvox.text.counting import cardinal, digits, ordinal
from polyvox.text.inline import Inline
from text.test_speakable import CASES

RULES = [
    TextRules(),
    TextRules(language="german"),
    TextRules(enabled=False),
    TextRules(lexicon={"New York": "Noo Yawk", "km": "kay em", "中文": "zhongwen", "e.g.": "say"}),
]
SHARDS = [
    *"\n*_`~|#>-+=<>[](){}!&$@/\\.,:;'\"% 0159axIV\r\t",
    *(
        "\n\n",
        "**",
        "``",
        "```",
        "```\n",
        "~~~\n",
        "](",
        "<b>",
        "</p>",
        "<think>",
        "</think>",
        "<thi",
        "<!--",
        "-->",
        "| a |",
    ),
    *(
        '<sub alias="x y">',
        "</sub>",
        "<sub alias='q'>ab</sub>",
        "[pause:1s]",
        "[pause",
        "<break time='x'/>",
        "|---|",
        "- [x] ",
    ),
    *(
        "e",
        "\u0301",
        "\ud83d",
        "\ude00",
        "\u200d",
        "👩",
        "💻",
        "🏽",
        "\ufe0f",
        "🇺",
        "🇸",
        "か",
        "\u3099",
        "中",
        "文",
        "。",
        "\u1100",
        "\u1161",
    ),
    *(
        "\u200b",
        "&amp;",
        "&lt;",
        "&#",
        "March",
        "Dr.",
        "St.",
        "etc.",
        "No.",
        "km",
        "New",
        "York",
        "new york",
        "\ue000",
        "\x00",
    ),
    *("a" * 60, "9" * 60, "1 " * 40, "<a " + "x" * 300, "[" + "y " * 200, "https://a.b/c?d=e"),
]
TEXTS = st.lists(
    st.one_of(st.sampled_from(SHARDS), st.sampled_from([source for source, _ in CASES]), st.text(max_size=8))
    | st.text(st.characters(codec=None), max_size=4),
    max_size=30,
).flatmap(lambda shards: st.sampled_from(["", " "]).map(lambda glue: glue.join(shards)))


def read(pieces: Sequence[str], rules: TextRules | None = None) -> tuple[list[Part], list[Note]]:
    stream = SpokenText(rules)
    parts = [part for piece in pieces for part in stream.append(piece)]
    return merged(parts + stream.finish()), stream.notes


def cut(text: str, places: Sequence[int]) -> list[str]:
    borders = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(borders)]


@given(TEXTS, st.lists(st.integers(0, 10_000), max_size=12), st.sampled_from(RULES))
@example("Es 3,50 € am\n" + "x" * 2000, [700], RULES[0])
@settings(max_examples=400, deadline=None)
def test_any_cuts_give_the_parts_and_notes_of_the_whole(text: str, places: list[int], rules: TextRules) -> None:
    whole = read([text], rules)
    assert read(cut(text, places), rules) == whole
    assert read(list(text), rules) == whole
    assert speakable(text, rules) == whole[0]


@pytest.mark.parametrize("source", [source for source, _ in CASES])
def test_a_case_of_the_table_may_be_cut_anywhere(source: str) -> None:
    text = f"So {source} then."
    whole = read([text])
    for place in range(len(text)):
        assert read([text[:place], text[place:]]) == whole


@given(st.text(st.characters(codec=None)), st.sampled_from(RULES))
@settings(max_examples=300, deadline=None)
def test_any_unicode_is_taken(text: str, rules: TextRules) -> None:
    for part in speakable(text, rules):
        if rules.enabled and isinstance(part, Words):
            part.text.encode()  # no lone surrogates
            assert part.text == part.text.strip()


# Words that no rule knows, one for each place, in every kind of markup.
PLACES = [
    *(
        "{}",
        "**{}**",
        "_{}_",
        "~~{}~~",
        "`{}`",
        "[{}](http://{}.com/{}?{}={})",
        "![{}]({}.png)",
        "<b>{}</b>",
        "<i {}>{}</i>",
    ),
    *(
        "# {}\n",
        "\n- {}\n",
        "\n> {}\n",
        "\n| {} | {} |\n",
        "<think>{}</think>",
        "<!-- {} -->",
        "\n```{}\n{}\n```\n",
        "#{}",
        "@{}",
    ),
    *(
        "{}@{}.com",
        "/{}/{}",
        "{}.py",
        "{}/{}",
        "{}_{}",
        "({})",
        '"{}"',
        "[{}]",
        "[{}][{}]",
        "[^{}]",
        "<{}>",
        "</{}>",
        "&{};",
        "${}",
    ),
    *(
        '<sub alias="{}">{}</sub>',
        "[pause:{}]",
        "<break time='{}'/>",
        "{}5",
        "5{}",
        "{}^2",
        "😀{}",
        "{}中文",
        "<{}",
        "`{}",
        "[{}",
        "{}]({}",
    ),
    *(
        "{}'s",
        "{}...",
        "{}*{}",
        "C:\\{}",
        "{}: {}",
        "{}\u200b{}",
        "{}\n\n{}",
        "<{} {}",
        "~{}",
        "%{}%",
        "={}",
        "\\{}",
        "<https://{}.com>",
    ),
]


GLUED = st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(["", " ", ", ", "\n"])), max_size=12)


def filled(places: list[tuple[str, str]], names: Iterator[str]) -> str:
    return "".join(place.format(*(next(names) for _ in range(place.count("{}")))) + glue for place, glue in places)


@given(GLUED, st.sampled_from(RULES[:2]))
@settings(max_examples=400, deadline=None)
def test_every_word_is_said_or_noted(places: list[tuple[str, str]], rules: TextRules) -> None:
    letters = ("qz" + "".join(chr(ord("b") + int(digit)) for digit in f"{count:03}") + "q" for count in range(1000))
    text = filled(places, letters)
    parts, notes = read([text], rules)
    kept = spoken(parts) + "".join(note.source for note in notes)
    assert [word for word in re.findall(r"qz\w{3}q", text) if word not in kept] == []


@given(GLUED)
@settings(max_examples=400, deadline=None)
def test_every_number_is_said_or_noted(places: list[tuple[str, str]]) -> None:
    apart = [(place, glue or " ") for place, glue in places if "\u200b" not in place]
    text = filled(apart, (str(31_001 + 7 * count) for count in range(1000)))
    parts, notes = read([text])
    kept = spoken(parts).lower() + "".join(note.source for note in notes)
    for written in re.findall(r"\d{5,}", text):
        ways = {written, digits(written), cardinal(written), ordinal(written)}
        assert any(way in kept for way in ways), written


NASTY = [
    *("9", "*", "<", "[", "[a", "<a`", "`", "1,", "-", "a.", "./", "&a", "a@", "[x](", "😂", "\u0301", "<think", "x1"),
    *("1/", "#", ".", "_a", "'1", "http://", "+1", "1-", "(1", "{}", "\ud800", "1 ", "<a ", "`a ", " ", "\n", "```\n"),
]


@pytest.mark.parametrize("unit", NASTY)
def test_nasty_runs_take_linear_work(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is counted, not timed: segments, openers looked at, places that rules are tried at."""
    work = 0

    def counted(owner: type, method: str) -> None:
        plain = getattr(owner, method)

        def count(self: object, *arguments: object) -> object:
            nonlocal work
            work += 1
            return plain(self, *arguments)

        monkeypatch.setattr(owner, method, count)

    counted(Inline, "_step")
    counted(SpokenText, "_render")
    counted(Borders, "_span")
    spent = []
    for size in (4_000, 8_000):
        work = 0
        speakable(unit * (size // len(unit)))
        spent.append(work)
    assert spent[1] <= 2.5 * spent[0] + 200
    assert spent[1] <= 3 * 8_000


@given(st.lists(st.sampled_from([*SHARDS, "9" * 400, "x" * 900]), max_size=20).map("".join))
@settings(max_examples=150, deadline=None)
def test_what_is_held_back_is_bounded(text: str) -> None:
    stream = SpokenText()
    for char in text:
        stream.append(char)
        assert stream.held <= WINDOW + LONGEST_CLUSTER + len("<thinking>")


ANSWER = """\
Sure! Here is a short plan for your trip to St. Louis on March 4, 2026. First, take the 9:05 a.m. train, which costs \
$42.50 and covers about 300 km in 3.5 hours.

- Bring **warm** clothes, since it may be -5 °C.
- Visit the museum ([opening hours](https://example.com/hours)), which is free for everyone under 18.

Have fun, and call 555-123-4567 if you get lost! The rest of the day is yours: walk along the river, and eat well.
"""


def test_little_of_a_token_stream_is_held_back() -> None:
    stream = SpokenText()
    held = []
    for token in re.findall(r"\s?\w{1,6}|\s?[^\w\s]+|\s", ANSWER):
        stream.append(token)
        held.append(stream.held)
    assert sum(held) / len(held) < 12
    assert max(held) < 64


@pytest.mark.parametrize("tag", ["<think>", "<thinking>", "<!--", "<script>"])
def test_a_thought_is_never_said_however_it_is_cut(tag: str) -> None:
    close = {"<!--": "-->"}.get(tag, tag.replace("<", "</"))
    text = f"Yes {tag} secret {close} and {tag.upper()} secret"
    for size in range(1, len(text)):
        parts, notes = read([text[at : at + size] for at in range(0, len(text), size)])
        assert parts == [Words("Yes and")]
        assert len(notes) == 2


def test_words_come_out_before_the_sentence_ends() -> None:
    stream = SpokenText()

    def give(piece: str) -> str:
        return spoken(stream.append(piece))

    assert give("The quick br") == "The quick"
    assert give("own") == ""
    assert give(" fox") == " brown"
    assert give(" ran 5") == " fox ran"
    assert give(" k") == ""
    assert give("m to") == " five kilometers"
    assert give(" the") == " to"
