# SPDX-License-Identifier: Apache-2.0
"""Every event of /v1/realtime has the shape that the openai package declares."""

import base64
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from polyvox.audio.pcm import pcm_bytes, to_pcm
from polyvox.server.settings import Settings
from server.fakes import PausableEngine
from server.live_server import serving
from server.realtime_client import RealtimeClient, realtime
from server.scripted_llm import Script, ScriptedLLM
from server.scripted_server import Action
from server.scripted_stt import ScriptedSTT

GOLDEN = Path(__file__).parents[1] / "golden" / "embedded-heart-whole.npz"
SILENCE = np.zeros(24_000, np.int16)
EVENTS: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
TOOL = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}}


@pytest.fixture
def client(llm: ScriptedLLM, stt: ScriptedSTT) -> Iterator[RealtimeClient]:
    with (
        closing(PausableEngine()) as engine,
        serving(engine, Settings(llm=llm.url, stt=stt.url)) as server,
        realtime(server, "?model=gpt-realtime") as client,
    ):
        yield client
        for event in client.events:
            checked = EVENTS.validate_python(event)
            assert checked.to_dict(exclude_unset=False)["type"] == event["type"]


@pytest.mark.parametrize("modality", ["audio", "text"])
def test_answers_and_function_calls(modality: str, client: RealtimeClient, llm: ScriptedLLM) -> None:
    client.update(tools=[TOOL], tool_choice="required", output_modalities=[modality], tracing="auto")
    client.say("Hi!")
    function = {"name": "look", "arguments": "{}"}
    llm.script = Script(["Let me look.", {"tool_calls": [{"index": 0, "id": "call_1", "function": function}]}])
    assert client.respond(metadata={"a": "b"})[-1]["response"]["status"] == "completed"
    client.send("conversation.item.create", item={"type": "function_call_output", "call_id": "call_1", "output": "x"})
    llm.script = Script(["A cat."], finish_reason="length")
    assert client.respond(conversation="none")[-1]["response"]["status"] == "incomplete"


def test_items_truncation_and_deletion(client: RealtimeClient) -> None:
    client.say("Hi!", id="first")
    item = client.respond()[-1]["response"]["output"][0]
    client.send("conversation.item.truncate", item_id=item["id"], content_index=0, audio_end_ms=20)
    client.next("conversation.item.truncated")
    for id in (item["id"], "first"):
        client.send("conversation.item.retrieve", item_id=id)
        client.next("conversation.item.retrieved")
        client.send("conversation.item.delete", item_id=id)
        client.next("conversation.item.deleted")


def test_cancelled_and_failed_responses_and_errors(client: RealtimeClient, llm: ScriptedLLM) -> None:
    llm.script = Script(["One two. Three", Action.WAIT])
    client.send("response.create")
    client.next("response.output_audio.delta")
    client.send("response.cancel")
    client.next("response.done")
    llm.script = Script(status=500, error={})
    assert client.respond()[-1]["response"]["status"] == "failed"
    client.fail("nonsense")
    client.send("input_audio_buffer.clear")
    client.next("input_audio_buffer.cleared")


def test_turns_of_speech_and_silence(client: RealtimeClient, llm: ScriptedLLM) -> None:
    detection = {"type": "server_vad", "idle_timeout_ms": 5000}
    client.update(audio={"input": {"turn_detection": detection, "transcription": {"model": "whisper-1"}}})
    speech = np.concatenate([SILENCE, to_pcm(np.load(GOLDEN)["float32.audio0"]), SILENCE])
    client.send("input_audio_buffer.append", audio=base64.b64encode(pcm_bytes(speech)).decode())
    client.next("conversation.item.input_audio_transcription.completed")
    assert client.next("response.done")["response"]["status"] == "completed"
    client.next("input_audio_buffer.timeout_triggered")
    assert client.next("response.done")["response"]["status"] == "completed"
    assert llm.requests[-1]["messages"][-1] == {"role": "user", "content": "(silence)"}
