# SPDX-License-Identifier: Apache-2.0
"""The wire format: what is encoded is decoded, everything else is rejected, and nothing can run code."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import polyvox.ipc
from polyvox.engine.interface import Result
from polyvox.errors import EngineDown, InvalidRequest, Overloaded, PolyvoxError, UnknownVoice
from polyvox.ipc import messages
from polyvox.models.request import ClonedVoice, Request, Sampling, ThinkerPrompt

VOICE = ClonedVoice(np.arange(4, dtype=np.float32), np.arange(6).reshape(2, 3), "said")


def encoded(request: Request) -> msgspec.Raw:
    return msgspec.Raw(messages.encode(request))


EXAMPLES: list[messages.ServerMessage] = [
    messages.Submit(1, encoded(Request("hello", VOICE, seed=2**64 - 1, sampling=Sampling())), 8),
    messages.GetStats(2),
    messages.GetInfo(3),
    messages.Clone(4, np.ones(5, np.float32), None),
    messages.AppendTokens(1, [0, 151_645]),
    messages.AppendText(5, "wörd"),
    messages.AppendRows(6, np.ones((2, 3), np.float32), True),
    messages.FinishText(7),
    messages.Cancel(8),
    messages.Consumed(9, {1: 2, 3: 4}),
    messages.AcquireKey(10, "key", 2),
    messages.ReleaseKey("key"),
    messages.RestoreKeys({"key": 2}),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_is_decoded_as_it_was_encoded(message: messages.ServerMessage) -> None:
    data = messages.encode(message)
    decoded = messages.server_decoder.decode(data)
    assert type(decoded) is type(message)
    assert messages.encode(decoded) == data


def test_a_request_is_decoded_as_it_was_encoded() -> None:
    decoded = messages.decode_request(encoded(Request("hello", VOICE, seed=7, sampling=Sampling(top_k=3))))
    assert decoded.text == "hello"
    assert decoded.sampling == Sampling(top_k=3)
    assert isinstance(decoded.voice, ClonedVoice)
    np.testing.assert_array_equal(decoded.voice.vector, VOICE.vector)
    np.testing.assert_array_equal(decoded.voice.codes, VOICE.codes)
    assert decoded.voice.vector.flags.writeable


def test_the_prompt_of_a_thinker_is_decoded_as_it_was_encoded() -> None:
    rows, positions = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(9, dtype=np.float32).reshape(3, 3)
    request = Request("", live=True, thinker_prompt=ThinkerPrompt((1, 151_655, 3), rows, positions))
    decoded = messages.decode_request(msgspec.Raw(messages.encode(request))).thinker_prompt
    assert decoded is not None
    assert decoded.ids == (1, 151_655, 3)
    np.testing.assert_array_equal(decoded.media_rows, rows)
    np.testing.assert_array_equal(decoded.positions, positions)


def test_an_update_is_decoded_as_it_was_encoded() -> None:
    replies: list[messages.Reply] = [
        messages.SubmitReply(1, 2**64 - 1),
        messages.StatsReply(2, {"streams": 3, "lead_min": float("inf")}),
        messages.KeyReply(3, "key", True),
    ]
    update = messages.Update(replies, [messages.ChunkHeader(1, 0, 480, True)], {1: Result("stop", 5, frames=3)})
    assert messages.engine_decoder.decode(messages.encode(update)) == update


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("speed", 9, "must be at most 4"),
        UnknownVoice("voice", "x", ["a", "b"]),
        Overloaded("No capacity is free.", 2.5, "no_slot_in_time"),
        EngineDown("The engine is closed.", 1),
        PolyvoxError("The engine failed."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_keeps_its_class_message_and_fields(error: PolyvoxError) -> None:
    update = messages.Update([messages.ErrorReply.of(1, error)], [], {})
    (reply,) = messages.engine_decoder.decode(messages.encode(update)).replies
    assert isinstance(reply, messages.ErrorReply)
    copy = reply.error()
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize("name", ["_restore", "invalid_value", "Iterable", "NoSuchError", "__builtins__"])
def test_an_error_type_that_is_not_an_error_class_becomes_the_base_class(name: str) -> None:
    assert type(messages.ErrorReply(1, name, "message", None, None).error()) is PolyvoxError


def arrays(dtype: object, shape: object, data: object) -> bytes:
    return msgspec.msgpack.encode(["AppendRows", 1, [dtype, shape, data], False])


def test_an_array_is_accepted_only_with_the_right_dtype_shape_and_size() -> None:
    good = messages.server_decoder.decode(arrays("float32", [1, 2], b"\0" * 8))
    assert isinstance(good, messages.AppendRows)
    assert good.rows.shape == (1, 2)
    for dtype, shape, data in (
        ("object", [1], b"\0" * 8),
        ("float64", [1], b"\0" * 8),
        ("O", [1], b"\0" * 8),
        ("float32", [3], b"\0" * 8),
        ("float32", [-1], b"\0" * 8),
        ("float32", [2**62, 2**62], b"\0" * 8),
        ("float32", [1, 1, 2], b"\0" * 8),
        ("float32", 2, b"\0" * 8),
        ("float32", [2], "text"),
        (7, [2], b"\0" * 8),
    ):
        with pytest.raises(msgspec.MsgspecError):
            messages.server_decoder.decode(arrays(dtype, shape, data))


@pytest.mark.parametrize(
    "value",
    [
        [],
        ["NoSuchMessage", 1],
        ["Cancel"],
        ["Cancel", -1],
        ["Cancel", "1"],
        ["Cancel", 1, 2],
        ["Consumed", 0, {1: -1}],
        ["Consumed", 0, {"a": 1}],
        ["Submit", 1, {}, 2**40],
        ["AcquireKey", 1, "k" * 10_000, 1],
        {"type": "Cancel", "id": 1},
        None,
        "Cancel",
    ],
)
def test_a_malformed_message_is_rejected(value: object) -> None:
    with pytest.raises(msgspec.MsgspecError):
        messages.server_decoder.decode(msgspec.msgpack.encode(value))


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_decoding_errors(data: bytes) -> None:
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        messages.server_decoder.decode(data)


def mutations() -> Iterator[tuple[bytes, int]]:
    for message in EXAMPLES:
        data = messages.encode(message)
        yield from ((data, position) for position in range(len(data)))


@given(st.sampled_from(list(mutations())), st.integers(0, 255), st.booleans())
def test_mutated_messages_raise_nothing_but_decoding_errors(where: tuple[bytes, int], byte: int, cut: bool) -> None:
    data, position = where
    mutated = data[:position] + bytes([byte]) + (b"" if cut else data[position + 1 :])
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, InvalidRequest):
        message = messages.server_decoder.decode(mutated)
        if isinstance(message, messages.Submit):
            messages.decode_request(message.request)


def test_a_message_beyond_the_size_limit_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 100)
    with pytest.raises(InvalidRequest, match="at most 100 bytes"):
        messages.encode(messages.AppendText(1, "x" * 200))


def test_the_package_uses_no_serialisation_that_can_run_code() -> None:
    for file in Path(polyvox.ipc.__path__[0]).glob("*.py"):
        assert not re.search(r"\b(pickle|marshal|shelve|dill|eval|exec)\b(?!able)", file.read_text()), file.name
