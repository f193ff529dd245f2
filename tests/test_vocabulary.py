# SPDX-License-Identifier: Apache-2.0
"""The vocabulary check: each rule fires, each allowed context passes."""

import pytest

from tools.check_vocabulary import RULES, SPDX, check_classes, check_header, check_text, split_identifiers

BANNED = {
    "seat": ["self._seat = 1", "# a stream is seated", "class SeatTable: ..."],
    "crowd": ["crowd.add(stream)", "# crowds of streams"],
    "door": ["self._check_door()", "DOOR = 1", "class EngineDoor: ..."],
    "desk": ["desk = of(request)"],
    "knock": ["def knock(self): ..."],
    "twin": ["# the twin of this kernel"],
    "face": ["# every face of the server", "faces = []"],
    "card": ["# fills the card"],
    "fed": ["# streams are fed"],
    "landed": ["landed = []"],
    "flight": ["flight.wait()", "# the flight"],
    "shelf": ["self.shelf = None"],
    "room": ["track.room = 3", "# Rooms"],
    "impatient": ["PATIENCE = 3", "def end_the_impatient(): ..."],
    "unspoken": ["unspoken = 1"],
    "skinny": ["from kernels import skinny"],
    "lifeline": ["lifeline = pipe()"],
    "whoever": ["# whoever reads", "# whomever"],
    "nobody": ["# nobody waits"],
    "somebody": ["# somebody", "# everybody", "# anybody"],
    "those who": ["# those\n# who left", "def free_those_who_left(): ..."],
    "told": ["# is told", "def tell(): ...", "telling = 1"],
    "heard": ["heard.append(chunk)", "# what was heard"],
    "obey": ["def _obey(): ..."],
    "owes": ["def owes_audio(): ..."],
    "place": ["place = 3", "# in another place", "# finds no place"],
    "held": ["track.held = 0", "# what is held"],
    "gone": ["raise Gone", "# the client has gone"],
    "let in": ["def let_in(): ...", "# lets in a request"],
    "so many": ["# so many streams", "# so\n# many"],
    "whole number": ["# a whole number"],
    "interpreter": ["# one interpreter is the limit"],
    "most_": ["most_streams = 3", "least_free = 0", "_most_rows = 3"],
    "MOST_": ["MOST_STREAMS = 3", "LEAST_CONTEXT = 0", "_MOST_ROWS = 1", "MOST = 3"],
    "leave": ["slots.leave(stream)", "def leave(self): ...", "self.leaving = []"],
    "offer": ["scheduler.offer(stream)", "def offer(self): ..."],
    "old name": ["class Stepper: ...", "queue_seconds = 3", "kv = PagedKV()"],
    "slo": ["settings.slo"],
}
ALLOWED = {
    "door": ["# back door"],
    "face": ["# Hugging Face", "url = 'https://example.org/face'", "# 😀 is a grinning face"],
    "card": ["# a model card", "wild_card = 1"],
    "landed": ["# the landing page"],
    "flight": ["# steps in flight", "in_flight = 1", "class InFlightStep: ..."],
    "shelf": ["# an off-the-shelf codec"],
    "room": ["headroom = 1", "# a LiveKit room"],
    "heard": ["# words that whisper heard wrong", "# heard as: word error rate"],
    "place": ["# sorts in place", "x.mul_(2)  # in-place", "# takes place", "placeholder = 1", "# places the weights"],
    "held": ["# with the lock held", "# tokens are held back", "# held-out texts", "assert lock.held"],
    "gone": ["# 410 Gone"],
    "let in": ["outlet = 1"],
    "interpreter": ["# Triton's interpreter runs the kernels"],
    "most_": ["at_most_one = 1", "counter.most_common()", "# at most 3"],
    "MOST_": ["AT_MOST = 3", "FOREMOST = 1"],
    "leave": ["# leaving the state unchanged"],
    "old name": ["max_queue_seconds = 3"],
}


def words(source: str, path: str = "src/polyvox/example.py") -> list[str]:
    return [violation.word for violation in check_text(path, source)]


@pytest.mark.parametrize(("word", "source"), [(word, source) for word, group in BANNED.items() for source in group])
def test_a_banned_word_is_reported(word: str, source: str) -> None:
    assert word in words(source)


@pytest.mark.parametrize(("word", "source"), [(word, source) for word, group in ALLOWED.items() for source in group])
def test_an_allowed_context_passes(word: str, source: str) -> None:
    assert words(source) == []
    assert word in BANNED


def test_every_rule_has_a_banned_example() -> None:
    assert {rule.word for rule in RULES} == set(BANNED)


def test_the_line_of_a_violation_is_reported() -> None:
    source = '"""First line.\n\nThe client is told.\n"""\n\nx = 1  # a comment that\n# nobody reads\n'
    assert [(violation.line, violation.word) for violation in check_text("src/polyvox/x.py", source)] == [
        (3, "told"),
        (7, "nobody"),
    ]


def test_a_pragma_exempts_its_line_only() -> None:
    assert words("seat = 1  # vocabulary: allow\nseat = 2\n") == ["seat"]


def test_strings_are_checked_in_the_package_and_not_in_tests() -> None:
    source = 'raise ValueError("no seat")\n'
    assert words(source) == ["seat"]
    assert words(source, "tests/test_example.py") == []
    assert words('"""No seat."""\n', "tests/test_example.py") == ["seat"]


def test_markdown_is_checked_as_text() -> None:
    assert words("# Title\n\nA request that finds no\nseat.\n", "docs/example.md") == ["seat"]


def test_identifiers_are_split_into_words() -> None:
    assert split_identifiers("_check_door checkDoor CheckDoor HTTPDoor").lower().count(" door") == 4


def test_a_class_name_defined_twice_is_reported() -> None:
    sources = {"a.py": "class Stream: ...\n", "b.py": "class Chunk: ...\n\n\nclass Stream: ...\n"}
    assert [str(violation) for violation in check_classes(sources)] == [
        "b.py:4: class 'Stream' is also defined at a.py:1"
    ]


@pytest.mark.parametrize("source", [f"{SPDX}\n", f"#!/usr/bin/env python3\n{SPDX}\n", ""])
def test_a_licence_header_is_accepted(source: str) -> None:
    assert list(check_header("a.py", source)) == []


@pytest.mark.parametrize("source", ["import os\n", f"import os\n{SPDX}\n", "#!/usr/bin/env python3\n"])
def test_a_missing_licence_header_is_reported(source: str) -> None:
    assert [violation.word for violation in check_header("a.py", source)] == ["SPDX"]
