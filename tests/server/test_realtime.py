# SPDX-License-Identifier: Apache-2.0
"""WS /v1/realtime: sessions with text, items, responses, function calls and interruptions."""

import asyncio
import json
import re
import wave
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ipc.engine_processes import eventually
from ipc.fake_engine import CHUNK_SAMPLES
from polyvox.server.api.websocket_connection import MAX_INVALID_MESSAGES
from polyvox.server.realtime.events import EventSender
from polyvox.server.settings import Settings
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving
from server.realtime_client import PATH, RealtimeClient, audio, realtime, texts
from server.scripted_llm import MODEL, PROMPT_TOKENS, Script, ScriptedLLM
from server.scripted_server import Action
from server.websocket_clients import connect_websocket

pytestmark = pytest.mark.slow

TOOL = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}}


@pytest.fixture(scope="module")
def server_settings(shared_llm: ScriptedLLM) -> Settings:
    return Settings(llm=shared_llm.url, llm_model=MODEL, max_text_chars=5000)


@pytest.fixture
def client(server: RunningServer, llm: ScriptedLLM) -> Iterator[RealtimeClient]:  # noqa: ARG001
    with realtime(server) as client:
        yield client


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """The types of events, without repetitions of a delta."""
    found = [event["type"] for event in events]
    return [kind for index, kind in enumerate(found) if not index or kind != found[index - 1]]


def call_pieces(name: str, *arguments: str, id: str = "call_1", index: int = 0) -> list[dict[str, Any]]:
    first = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
    rest = [{"index": index, "function": {"arguments": piece}} for piece in arguments]
    return [{"tool_calls": [piece]} for piece in (first, *rest)]


def test_a_session_shows_its_configuration(server: RunningServer, llm: ScriptedLLM) -> None:  # noqa: ARG001
    with connect_websocket(server, f"{PATH}?model=gpt-realtime") as socket:
        created = socket.receive_json()
    session = created["session"]
    assert created["event_id"].startswith("event_")
    assert (session["type"], session["object"], session["model"]) == ("realtime", "realtime.session", "gpt-realtime")
    assert session["output_modalities"] == ["audio"]
    assert session["audio"]["output"] == {
        "format": {"type": "audio/pcm", "rate": 24000},
        "voice": "heart",
        "speed": 1.0,
    }
    assert session["audio"]["input"]["turn_detection"]["interrupt_response"] is True


def test_a_text_is_answered_with_speech_and_its_transcript(client: RealtimeClient, llm: ScriptedLLM) -> None:
    client.update(instructions="Be brief.")
    client.say("Hi!")
    added = client.next("conversation.item.added")
    assert client.receive() == {**added, "type": "conversation.item.done", "event_id": client.events[-1]["event_id"]}
    events = client.respond()
    created, done = events[0]["response"], events[-1]["response"]
    message = "Hello there. How are you?"
    assert texts(events) == message
    assert len(audio(events)) >= 5 * 2 * CHUNK_SAMPLES
    order = [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
    ]
    end = [
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    assert kinds(events)[:5] == order
    assert kinds(events)[-6:] == end
    assert (created["status"], done["status"], done["id"]) == ("in_progress", "completed", created["id"])
    (item,) = done["output"]
    assert item["content"] == [{"type": "output_audio", "transcript": message}]
    assert done["usage"]["input_tokens"] == PROMPT_TOKENS
    assert done["usage"]["output_token_details"] == {"text_tokens": 4, "audio_tokens": 5}
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}]
    assert llm.requests[0]["messages"] == asked
    client.say("And then?")
    client.respond()
    assert llm.requests[1]["messages"] == [
        *asked,
        {"role": "assistant", "content": message},
        {"role": "user", "content": "And then?"},
    ]


def test_an_answer_can_be_text_only(client: RealtimeClient, engine: PausableEngine) -> None:
    client.update(output_modalities=["text"])
    client.say("Hi!")
    events = client.respond()
    assert texts(events, "output_text") == "Hello there. How are you?"
    assert not audio(events)
    part = next(event for event in events if event["type"] == "response.content_part.added")["part"]
    assert part == {"type": "text", "text": ""}
    assert events[-1]["response"]["output"][0]["content"][0]["type"] == "output_text"
    assert not engine.requests


def test_audio_has_the_format_and_the_voice_of_the_session(client: RealtimeClient, engine: PausableEngine) -> None:
    output = {"format": {"type": "audio/pcmu"}, "voice": "michael"}
    session = client.update(audio={"output": output})
    assert session["audio"]["output"] == {**output, "speed": 1.0}
    client.say("Hi!")
    sound = audio(client.respond())
    assert 5 * CHUNK_SAMPLES // 3 <= len(sound) < 24_000  # one byte for each sample of 8 kHz
    assert engine.requests[-1].voice == "michael"
    error = client.fail("session.update", session={"type": "realtime", "audio": {"output": {"voice": "heart"}}})
    assert error["code"] == "cannot_update_voice"
    assert client.update(audio={"output": output})["audio"]["output"]["voice"] == "michael"


def test_a_session_update_keeps_other_fields_and_reports_ignored_ones(client: RealtimeClient) -> None:
    client.update(instructions="Be brief.", tools=[TOOL], audio={"input": {"transcription": {"model": "whisper-1"}}})
    session = client.update(
        tracing="auto", audio={"input": {"turn_detection": None, "noise_reduction": {"type": "far_field"}}}
    )
    assert session["instructions"] == "Be brief."
    assert session["tools"] == [TOOL]
    assert session["audio"]["input"]["transcription"] == {"model": "whisper-1"}
    assert session["audio"]["input"]["turn_detection"] is None
    assert session["ignored_fields"] == ["session.tracing", "session.audio.input.noise_reduction"]
    assert client.update(audio={"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "low"}}})["audio"][
        "input"
    ]["turn_detection"] == {
        "type": "semantic_vad",
        "eagerness": "low",
        "create_response": True,
        "interrupt_response": True,
    }


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"output_modalities": ["video"]}, "session.output_modalities"),
        ({"audio": {"output": {"speed": 9}}}, "session.audio.output.speed"),
        ({"audio": {"output": {"format": {"type": "audio/opus"}}}}, "session.audio.output.format.type"),
        ({"audio": {"output": {"voice": "nobody"}}}, "session.audio.output.voice"),
        (
            {"audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": 2}}}},
            "session.audio.input.turn_detection.threshold",
        ),
        ({"max_output_tokens": 0}, "session.max_output_tokens"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "session.tools.0"),
    ],
)
def test_an_invalid_update_is_an_error_and_has_no_effect(
    session: dict[str, Any], param: str, client: RealtimeClient
) -> None:
    error = client.fail("session.update", session={"type": "realtime", "instructions": "No.", **session})
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert client.update()["instructions"] == ""


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({"type": "response.speak"}, "invalid_request"),
        ({"type": 5}, "invalid_request"),
        ({"type": "\ud800"}, "invalid_request"),
        ({}, "invalid_request"),
        ({"type": "session.update"}, "missing_field"),
        ({"type": "session.update", "session": 5}, "invalid_field"),
        ({"type": "conversation.item.create", "item": {"type": "poem"}}, "invalid_field"),
        ({"type": "conversation.item.create", "item": {"type": "message"}}, "missing_field"),
        ({"type": "conversation.item.create", "item": {"type": "function_call"}}, "missing_field"),
        ({"type": "conversation.item.create", "item": {"type": "function_call_output"}}, "missing_field"),
        (
            {
                "type": "conversation.item.create",
                "item": {"type": "message", "role": "system", "content": [{"type": "input_image"}]},
            },
            "invalid_request",
        ),
        ({"type": "conversation.item.retrieve", "item_id": "x"}, "item_retrieve_invalid_item_id"),
        ({"type": "conversation.item.delete", "item_id": "x"}, "item_delete_invalid_item_id"),
        (
            {"type": "conversation.item.truncate", "item_id": "x", "content_index": 0, "audio_end_ms": 1},
            "item_truncate_invalid_item_id",
        ),
        ({"type": "response.cancel"}, "response_cancel_not_active"),
        ({"type": "input_audio_buffer.commit"}, "input_audio_buffer_commit_empty"),
        ({"type": "response.create", "response": {"metadata": {"x": 5}}}, "invalid_field"),
        ({"type": "response.create", "response": {"conversation": "other"}}, "invalid_field"),
        (
            {"type": "response.create", "response": {"input": [{"type": "item_reference", "id": "x"}]}},
            "item_retrieve_invalid_item_id",
        ),
    ],
)
def test_an_invalid_event_is_an_error_and_the_session_goes_on(
    event: dict[str, Any], code: str, client: RealtimeClient
) -> None:
    client.socket.send(event_id="mine", **event)
    error = client.next("error")["error"]
    assert (error["code"], error["event_id"]) == (code, "mine")
    assert error["message"].endswith(".")
    client.update()


def test_many_invalid_events_end_the_session(client: RealtimeClient) -> None:
    for _ in range(101):
        client.send("nonsense")
    assert client.socket.closed() == 1008


def test_items_are_created_in_order_retrieved_and_deleted(client: RealtimeClient, llm: ScriptedLLM) -> None:
    client.say("Two", id="b")
    client.say("Three")
    client.send(
        "conversation.item.create",
        previous_item_id="root",
        item={"id": "a", "type": "message", "role": "system", "content": [{"type": "input_text", "text": "One"}]},
    )
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Well"}]}
    client.send("conversation.item.create", previous_item_id="b", item=answer)
    previous = [client.next("conversation.item.added")["previous_item_id"] for _ in range(4)]
    assert previous == [None, "b", None, "b"]
    assert client.fail("conversation.item.create", item={"id": "b", "type": "message", "role": "user"})["code"] == (
        "item_create_duplicate_item_id"
    )
    assert client.fail("conversation.item.create", previous_item_id="x", item=answer)["code"] == (
        "item_create_invalid_previous_item_id"
    )
    client.send("conversation.item.retrieve", item_id="b")
    assert client.next("conversation.item.retrieved")["item"]["content"] == [{"type": "input_text", "text": "Two"}]
    client.send("conversation.item.delete", item_id="a")
    assert client.next("conversation.item.deleted")["item_id"] == "a"
    client.respond()
    assert [message["content"] for message in llm.requests[0]["messages"]] == ["Two", "Well", "Three"]


def test_a_response_can_override_the_session(client: RealtimeClient, llm: ScriptedLLM) -> None:
    client.update(instructions="Be brief.", tools=[TOOL])
    client.say("Hi!")
    events = client.respond(
        instructions="Be long.",
        output_modalities=["text"],
        tool_choice={"type": "function", "name": "look"},
        max_output_tokens=50,
        metadata={"topic": "x"},
    )
    response = events[-1]["response"]
    assert (response["metadata"], response["max_output_tokens"]) == ({"topic": "x"}, 50)
    request = llm.requests[0]
    assert request["messages"][0]["content"] == "Be long."
    assert request["max_tokens"] == 50
    function = {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}
    assert request["tools"] == [{"type": "function", "function": function}]
    assert request["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    client.respond()
    assert llm.requests[1]["messages"][0]["content"] == "Be brief."
    assert "max_tokens" not in llm.requests[1]


def test_a_response_beside_the_conversation_leaves_it_as_it_is(client: RealtimeClient, llm: ScriptedLLM) -> None:
    client.say("Hi!", id="first")
    given = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Sum up."}]}
    events = client.respond(conversation="none", input=[{"type": "item_reference", "id": "first"}, given])
    assert [message["content"] for message in llm.requests[0]["messages"]] == ["Hi!", "Sum up."]
    assert not any(event["type"].startswith("conversation.") for event in events[2:])
    assert events[-1]["response"]["conversation_id"] is None
    client.respond()
    assert [message["content"] for message in llm.requests[1]["messages"]] == ["Hi!"]


def test_function_calls_are_sent_and_their_outputs_go_to_the_llm(client: RealtimeClient, llm: ScriptedLLM) -> None:
    client.update(tools=[TOOL])
    client.say("Look!")
    calls = [*call_pieces("look", '{"at":', '"it"}'), *call_pieces("look", "{}", id="call_2", index=0)]
    llm.script = Script(["Let me see.", *calls], finish_reason="tool_calls")
    events = client.respond()
    message, first, second = events[-1]["response"]["output"]
    assert message["content"][0]["transcript"] == "Let me see."
    assert (first["name"], first["call_id"], first["arguments"]) == ("look", "call_1", '{"at":"it"}')
    assert (second["call_id"], second["arguments"]) == ("call_2", "{}")
    done = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    assert [(event["call_id"], event["output_index"]) for event in done] == [("call_1", 1), ("call_2", 2)]
    deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert deltas == ['{"at":', '"it"}', "{}"]
    llm.script = Script(["A cat."])
    client.send(
        "conversation.item.create", item={"type": "function_call_output", "call_id": "call_1", "output": "a cat"}
    )
    client.respond()
    asked, answered, output = llm.requests[-1]["messages"]
    assert asked["content"] == "Look!"
    assert answered["content"] == "Let me see."
    assert [call["id"] for call in answered["tool_calls"]] == ["call_1"]  # an LLM rejects calls without outputs
    assert output == {"role": "tool", "tool_call_id": "call_1", "content": "a cat"}


def test_one_response_runs_at_a_time_until_it_is_cancelled(
    client: RealtimeClient, llm: ScriptedLLM, engine: PausableEngine
) -> None:
    llm.script = Script(["One two three. Four", Action.WAIT])
    client.say("Hi!")
    client.send("response.create")
    client.next("response.output_audio.delta")
    error = client.fail("response.create")
    assert error["code"] == "conversation_already_has_active_response"
    client.send("response.cancel")
    done = client.next("response.done")["response"]
    assert (done["status"], done["status_details"]) == (
        "cancelled",
        {"type": "cancelled", "reason": "client_cancelled"},
    )
    assert done["output"][0]["status"] == "incomplete"
    eventually(lambda: engine.streams == 0 and llm.num_cancelled == 1)
    llm.script = Script(["Yes."])
    assert client.respond()[-1]["response"]["status"] == "completed"


def test_a_response_can_be_created_as_soon_as_the_end_of_the_last_one_was_read(
    client: RealtimeClient, llm: ScriptedLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = EventSender.send

    async def send_and_wait(sender: EventSender, type: str, *fields: Any) -> None:
        await send(sender, type, *fields)
        if type == "response.done":  # the client is faster than the server's task
            await asyncio.sleep(0.2)

    monkeypatch.setattr(EventSender, "send", send_and_wait)
    for _ in range(2):
        assert client.respond()[-1]["response"]["status"] == "completed"
    assert "error" not in kinds(client.events)
    assert len(llm.requests) == 2


def test_cancelling_when_no_response_runs_never_ends_the_session(client: RealtimeClient) -> None:
    for _ in range(MAX_INVALID_MESSAGES + 1):
        assert client.fail("response.cancel")["code"] == "response_cancel_not_active"
    client.update()


def test_a_response_is_cancelled_before_the_llm_writes(client: RealtimeClient, llm: ScriptedLLM) -> None:
    llm.script = Script([Action.SILENCE, Action.WAIT])
    client.send("response.create")
    client.next("response.created")
    client.send("response.cancel")
    done = client.next("response.done")["response"]
    assert (done["status"], done["output"]) == ("cancelled", [])


def test_a_truncated_answer_ends_with_the_word_that_was_played(client: RealtimeClient, llm: ScriptedLLM) -> None:
    text = "One. Two. Three. Four. Five."
    llm.script = Script([text])
    client.update(audio={"output": {"timestamp_granularities": ["word", "segment"]}})
    client.say("Count!")
    events = client.respond()
    words = [word for event in events if event["type"] == "response.output_audio.words" for word in event["words"]]
    assert [word["word"] for word in words] == text.split()
    segments = [event["segment"] for event in events if event["type"] == "response.output_audio.segment"]
    assert [segment["text"] for segment in segments] == text.split()
    item = events[-1]["response"]["output"][0]
    position = {"item_id": item["id"], "content_index": 0}

    def transcript() -> str:
        client.send("conversation.item.retrieve", item_id=item["id"])
        found: str = client.next("conversation.item.retrieved")["item"]["content"][0]["transcript"]
        return found

    played_ms = round(1000 * segments[2]["end"])
    client.send("conversation.item.truncate", **position, audio_end_ms=played_ms)
    assert client.next("conversation.item.truncated")["audio_end_ms"] == played_ms
    assert transcript() == "One. Two. Three."
    client.say("Go on.")
    client.respond()
    assert llm.requests[-1]["messages"][1] == {"role": "assistant", "content": "One. Two. Three."}
    client.send("conversation.item.truncate", **position, audio_end_ms=60_000)  # the whole answer was played
    client.next("conversation.item.truncated")
    assert transcript() == text
    assert client.fail("conversation.item.truncate", **{**position, "content_index": 1}, audio_end_ms=0)["param"] == (
        "content_index"
    )


def test_an_answer_that_reaches_a_limit_is_incomplete(client: RealtimeClient, llm: ScriptedLLM) -> None:
    for reason, shown in (("length", "max_output_tokens"), ("content_filter", "content_filter")):
        llm.script = Script(["One two"], finish_reason=reason)
        done = client.respond()[-1]["response"]
        assert (done["status"], done["status_details"]["reason"]) == ("incomplete", shown)


def test_without_an_llm_the_session_ends_with_a_hint() -> None:
    with (
        closing(PausableEngine()) as engine,
        serving(engine) as server,
        connect_websocket(server, PATH) as socket,
    ):
        error = socket.receive_json()["error"]
        assert error["code"] == "llm_not_configured"
        assert "--llm" in error["message"]
        assert socket.closed() == 1008


def test_keys_are_needed_and_may_be_a_subprotocol(engine: PausableEngine, llm: ScriptedLLM) -> None:
    settings = Settings(llm=llm.url, api_keys=["k1"])
    with serving(engine, settings) as server:
        with pytest.raises(Exception, match="401"), realtime(server):
            pass
        with realtime(server, subprotocols=["realtime", "openai-insecure-api-key.k1"]) as client:
            assert client.socket.connection.subprotocol == "realtime"
        with realtime(server, additional_headers={"Authorization": "Bearer k1"}) as client:
            assert json.dumps(client.respond()).count("response.done") == 1


def test_the_example_of_the_documentation_saves_an_answer(
    server: RunningServer, llm: ScriptedLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs/conversation.md").read_text()
    found = re.search(r"```\n(import base64, json, wave\n.*?)```", page, re.DOTALL)
    assert found
    monkeypatch.chdir(tmp_path)
    exec(found[1].replace("127.0.0.1:8000", f"127.0.0.1:{server.port}"), {})
    with wave.open(str(tmp_path / "answer.wav")) as file:
        assert (file.getframerate(), file.getnchannels()) == (24_000, 1)
        assert file.getnframes() >= 5 * CHUNK_SAMPLES
    assert llm.requests[0]["messages"][0] == {"role": "system", "content": "Be brief."}
