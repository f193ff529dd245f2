# SPDX-License-Identifier: Apache-2.0
"""Text of streams as ids in slots, and parts of prompts and texts that have no id."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from conftest import Loaded
from engine.stepped_engine import LOW_COST
from engine.synthesis import read_all, request, solo_samples, text_rows
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.text_buffer import TextBuffer
from polyvox.models.protocol import GIVEN_ROW
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.models.request import ClonedVoice, Request
from polyvox.models.talker_generator import GIVEN_ROWS

TEXT = "the other assistant, the other user, on and on it goes, the line, the other assistant"


@pytest.fixture(scope="module")
def speech(loaded: Loaded) -> Qwen3TTSModel:
    return loaded("custom_voice", "float64").model


@given(
    pieces=st.lists(st.lists(st.integers(0, 99), max_size=5) | st.integers(1, 5), max_size=8),
    takes=st.lists(st.tuples(st.integers(-1, 9), st.integers(-1, 6)), min_size=1, max_size=9),
)
def test_a_text_buffer_returns_ids_and_rows_in_order_and_within_both_limits(
    pieces: list[list[int] | int], takes: list[tuple[int, int]]
) -> None:
    """A piece is a list of ids, or a number of rows; row number n has the value n."""
    buffer, expected, num_rows = TextBuffer([7]), [7], 0
    for piece in pieces:
        if isinstance(piece, int):
            buffer.append_rows(np.arange(num_rows, num_rows + piece, dtype=np.float32)[:, None])
            num_rows += piece
            expected += [GIVEN_ROW] * piece
        else:
            buffer.append(piece)
            expected += piece
    taken: list[int] = []
    rows: list[float] = []
    for max_ids, max_rows in takes:
        before = len(buffer)
        ids, found = buffer.take(max_ids, max_rows)
        assert len(ids) <= max(max_ids, 0)
        assert GIVEN_ROW not in ids[max(max_rows, 0) :]
        assert len(buffer) == before - len(ids)
        if len(ids) < min(before, max_ids):  # it stopped early only before a row
            assert expected[len(taken) + len(ids)] == GIVEN_ROW
        taken += ids
        rows += [] if found is None else found[:, 0].tolist()
    assert taken == expected[: len(taken)]
    assert rows == list(range(taken.count(GIVEN_ROW)))


def test_rows_of_another_model_follow_the_frames(speech: Qwen3TTSModel) -> None:
    """There are more of them than a slot stores."""
    ids = speech.tokenizer.text(TEXT)
    num_first = len(speech.tokenizer.text("the"))
    assert len(ids) - num_first > 2 * GIVEN_ROWS
    engine = LocalEngine(speech, EngineConfig(max_streams=1, poison_freed=True))
    try:
        with engine.lock:
            stream = engine.submit(request("the", live=True, guard=False, frames=60))
            stream.append_rows(text_rows(speech, ids[num_first:], last=True), last=True)
        whole = solo_samples(speech, request(TEXT, layout="streaming", guard=False, frames=60))
        np.testing.assert_allclose(read_all(stream), whole, atol=1e-6)
    finally:
        engine.close()


def test_the_prompt_of_a_cloned_voice_may_be_read_in_parts_and_padded_calls(loaded: Loaded) -> None:
    speech = loaded("base", "float64").model
    codes: NDArray[np.int64] = np.random.default_rng(1).integers(0, 64, (9, 6))
    vector = np.random.default_rng(2).standard_normal(speech.generator.hidden_size).astype(np.float32)
    voice = ClonedVoice(vector, codes, "hello there")
    wanted = [
        Request("the other user", voice, seed=1, layout="streaming", max_frames=3),
        Request("the other user", voice, seed=2, layout="whole", max_frames=3),
        Request("hello", ClonedVoice(vector), seed=3, max_frames=3),
    ]
    with mock.patch("polyvox.engine.engine.calibrate", return_value=replace(LOW_COST)):
        engine = LocalEngine(speech, EngineConfig(max_streams=3, cuda_graphs=True, poison_freed=True))
    try:
        with engine.lock:
            object.__setattr__(engine.load.limits, "max_prefill_rows", 5)
            streams = [engine.submit(one) for one in wanted]
        for stream, one in zip(streams, wanted, strict=True):
            np.testing.assert_allclose(read_all(stream), solo_samples(speech, one), atol=1e-6)
    finally:
        engine.close()


@torch.inference_mode()
def test_a_slot_that_is_assigned_again_before_the_upload_has_only_the_last_stream(loaded: Loaded) -> None:
    speech = loaded("base", "float64").model
    vector, codes = np.ones(speech.generator.hidden_size, np.float32), np.ones((3, 6), np.int64)
    cloned = speech.prepare(Request("the other user", ClonedVoice(vector, codes, "hello"), seed=1))
    other = speech.prepare(Request("hello there", ClonedVoice(vector), seed=2))
    assert cloned.rows.given is not None
    assert cloned.rows.given_at[-1] == len(cloned.rows) - 1, "the input of the first frame has a given part"
    twice, once = (speech.generator.new_state(2, 8, 4) for _ in range(2))
    twice.assign(0, cloned)
    twice.assign(0, other)
    once.assign(0, other)
    for state in (twice, once):
        state.assign(1, cloned)
        state.upload()
    for one, another in zip(twice._tensors(), once._tensors(), strict=True):
        if one is not twice.text:  # after the end of the text there may be any ids
            assert torch.equal(one[0], another[0])
    assert torch.equal(twice.text[0, : len(other.text)], once.text[0, : len(other.text)])
    assert not torch.equal(once.input[0], once.input[1])


@torch.inference_mode()
def test_the_changes_of_all_slots_are_sent_in_one_copy(speech: Qwen3TTSModel) -> None:
    state = speech.generator.new_state(4, 8, 4)
    prepared = speech.prepare(request("the other user", layout="streaming", guard=False), None)
    with mock.patch.object(speech.generator, "to_device", wraps=speech.generator.to_device) as copies:
        for slot in range(3):
            state.assign(slot, prepared)
        state.upload()
        assert copies.call_count == 1
        state.write_text(2, 6, [21, 22, 23], None)  # the ring wraps around
        state.close_text(0, 1000)
        state.upload()
        assert copies.call_count == 2
        state.upload()
        assert copies.call_count == 2
    assert state.text[2].tolist()[:1] == [23]
    assert state.text[2].tolist()[6:] == [21, 22]
    assert state.text_end.tolist() == [min(len(prepared.text), 8)] * 2 + [9, 0]
    assert state.expected_frames[0] == 63 + 2 * 1000
    assert state.position.tolist() == [len(prepared.rows) - 1] * 3 + [0]
