# SPDX-License-Identifier: Apache-2.0
"""Server-sent events in any fragmentation, and chunks in the order of an answer."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyvox.thinkers.event_stream import EventStreamParser
from polyvox.thinkers.interface import Delta, End, ThinkerFailed
from polyvox.thinkers.openai_client import AnswerReader

STREAM = (
    b": comment\n\nevent: message\ndata: {}\n\ndata: one\r\ndata: two\r\n\r\n\n\nid: 7\ndata:three\n\n"
    b"retry: 5\n\ndata: \xc3\xa4\n\n"
)
EVENTS = [b"{}", b"one\ntwo", b"three", "ä".encode()]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_events_do_not_depend_on_the_fragments(cuts: list[int]) -> None:
    parser = EventStreamParser()
    edges = [0, *sorted(cuts), len(STREAM)]
    parts = [STREAM[start:end] for start, end in pairwise(edges)]
    assert [event for part in parts for event in parser.push(part)] == EVENTS


@pytest.mark.parametrize("part", [b"data: " + 200 * b"x", 30 * b"data: xxxxxx\n"])
def test_an_event_without_an_end_is_limited(part: bytes) -> None:
    with pytest.raises(ValueError, match="more than 100 bytes"):
        EventStreamParser(max_bytes=100).push(part)


def test_many_small_events_have_no_limit() -> None:
    parser = EventStreamParser(max_bytes=100)
    assert parser.push(1000 * b"data: x\n\n") == 1000 * [b"x"]


def test_an_answer_ends_with_its_reason_and_the_usage_that_follows_it() -> None:
    reader = AnswerReader(with_ids=False)
    (delta,) = reader.read(b'{"id": "a", "choices": [{"delta": {"content": "Hi"}, "finish_reason": null}]}')
    assert isinstance(delta, Delta)
    assert delta.text == "Hi"
    assert reader.started
    assert reader.read(b'{"choices": [{"delta": {}, "finish_reason": "stop"}]}') == []
    assert reader.read(b'{"choices": [], "usage": {"prompt_tokens": 3}}') == []
    assert reader.read(b" [DONE] ") == [End("stop", {"prompt_tokens": 3})]


def test_a_role_is_no_first_token_and_reasoning_is() -> None:
    reader = AnswerReader(with_ids=False)
    reader.read(b'{"choices": [{"delta": {"role": "assistant", "content": ""}}]}')
    assert not reader.started
    reader.read(b'{"choices": [{"delta": {"reasoning_content": "hm"}}]}')
    assert reader.started


def test_an_error_of_any_shape_ends_the_answer() -> None:
    for data in (b'{"error": {"message": "no memory"}}', b'{"error": "no memory"}'):
        with pytest.raises(ThinkerFailed, match="no memory"):
            AnswerReader(with_ids=False).read(data)
