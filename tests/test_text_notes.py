# SPDX-License-Identifier: Apache-2.0
"""What `polyvox say` prints about passages that were changed or left out."""

import re

import pytest

from polyvox.cli.text_notes import ACTIONS, describe_notes
from polyvox.text import Note, TextNormalizer, TextRules


def described(text: str) -> str:
    normalizer = TextNormalizer(TextRules())
    normalizer.append(text)
    normalizer.finish()
    return describe_notes(normalizer.notes)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Plain words.", ""),
        (
            "<b>Go</b> to [pause:x] https://example.com/x.",
            "Left out of the text: [pause:x] (not a valid pause; write [pause:0.5s]), <b>, </b>. "
            "Read as words: https://example.com/x.",
        ),
        ("<b>a</b> <i>b</i> <u>c</u> <b>d</b>", "Left out of the text: <b>, </b>, <i> and 3 more."),
        (
            "See [the page](http://a.b/c) [^1].",
            "Read without its address: [the page](http://a.b/c). Left out of the text: [^1].",
        ),
        (
            "Wait [pause:60s] here.",
            "Shortened, because a pause has at most 10 s and all between two words 60 s: [pause:60s].",
        ),
        ("A\ue000B", "Left out of the text: U+E000."),
        (f"<think>{'x ' * 50}</think> Yes.", f"Left out of the text: <think>{'x ' * 16}…."),
    ],
)
def test_notes_name_the_first_passages_and_what_was_done(text: str, expected: str) -> None:
    assert described(text) == expected


def test_every_kind_with_an_action_exists() -> None:
    kinds = re.search(r"Kinds: ([^.]+)\.", Note.__doc__ or "")
    assert kinds is not None
    assert set(ACTIONS) <= set(re.split(r",\s+", kinds[1]))
