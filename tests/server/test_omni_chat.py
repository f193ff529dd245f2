# SPDX-License-Identifier: Apache-2.0
"""Chat completions on Qwen3-Omni: the tokens of an LLM become the text and the audio of transformers' `generate`."""

import logging
from collections.abc import Iterator
from typing import cast

import httpx
import numpy as np
import pytest

from conftest import Loaded
from ipc.engine_processes import eventually
from parity import golden
from polyvox.engine.config import EngineConfig
from polyvox.models.qwen3_omni.speech_model import Qwen3OmniModel
from polyvox.server.settings import Settings
from polyvox.thinkers.interface import Delta, End, ThinkerFailed
from polyvox.thinkers.openai_client import AnswerReader
from reference.omni_cases import END, Conversation
from server.greedy_engine import CASES, GreedyEngine
from server.live_server import RunningServer, serving
from server.scripted_llm import Script, ScriptedLLM, Step
from server.scripted_server import Action
from server.test_chat import PATH, audio_of, body, streamed, text_of

pytestmark = pytest.mark.slow

MAX_DIFFERENCE = 1  # of 16-bit samples: the reference is rounded to float32


@pytest.fixture(scope="module")
def engine(loaded: Loaded) -> Iterator[GreedyEngine]:
    model = cast(Qwen3OmniModel, loaded("omni-plain", "float64").model)
    running = GreedyEngine(model, EngineConfig(max_streams=4))
    yield running
    running.close()


@pytest.fixture(scope="module")
def server(engine: GreedyEngine, shared_llm: ScriptedLLM) -> Iterator[RunningServer]:
    with serving(engine, Settings(llm=shared_llm.url)) as server:
        yield server


@pytest.fixture
def client(server: RunningServer, llm: ScriptedLLM) -> Iterator[httpx.Client]:  # noqa: ARG001
    with server.client() as client:
        yield client


def answer_of(case: Conversation) -> list[int]:
    """The reference implementation never speaks the last token."""
    return cast(list[int], golden(f"omni-plain-{case.name}", "float64")["answer"].tolist()[:-1])


def script_of(case: Conversation, *before: Step) -> Script:
    """One text for each token; with the end of the turn, as vLLM sends it."""
    ids = [*answer_of(case), END]
    texts = [f"{token} " for token in ids[:-1]]
    return Script([texts[0], *before, *texts[1:], ""], prompt_ids=case.prompt, ids=[[token] for token in ids])


def test_a_checkpoint_without_a_tokenizer_is_ready_and_rejects_plain_text(
    client: httpx.Client, engine: GreedyEngine
) -> None:
    assert engine.info().trial_prompt
    assert client.get("/readyz").status_code == 200
    response = client.post("/v1/audio/speech", json={"input": "Hi.", "voice": "ethan"})
    assert response.status_code == 400
    assert "without a tokenizer" in response.json()["error"]["message"]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_text_and_audio_are_those_of_the_reference(
    case: Conversation, client: httpx.Client, engine: GreedyEngine, llm: ScriptedLLM
) -> None:
    engine.case, llm.script = case, script_of(case)
    chunks = streamed(client, audio={"voice": case.speaker, "format": "pcm16"})
    assert text_of(chunks) == "".join(f"{token} " for token in answer_of(case))
    expected = golden(f"omni-plain-{case.name}", "float64")["audio"]
    samples = np.frombuffer(audio_of(chunks), "<i2").astype(np.int64)
    assert samples.shape == expected.shape
    assert np.abs(samples - np.clip(np.round(expected * 32768), -32768, 32767)).max() <= MAX_DIFFERENCE
    assert llm.requests[0]["return_token_ids"] is True
    assert all("token_ids" not in choice for chunk in chunks for choice in chunk["choices"])


def test_speech_starts_after_the_first_token(client: httpx.Client, engine: GreedyEngine, llm: ScriptedLLM) -> None:
    engine.case, llm.script = CASES[0], script_of(CASES[0], Action.WAIT)
    before = engine.stats()["steps"]
    with client.stream("POST", PATH, json=body(stream=True, audio={"voice": "ethan"})) as response:
        lines = response.iter_lines()
        next(lines)
        eventually(lambda: engine.stats()["steps"] > before and engine.stats()["streams"] == 1)
        assert llm.num_active == 1  # it has written one token
        llm.release()
        assert "[DONE]" in "".join(lines)


def test_audio_without_hidden_states_is_noted_in_the_log(
    client: httpx.Client, engine: GreedyEngine, llm: ScriptedLLM, caplog: pytest.LogCaptureFixture
) -> None:
    engine.case, llm.script = CASES[0], script_of(CASES[0])
    caplog.set_level(logging.INFO)
    part = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    streamed(client, audio={"voice": "ethan"}, messages=[{"role": "user", "content": [part]}])
    eventually(lambda: any(getattr(record, "media_rows", "") == "zeros" for record in caplog.records))


def test_an_llm_without_token_ids_is_rejected_with_a_hint(client: httpx.Client, llm: ScriptedLLM) -> None:
    llm.script = Script()
    response = client.post(PATH, json=body(audio={"voice": "ethan"}))
    assert response.status_code == 502
    assert "return_token_ids" in response.json()["error"]["message"]


def test_the_token_at_which_an_answer_is_cut_is_not_spoken() -> None:
    reader = AnswerReader(with_ids=True)
    choice = b'{"delta": {"content": "a"}, "token_ids": [5, 6], "finish_reason": %s}'
    chunk = b'{"prompt_token_ids": [1, 2], "choices": [' + choice + b"]}"
    _, first = reader.read(chunk % b"null")
    (last,) = reader.read(chunk % b'"length"')
    assert isinstance(first, Delta)
    assert isinstance(last, Delta)
    assert (first.ids, last.ids) == ((5, 6), (5,))
    assert reader.read(b"[DONE]") == [End("length", None)]


@pytest.mark.parametrize("token_id", [b'"x"', b"-1", b"true", b"1.5", b"1" + 30 * b"0"])
def test_an_answer_with_something_else_than_token_ids_is_invalid(token_id: bytes) -> None:
    reader = AnswerReader(with_ids=True)
    reader.read(b'{"prompt_token_ids": [1, 2], "choices": [{"delta": {"content": "a"}, "token_ids": [5]}]}')
    with pytest.raises(ThinkerFailed, match="invalid data"):
        reader.read(b'{"choices": [{"delta": {"content": "a"}, "token_ids": [%s]}]}' % token_id)
