# SPDX-License-Identifier: Apache-2.0
"""Streamed normalisation: independent of chunks, lossless, linear and with a small buffer."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polyvox.errors import InvalidRequest
from polyvox.text import (
    Lexicon,
    Note,
    Part,
    Pause,
    Pronunciation,
    TextNormalizer,
    TextRules,
    Words,
    format_parts,
    merge_parts,
    normalize_text,
)
from polyvox.text.inline_normalizer import InlineNormalizer
from polyvox.text.languages import LANGUAGES
from polyvox.text.languages.english.number_words import cardinal, digits, ordinal
from polyvox.text.split_points import WINDOW, SplitPointFinder
from polyvox.text.unicode_cleaner import MAX_CLUSTER
from text.test_normalizer import CASES
from tools.text_accuracy import load_cases

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).with_name("languages")

LANGUAGE_CASES = [
    case.written for path in sorted(FOLDER.glob("*.tsv")) if path.stem in LANGUAGES for case in load_cases(path)
]
WRITTEN = [source for source, _ in CASES] + [case.written for case in load_cases()]
RULES = [
    TextRules(),
    TextRules(language="english"),
    TextRules(language="german"),
    TextRules(language="dutch"),
    TextRules(default_language="chinese"),
    TextRules(enabled=False),
    TextRules(phonemes=True, lexicon=Lexicon((Pronunciation("Dr. Lee", phonemes="ˈliː"), Pronunciation("5", "cinco")))),
    TextRules(lexicon=Lexicon.from_words({"New York": "Noo Yawk", "km": "kay em", "中文": "zhongwen", "e.g.": "say"})),
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
        "[pause:1s][pause:2s]",
        '<break time="1s"/>' * 30,
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
    *(
        "$x$",
        "$a + b",
        "\\frac{1}{2}",
        "\\(",
        "\\)",
        "\\sqrt{",
        "Chapter",
        "I",
        "10 a.m.",
        "- 5 p.m.",
        "1939-45",
        '27"',
    ),
    *("Mon.", "between", "1760", "and", "5 sq", "ft", "℃", "Δ", "¼", "911", "PIN", "CA 90210", "M", "′", "″"),
    *("a" * 60, "9" * 60, "1 " * 40, "<a " + "x" * 300, "[" + "y " * 200, "https://a.b/c?d=e"),
]
TEXTS = st.lists(
    st.one_of(st.sampled_from(SHARDS), st.sampled_from(WRITTEN), st.sampled_from(LANGUAGE_CASES), st.text(max_size=8))
    | st.text(st.characters(codec=None), max_size=4),
    max_size=30,
).flatmap(lambda shards: st.sampled_from(["", " "]).map(lambda glue: glue.join(shards)))


def read(pieces: Sequence[str], rules: TextRules | None = None) -> tuple[list[Part], list[Note]]:
    stream = TextNormalizer(rules)
    parts = [part for piece in pieces for part in stream.append(piece)]
    return merge_parts(parts + stream.finish()), stream.notes


def cut(text: str, positions: Sequence[int]) -> list[str]:
    bounds = sorted({0, len(text), *(position % (len(text) + 1) for position in positions)})
    return [text[start:end] for start, end in pairwise(bounds)]


@given(TEXTS, st.lists(st.integers(0, 10_000), max_size=12), st.sampled_from(RULES))
@example("Es 3,50 € am\n" + "x" * 2000, [700], RULES[0])
@example('<break time="1s"/>Ich habe 3 Brüder.', [15], RULES[0])
@settings(max_examples=400, deadline=None)
def test_chunks_do_not_change_parts_and_notes(text: str, positions: list[int], rules: TextRules) -> None:
    whole = read([text], rules)
    assert read(cut(text, positions), rules) == whole
    assert read(list(text), rules) == whole
    assert normalize_text(text, rules) == whole[0]


@pytest.mark.parametrize("first", range(0, len(WRITTEN), 100))
def test_every_case_may_be_split_anywhere(first: int) -> None:
    for source in WRITTEN[first : first + 100]:
        text = f"So {source} then."
        whole = read([text])
        for position in range(len(text)):
            assert read([text[:position], text[position:]]) == whole


def test_cases_of_all_languages_may_be_split_anywhere() -> None:
    for number, written in enumerate(LANGUAGE_CASES):
        text = f"{LANGUAGE_CASES[number - 7]} {written}"
        whole = read([text])
        assert read(list(text)) == whole
        for position in range(number % 9, len(text), 9):
            assert read([text[:position], text[position:]]) == whole


@given(st.text(st.characters(codec=None)), st.sampled_from(RULES))
@settings(max_examples=300, deadline=None)
def test_any_unicode_is_accepted(text: str, rules: TextRules) -> None:
    for part in normalize_text(text, rules):
        if rules.enabled and isinstance(part, Words):
            part.text.encode()  # no lone surrogates
            assert part.text == part.text.strip()


# Templates for words that no rule matches, in every kind of markup.
TEMPLATES = [
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


GLUED = st.lists(st.tuples(st.sampled_from(TEMPLATES), st.sampled_from(["", " ", ", ", "\n"])), max_size=12)


def filled(templates: list[tuple[str, str]], names: Iterator[str]) -> str:
    return "".join(
        template.format(*(next(names) for _ in range(template.count("{}")))) + glue for template, glue in templates
    )


@given(GLUED, st.sampled_from(RULES[:2]))
@settings(max_examples=400, deadline=None)
def test_every_word_is_spoken_or_noted(templates: list[tuple[str, str]], rules: TextRules) -> None:
    letters = ("qz" + "".join(chr(ord("b") + int(digit)) for digit in f"{count:03}") + "q" for count in range(1000))
    text = filled(templates, letters)
    parts, notes = read([text], rules)
    found = format_parts(parts) + "".join(note.source for note in notes)
    assert [word for word in re.findall(r"qz\w{3}q", text) if word not in found] == []


@given(GLUED)
@settings(max_examples=400, deadline=None)
def test_every_number_is_spoken_or_noted(templates: list[tuple[str, str]]) -> None:
    apart = [(template, glue or " ") for template, glue in templates if "\u200b" not in template]
    text = filled(apart, (str(31_001 + 7 * count) for count in range(1000)))
    parts, notes = read([text], TextRules(language="english"))
    found = format_parts(parts).lower() + "".join(note.source for note in notes)
    for written in re.findall(r"\d{5,}", text):
        ways = {written, digits(written), cardinal(written), ordinal(written)}
        assert any(way in found for way in ways), written


PATHOLOGICAL = [
    *("9", "*", "<", "[", "[a", "<a`", "`", "1,", "-", "a.", "./", "&a", "a@", "[x](", "😂", "\u0301", "<think", "x1"),
    *("1/", "#", ".", "_a", "'1", "http://", "+1", "1-", "(1", "{}", "\ud800", "1 ", "<a ", "`a ", " ", "\n", "```\n"),
    *(
        "$a",
        "$",
        "\\frac{",
        "\\(",
        "{",
        "1 and ",
        "1:",
        "10 a.m. ",
        '1"',
        "I ",
        "Chapter I ",
        "MM",
        "1/2 ",
        "Mon.-",
        "CA 1",
        "[pause:1s]",
        "<b>",
    ),
]


@pytest.mark.parametrize("unit", PATHOLOGICAL)
def test_pathological_input_takes_linear_work(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts work instead of timing it: segments, spans and positions at which rules are tried."""
    work = 0

    def counted(owner: type, method: str) -> None:
        plain = getattr(owner, method)

        def count(self: object, *arguments: object) -> object:
            nonlocal work
            work += 1
            return plain(self, *arguments)

        monkeypatch.setattr(owner, method, count)

    counted(InlineNormalizer, "_step")
    counted(TextNormalizer, "_render")
    counted(SplitPointFinder, "_span")
    costs = []
    for size in (4_000, 8_000):
        work = 0
        with suppress(InvalidRequest):  # malformed SSML
            normalize_text(unit * (size // len(unit)))
        costs.append(work)
    assert costs[1] <= 2.5 * costs[0] + 200
    assert costs[1] <= 3 * 8_000


@given(st.lists(st.sampled_from([*SHARDS, "9" * 400, "x" * 900]), max_size=20).map("".join))
@settings(max_examples=150, deadline=None)
def test_the_buffer_is_bounded(text: str) -> None:
    stream = TextNormalizer()
    for char in text:
        stream.append(char)
        assert stream.num_pending <= WINDOW + MAX_CLUSTER + len("<thinking>")


LLM_ANSWER = """\
Sure! Here is a short plan for your trip to St. Louis on March 4, 2026. First, take the 9:05 a.m. train, which costs \
$42.50 and covers about 300 km in 3.5 hours.

- Bring **warm** clothes, since it may be -5 °C.
- Visit the museum ([opening hours](https://example.com/hours)), which is free for everyone under 18.

Have fun, and call 555-123-4567 if you get lost! The rest of the day is yours: walk along the river, and eat well.
"""


def test_the_buffer_is_small_for_a_token_stream() -> None:
    stream = TextNormalizer()
    pending = []
    for token in re.findall(r"\s?\w{1,6}|\s?[^\w\s]+|\s", LLM_ANSWER):
        stream.append(token)
        pending.append(stream.num_pending)
    assert sum(pending) / len(pending) < 14
    assert max(pending) < 64


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[pause:1s][pause:2s]Hi.", [Pause(1.0), Pause(2.0), Words("Hi.")]),
        ("Go[ pause ][later][Pause 1s](now", [Words("Go"), Pause(0.5), Words("(later)"), Pause(1.0), Words("(now")]),
        ("[a][b][pause:1s]", [Words("a"), Pause(1.0)]),
        ("Click [pause](https://a.example) now.", [Words("Click pause now.")]),
        ("[pause:10ms]" * 500 + "Hi.", [Pause(0.01)] * 500 + [Words("Hi.")]),
        ("Relax." + '<break time="10ms"/>' * 60 + "Hi.", [Words("Relax."), *[Pause(0.01)] * 60, Words("Hi.")]),
        ("x" * 505 + "<break time='1s' />y", [Words("x" * 505), Pause(1.0), Words("y")]),
        ("x" * 509 + "<sub alias='y z'>q r</sub>.", [Words("x" * 509 + " y z.")]),
    ],
)
def test_adjacent_tags_are_read_one_by_one(text: str, expected: list[Part], size: int) -> None:
    parts, _ = read([text[at : at + size] for at in range(0, len(text), size)])
    assert parts == expected


@pytest.mark.parametrize("tag", ["<think>", "<thinking>", "<!--", "<script>"])
def test_hidden_content_is_never_spoken_for_any_chunks(tag: str) -> None:
    close = {"<!--": "-->"}.get(tag, tag.replace("<", "</"))
    text = f"Yes {tag} secret {close} and {tag.upper()} secret"
    for size in range(1, len(text)):
        parts, notes = read([text[at : at + size] for at in range(0, len(text), size)])
        assert parts == [Words("Yes and")]
        assert len(notes) == 2


def test_words_are_returned_before_the_sentence_ends() -> None:
    stream = TextNormalizer()

    def append(piece: str) -> str:
        return format_parts(stream.append(piece))

    assert append("The quick br") == "The quick"
    assert append("own") == ""
    assert append(" fox") == " brown"
    assert append(" ran 5") == " fox ran"
    assert append(" k") == ""
    assert append("m to") == " five kilometers"
    assert append(" the") == " to"
