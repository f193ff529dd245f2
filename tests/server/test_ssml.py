# SPDX-License-Identifier: Apache-2.0
"""SSML and pronunciations in requests: silence, speaking rate, malformed documents, lexicons."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from ipc.fake_engine import CHUNK_SAMPLES, LENGTH, SAMPLE_RATE
from polyvox.server.settings import Settings
from polyvox.server.synthesis.segments import Granularity, Segment, SegmentQueue
from polyvox.text import TextRules
from server.fakes import PausableEngine
from server.live_server import RunningServer
from server.test_websocket import one_shot, session

pytestmark = pytest.mark.slow

SENTENCE = LENGTH * CHUNK_SAMPLES  # samples


@pytest.fixture(scope="module")
def server_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    path = tmp_path_factory.mktemp("lexicon") / "words.txt"
    path.write_text("SQL = sequel\nGIF = jiff\n")
    return Settings(lexicon=path)


def speak(client: httpx.Client, text: str, **fields: object) -> np.ndarray:
    body = {"input": text, "response_format": "pcm", **fields}
    answer = client.post("/v1/audio/speech", json=body)
    assert answer.status_code == 200, answer.text
    return np.frombuffer(answer.content, "<i2")


@pytest.mark.parametrize("stream", [True, False])
def test_a_break_is_silence_of_its_length(client: httpx.Client, stream: bool) -> None:
    audio = speak(client, "<speak>One.<break time='1500ms'/>Two.</speak>", stream=stream)
    assert len(audio) == 2 * SENTENCE + round(1.5 * SAMPLE_RATE)
    assert not audio[SENTENCE : SENTENCE + round(1.5 * SAMPLE_RATE)].any()


@pytest.mark.parametrize("format", ["pcm", "wav"])
def test_prosody_changes_the_length_of_its_words_and_not_of_breaks(client: httpx.Client, format: str) -> None:
    text = "<speak>One. <break time='1s'/><prosody rate='200%'>Two.</prosody><break time='1s'/>Three.</speak>"
    body = {"input": text, "response_format": format, "stream": False}
    size = len(client.post("/v1/audio/speech", json=body).content) // 2
    assert size == pytest.approx(2.5 * SENTENCE + 2 * SAMPLE_RATE, abs=SAMPLE_RATE * 0.02)


@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_prosody_does_not_change_a_break_at_the_end(client: httpx.Client, rate: float) -> None:
    audio = speak(client, f"<speak><prosody rate='{rate}'>One.<break time='1s'/></prosody></speak>")
    assert len(audio) == pytest.approx(SENTENCE / rate + SAMPLE_RATE, abs=SAMPLE_RATE * 0.02)


def test_malformed_ssml_is_rejected_with_its_position(client: httpx.Client, engine: PausableEngine) -> None:
    num_requests = len(engine.requests)
    answer = client.post("/v1/audio/speech", json={"input": "<speak>One. <break></speak>"})
    assert answer.status_code == 400
    assert "'input'" in answer.json()["error"]["message"]
    assert "line 1, column" in answer.json()["error"]["message"]
    assert len(engine.requests) == num_requests


def test_pronunciations_of_a_request_replace_those_of_the_server(client: httpx.Client, engine: PausableEngine) -> None:
    speak(client, "SQL and GIF.")
    assert engine.requests[-1].text == "sequel and jiff."
    pronunciations = {"gif": "giff", "US": {"respelling": "the States", "match_case": True}}
    speak(client, "SQL and GIF for US, us.", pronunciations=pronunciations)
    assert engine.requests[-1].text == "sequel and giff for the States, us."


def test_the_request_of_the_documentation(client: httpx.Client, engine: PausableEngine) -> None:
    page = (Path(__file__).parents[2] / "docs/text.md").read_text()
    (body,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert client.post("/v1/audio/speech", content=body).status_code == 200
    assert engine.requests[-1].text == "sequel for American users."


@pytest.mark.parametrize(
    ("pronunciations", "message"),
    [
        ({"a": ""}, "respelling or phonemes"),
        ({"": "x"}, "letter or digit"),
        ({"a": {"respelling": "x", "phonemes": "y"}}, "either"),
        ({"a": {"phonemes": "a", "alphabet": "x"}}, "alphabet"),
        ({"a": 3}, "pronunciations"),
        ({f"w{number}": "x" for number in range(1001)}, "1000"),
    ],
)
def test_invalid_pronunciations_are_rejected(client: httpx.Client, pronunciations: object, message: str) -> None:
    answer = client.post("/v1/audio/speech", json={"input": "a", "pronunciations": pronunciations})
    assert answer.status_code in (400, 422)
    assert message in answer.json()["error"]["message"]


DOCUMENT = "<speak>One 2. <prosody rate='slow'>Three <break time='1s'/> four.</prosody> <s>five</s></speak>"
SEGMENTS = [Segment("One two."), Segment("Three", 0.25, 0.75), Segment("four.", 1.0, 0.75), Segment("five.", 0.25)]


@pytest.mark.parametrize("granularity", ["sentence", "clause"])
def test_a_document_in_any_fragments_gives_the_same_segments(granularity: Granularity) -> None:
    async def read(pieces: list[str]) -> list[Segment]:
        queue = SegmentQueue(TextRules(), granularity)
        for piece in pieces:
            queue.append(piece)
        queue.finish()
        return [segment async for segment in _segments(queue)]

    for size in range(1, len(DOCUMENT) + 1):
        pieces = [DOCUMENT[at : at + size] for at in range(0, len(DOCUMENT), size)]
        assert asyncio.run(read(pieces)) == SEGMENTS


async def _segments(queue: SegmentQueue) -> AsyncIterator[Segment]:
    while (segment := await queue.next()) is not None:
        yield segment


@pytest.mark.parametrize("size", [1, 3, 17])
def test_live_text_may_be_ssml(server: RunningServer, size: int) -> None:
    document = DOCUMENT.replace("slow", "100%")
    with session(server) as websocket:
        for at in range(0, len(document), size):
            websocket.send(type="input.text", text=document[at : at + size])
        websocket.send(type="input.done")
        assert websocket.until("session.done")[1] == one_shot(server, document)


@pytest.mark.parametrize("text", ["<speak>One. Two & three.", "<speak>One. Two."])
@pytest.mark.parametrize("granularity", ["sentence", "token"])
def test_malformed_live_ssml_ends_the_utterance_and_the_session_continues(
    server: RunningServer, text: str, granularity: str
) -> None:
    with session(server, split_granularity=granularity) as websocket:
        websocket.send(type="input.text", text=text)
        websocket.send(type="input.done")
        messages, _ = websocket.until("session.done")
        errors = [message for message in messages if message["type"] == "error"]
        assert "line 1, column" in str(errors)
        websocket.send(type="input.text", text="Hello.")
        websocket.send(type="input.done")
        messages, sound = websocket.until("session.done")
        assert sound
        assert not any(message["type"] == "error" for message in messages)
