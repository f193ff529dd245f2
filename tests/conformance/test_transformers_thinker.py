# SPDX-License-Identifier: Apache-2.0
"""Qwen3-Omni's thinker in transformers: with the talker it gives the text and audio of `generate`, media included."""

import asyncio
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers

from ipc.engine_processes import eventually
from polyvox.engine.config import EngineConfig
from polyvox.models.registry import LoadOptions, load_model
from polyvox.models.request import ThinkerPrompt
from polyvox.server.settings import Settings
from polyvox.thinkers.interface import ChatBody
from polyvox.thinkers.transformers_server import TransformersServer
from polyvox.thinkers.transformers_thinker import GeneratedToken, TransformersThinker
from reference.omni_cases import CONVERSATIONS, END, Conversation
from server.greedy_engine import GreedyEngine
from server.live_server import serving
from server.test_chat import PATH, audio_of, body, streamed, text_of

CASES = [
    case
    for case in CONVERSATIONS
    if case.shape == "plain" and case.name in ("text", "history", "audio", "image", "image-history", "video")
]
names = [case.name for case in CASES]
TOLERANCE = 1e-4
MAX_DIFFERENCE = 4  # of 16-bit samples
CASE_FIELD = "case"  # of a request, for the prompts of this file


def golden(case: Conversation) -> dict[str, np.ndarray[Any, Any]]:
    """What transformers gave for the case, in float32."""
    with np.load(Path(__file__).parents[1] / f"golden/omni-plain-{case.name}.npz") as arrays:
        prefix = "float32."
        return {name.removeprefix(prefix): arrays[name] for name in arrays.files if name.startswith(prefix)}


def oracle() -> Any:
    """Runs in transformers' environment, so it imports the cases by their own name."""
    folder = str(Path(__file__).parents[1] / "reference")
    sys.path.insert(0, folder)
    try:
        import omni_oracle  # type: ignore[import-not-found]
    finally:
        sys.path.remove(folder)
    return omni_oracle


class CasePrompts:
    """The prompt of the case that a request names; a text is the numbers of its tokens."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def inputs(self, body: ChatBody) -> dict[str, torch.Tensor]:
        case = CASES[names.index(body[CASE_FIELD])]
        ids = torch.tensor([case.prompt])
        media: dict[str, torch.Tensor] = oracle().media(case, self._model)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **media}

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(f"{token} " for token in ids)


@pytest.fixture(scope="module")
def thinker(checkpoints: Path) -> TransformersThinker:
    model = oracle().load(checkpoints / "omni-plain", torch.float32)
    return TransformersThinker(model, CasePrompts(model), [END])


@contextmanager
def running(thinker: TransformersThinker) -> Iterator[str]:
    """The server of a thinker in a thread; yields its URL."""
    urls: list[str] = []
    loop, ready = asyncio.new_event_loop(), threading.Event()
    stopped = asyncio.Event()

    async def serve() -> None:
        async with TransformersServer(thinker, "tiny").listen("127.0.0.1", 0) as url:
            urls.append(url)
            ready.set()
            await stopped.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(30)


def test_tokens_hidden_states_and_positions_are_those_of_the_reference(thinker: TransformersThinker) -> None:
    for case in CASES:
        prompts: list[ThinkerPrompt] = []
        tokens: list[GeneratedToken] = []
        request = {CASE_FIELD: case.name, "temperature": 0, "max_tokens": case.answer}
        thinker.answer(request, prompts.append, tokens.append, lambda: False)
        expected = golden(case)
        assert [token.id for token in tokens] == expected["answer"].tolist()
        (prompt,) = prompts
        assert prompt.ids == case.prompt
        if case.media:
            assert prompt.media_rows is not None
            assert np.abs(prompt.media_rows - expected["media_rows"]).max() < TOLERANCE
        if case.media in ("image", "video"):
            assert prompt.positions is not None
            assert np.array_equal(prompt.positions, expected["positions"])


def test_a_checkpoint_is_loaded_without_its_talker(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny checkpoint has no processor and no weights of the thinker, which are then random."""
    tokenizer = SimpleNamespace(eos_token_id=END, decode=lambda ids, skip_special_tokens: f"{ids}{skip_special_tokens}")
    processor = SimpleNamespace(tokenizer=tokenizer)
    monkeypatch.setattr(transformers.Qwen3OmniMoeProcessor, "from_pretrained", lambda _: processor)
    thinker = TransformersThinker.load(str(checkpoints / "omni-plain"), "cpu", "float32")
    assert not thinker._model.has_talker
    thinker._prompts = CasePrompts(thinker._model)
    tokens: list[GeneratedToken] = []
    thinker.answer({CASE_FIELD: "text", "max_tokens": 3, "seed": 1}, lambda _: None, tokens.append, lambda: False)
    assert tokens[-1].finish_reason in ("length", "stop")


def test_a_cancelled_answer_ends_at_the_next_token(thinker: TransformersThinker) -> None:
    tokens: list[GeneratedToken] = []
    request = {CASE_FIELD: "text", "temperature": 0, "max_tokens": 500}
    thinker.answer(request, lambda _: None, tokens.append, lambda: len(tokens) >= 3)
    assert 3 <= len(tokens) <= 4


@pytest.fixture(scope="module")
def engine(checkpoints: Path) -> Iterator[GreedyEngine]:
    options = LoadOptions(torch.device("cpu"), torch.float32)
    running = GreedyEngine(load_model(str(checkpoints / "omni-plain"), options), EngineConfig(max_streams=2))
    yield running
    running.close()


@pytest.fixture(scope="module")
def client(engine: GreedyEngine, thinker: TransformersThinker) -> Iterator[httpx.Client]:
    with running(thinker) as url, serving(engine, Settings(llm=url)) as server, server.client() as client:
        eventually(lambda: server.server.state is not None)
        yield client


@pytest.mark.parametrize("case", CASES, ids=names)
def test_text_and_audio_are_those_of_generate(case: Conversation, client: httpx.Client, engine: GreedyEngine) -> None:
    engine.case = case
    fields = {CASE_FIELD: case.name, "temperature": 0, "max_tokens": case.answer}
    chunks = streamed(client, audio={"voice": case.speaker, "format": "pcm16"}, **fields)
    expected = golden(case)
    assert text_of(chunks).split() == [str(token) for token in expected["answer"].tolist() if token != END]
    samples = np.frombuffer(audio_of(chunks), "<i2").astype(np.int64)
    assert samples.shape == expected["audio"].shape
    assert np.abs(samples - np.clip(np.round(expected["audio"] * 32768), -32768, 32767)).max() <= MAX_DIFFERENCE


def test_without_audio_the_thinker_answers_in_text(client: httpx.Client) -> None:
    fields = {CASE_FIELD: "text", "temperature": 0, "max_tokens": 5, "modalities": ["text"], "audio": None}
    answer = client.post(PATH, json=body(**fields)).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert len(answer["choices"][0]["message"]["content"].split()) == answer["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("fields", [{"tools": [{}]}, {"max_tokens": 0.5}, {"temperature": 9}, {"seed": -1}])
def test_an_option_that_it_cannot_follow_is_rejected(fields: dict[str, Any], client: httpx.Client) -> None:
    response = client.post(PATH, json=body(**{CASE_FIELD: "text", "audio": {"voice": "ethan"}, **fields}))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == next(iter(fields))
