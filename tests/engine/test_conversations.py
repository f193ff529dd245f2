# SPDX-License-Identifier: Apache-2.0
"""A thinker's answer by token ids: the speech of the reference, however its tokens arrive."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, cast

import numpy as np
import pytest

from conftest import Loaded
from engine.synthesis import TIMEOUT, assert_idle, read_all
from parity import Golden, golden, relative_error
from polyvox.engine import slot_text
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.stream import LocalStream
from polyvox.engine.stream_status import StreamStatus
from polyvox.errors import InvalidRequest, StreamFailed
from polyvox.models.hashing_tokenizer import HashingTokenizer
from polyvox.models.qwen3_omni.speech_model import Qwen3OmniModel
from polyvox.models.request import Layout, Request, Sampling, ThinkerPrompt
from reference.omni_cases import CONVERSATIONS, END, LINE, OPEN, Conversation, user

CASES = [case for case in CONVERSATIONS if case.shape == "plain"]
TEXT = CASES[0]


@pytest.fixture(scope="module")
def speech(loaded: Loaded) -> Qwen3OmniModel:
    return cast(Qwen3OmniModel, loaded("omni-plain", "float64").model)


@pytest.fixture(scope="module")
def engine(speech: Qwen3OmniModel) -> Iterator[LocalEngine]:
    running = LocalEngine(speech, EngineConfig(max_streams=4, poison_freed=True))
    yield running
    assert_idle(running)
    running.close()


def expected_of(case: Conversation) -> Golden:
    return golden(f"omni-{case.shape}-{case.name}", "float64")


def request_of(case: Conversation, **more: Any) -> Request:
    expected = expected_of(case)
    prompt = ThinkerPrompt(case.prompt, expected.get("media_rows"), expected.get("positions"))
    sampling = Sampling(temperature=0.0, predictor_temperature=0.0, min_frames=case.min_frames)
    return Request(
        "", case.speaker, seed=1, sampling=sampling, max_frames=case.frames - 1, live=True, guard=False,
        thinker_prompt=prompt, **more,
    )  # fmt: skip


def answer_of(case: Conversation) -> list[int]:
    """The reference implementation never speaks the last token."""
    return cast(list[int], expected_of(case)["answer"].tolist()[:-1])


def waits(stream: LocalStream, frames: int) -> bool:
    """This many frames are delivered, and the next token is missing."""
    return stream.text_deadline < inf and stream.started == stream.decoded == frames


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_an_answer_has_the_samples_of_the_reference(engine: LocalEngine, case: Conversation) -> None:
    stream = engine.submit(request_of(case))
    for token in answer_of(case):
        stream.append_tokens([token])
    stream.append_tokens([END])  # the thinker's end of turn is not spoken
    stream.finish_text()
    assert relative_error(read_all(stream), expected_of(case)["audio"].astype(np.float32)) < 1e-6
    assert stream.result is not None
    assert stream.result.text_tokens == len(answer_of(case))


def test_conversations_at_once_have_the_samples_of_each_alone(engine: LocalEngine) -> None:
    """No buffer of the code predictor belongs to two streams, whose tokens arrive in turns."""
    cases = [case for case in CASES if case.name in ("text", "system", "audio", "image")]
    streams = [engine.submit(request_of(case)) for case in cases]
    answers = [answer_of(case) for case in cases]
    for tokens in zip(*answers, strict=True):
        for stream, token in zip(streams, tokens, strict=True):
            stream.append_tokens([token])
    for stream, case in zip(streams, cases, strict=True):
        stream.finish_text()
        assert relative_error(read_all(stream), expected_of(case)["audio"].astype(np.float32)) < 1e-6


def test_a_slow_thinker_delays_only_its_own_stream_and_causes_no_underrun(
    speech: Qwen3OmniModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_text, "MIN_START_TOKENS", 1)
    now = [0.0]
    engine = LocalEngine(speech, EngineConfig(max_streams=2), clock=lambda: now[0])
    try:
        slow, answer = engine.submit(request_of(TEXT)), answer_of(TEXT)
        for count, token in enumerate(answer):
            slow.append_tokens([token])
            with engine.lock:
                # The frame after the last token waits for the next one.
                waiting = partial(waits, slow, frames=count)
                assert slow._ready.wait_for(waiting, TIMEOUT)
                engine.scheduler.plan(now[0])  # it knows now that the engine is not late
                now[0] += 10.0
            if count == 3:
                other = engine.submit(request_of(TEXT))
                other.append_tokens(answer)
                other.finish_text()
                assert relative_error(read_all(other), expected_of(TEXT)["audio"].astype(np.float32)) < 1e-6
        slow.finish_text()
        assert relative_error(read_all(slow), expected_of(TEXT)["audio"].astype(np.float32)) < 1e-6
        assert slow.result is not None
        assert slow.result.text_waits >= len(answer) - 1
        assert slow.result.underruns == 0
    finally:
        engine.close()


def test_a_thinker_that_stalls_ends_its_stream_with_a_timeout(
    speech: Qwen3OmniModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_text, "MIN_START_TOKENS", 1)
    now = [0.0]
    engine = LocalEngine(speech, EngineConfig(max_streams=1, text_timeout=5.0), clock=lambda: now[0])
    try:
        stream = engine.submit(request_of(TEXT))
        stream.append_tokens(answer_of(TEXT)[:3])
        with engine.lock:
            assert stream._ready.wait_for(lambda: waits(stream, frames=2), TIMEOUT)
            now[0] = 6.0
            engine.wake()
        with pytest.raises(StreamFailed, match="no text arrived"):
            read_all(stream)
        assert_idle(engine)
    finally:
        engine.close()


def test_the_stream_starts_with_the_first_token(engine: LocalEngine) -> None:
    stream = engine.submit(request_of(TEXT))
    assert stream.status is StreamStatus.AWAITING_TEXT
    stream.append_tokens([])
    assert stream.status is StreamStatus.AWAITING_TEXT
    stream.append_tokens(answer_of(TEXT)[:2])
    assert next(stream.chunks(TIMEOUT)).samples.size
    stream.cancel()


def test_an_answer_without_tokens_is_empty_audio(engine: LocalEngine) -> None:
    for tokens in ([], [END]):
        stream = engine.submit(request_of(TEXT))
        stream.append_tokens(tokens)
        stream.finish_text()
        assert read_all(stream).size == 0
        assert stream.result is not None
        assert stream.result.finish_reason == "stop"


def test_a_cancelled_conversation_releases_its_slot_while_it_waits(engine: LocalEngine) -> None:
    stream = engine.submit(request_of(TEXT))
    stream.append_tokens(answer_of(TEXT)[:1])
    stream.cancel()
    read_all(stream)
    assert_idle(engine)


@pytest.mark.parametrize(
    ("prompt", "requirement"),
    [
        (ThinkerPrompt(()), "start of the assistant's turn"),
        (ThinkerPrompt(user(40)), "start of the assistant's turn"),
        (ThinkerPrompt((*user(40), *OPEN[:2])), "start of the assistant's turn"),
        (ThinkerPrompt((*user(512), *OPEN)), "token ids from 0 to 511"),
        (ThinkerPrompt((*user(23), *OPEN), np.zeros((2, 32), np.float32)), "one row per audio, image and video token"),
        (ThinkerPrompt((*user(23), *OPEN), np.full((1, 32), np.nan, np.float32)), "finite numbers"),
        (ThinkerPrompt((*user(24), *OPEN), None, np.zeros((3, 2), np.float32)), "the shape"),
    ],
)  # fmt: skip
def test_a_prompt_that_cannot_be_read_is_rejected(engine: LocalEngine, prompt: ThinkerPrompt, requirement: str) -> None:
    with pytest.raises(InvalidRequest, match=requirement):
        engine.submit(replace(request_of(TEXT), thinker_prompt=prompt))


def test_a_conversation_takes_tokens_and_no_text(engine: LocalEngine) -> None:
    with pytest.raises(InvalidRequest, match="live request without text"):
        engine.submit(replace(request_of(TEXT), text="hello"))
    stream = engine.submit(request_of(TEXT))
    with pytest.raises(InvalidRequest, match="append token ids"):
        stream.append("hello")
    with pytest.raises(InvalidRequest, match="token ids from 0 to 511"):
        stream.append_tokens([40, 512])
    stream.cancel()
    with pytest.raises(InvalidRequest, match="chelsie, ethan, aiden"):
        engine.submit(replace(request_of(TEXT), voice="serena"))
    for layout in ("whole", "unknown"):
        with pytest.raises(InvalidRequest, match="layout"):
            engine.submit(replace(request_of(TEXT), layout=cast(Layout, layout)))


def test_missing_rows_of_audio_are_zeros(engine: LocalEngine) -> None:
    case = next(case for case in CASES if case.name == "audio")
    made = []
    for rows in (None, np.zeros((29, 32), np.float32), expected_of(case)["media_rows"]):
        stream = engine.submit(replace(request_of(case), thinker_prompt=ThinkerPrompt(case.prompt, rows)))
        stream.append_tokens(answer_of(case))
        stream.finish_text()
        made.append(read_all(stream))
    np.testing.assert_array_equal(made[0], made[1])
    assert not np.array_equal(made[0], made[2])


def test_text_is_spoken_as_the_answer_to_an_empty_turn(speech: Qwen3OmniModel) -> None:
    tokenizer = HashingTokenizer(speech.config, None)
    engine = LocalEngine(Qwen3OmniModel(speech.model, tokenizer, speech.identity), EngineConfig(max_streams=2))
    try:
        prompt = ThinkerPrompt((1, 11, tokenizer.role[-1], END, tokenizer.role[-1], *tokenizer.role))
        answered = engine.submit(replace(request_of(TEXT), thinker_prompt=prompt))
        answered.append_tokens(tokenizer.text("hello there"))
        answered.finish_text()
        whole = engine.submit(replace(request_of(TEXT), thinker_prompt=None, live=False, text="hello there"))
        assert (answered.is_answer, whole.is_answer) == (True, False)
        np.testing.assert_allclose(read_all(whole), read_all(answered), atol=1e-9)
    finally:
        engine.close()


def test_text_without_a_tokenizer_is_rejected_with_the_other_endpoint(engine: LocalEngine) -> None:
    with pytest.raises(InvalidRequest, match="/v1/chat/completions"):
        engine.submit(Request("hello"))


def test_a_model_of_another_family_takes_no_conversation(loaded: Loaded) -> None:
    model = loaded("custom_voice", "float64").model
    with pytest.raises(InvalidRequest, match="Use Qwen/Qwen3-Omni-30B-A3B-Instruct"):
        model.streaming_tokenizer(Request("", "serena", live=True, thinker_prompt=ThinkerPrompt((*user(LINE), *OPEN))))
    with pytest.raises(InvalidRequest, match="thinker's prompt"):
        model.streaming_tokenizer(Request("", "serena", live=True)).append_tokens([1])
