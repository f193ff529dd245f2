# SPDX-License-Identifier: Apache-2.0
"""Audio input of /v1/realtime: turns by voice activity and by hand, transcripts, interruptions and failures."""

import asyncio
import base64
import io
import wave
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipc.engine_processes import eventually
from polyvox.audio.g711 import ulaw_bytes
from polyvox.audio.pcm import Pcm, from_pcm, pcm_bytes, to_pcm
from polyvox.audio.resample import resample
from polyvox.server.realtime import session
from polyvox.server.realtime.input_audio import InputAudioBuffer
from polyvox.server.realtime.session_config import AudioFormat
from polyvox.server.realtime.spoken_transcript import PlaybackClock
from polyvox.server.settings import Settings
from server.fakes import CUSTOM, PausableEngine
from server.live_server import RunningServer, serving
from server.realtime_client import RealtimeClient, audio, realtime, texts
from server.scripted_llm import MODEL, Script, ScriptedLLM
from server.scripted_server import Action
from server.scripted_stt import ScriptedSTT, TranscriptScript

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "golden" / "embedded-heart-whole.npz"
RATE = 24_000
SILENCE = np.zeros(RATE, np.int16)  # one second, longer than silence_duration_ms
CHUNK = RATE // 10  # samples of one event
MANUAL = {"input": {"turn_detection": None}}
WANTED = {"input": {"transcription": {"model": "whisper-1", "language": "en"}}}


@pytest.fixture(scope="module")
def speech() -> Pcm:
    return to_pcm(np.load(GOLDEN)["float32.audio0"])


@pytest.fixture(scope="module")
def server_settings(shared_llm: ScriptedLLM, shared_stt: ScriptedSTT) -> Settings:
    return Settings(llm=shared_llm.url, llm_model=MODEL, stt=shared_stt.url)


@pytest.fixture
def client(server: RunningServer, llm: ScriptedLLM, stt: ScriptedSTT) -> Iterator[RealtimeClient]:  # noqa: ARG001
    with realtime(server) as client:
        yield client


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the playback, which does not pass."""
    time = [0.0]
    monkeypatch.setattr(session, "PlaybackClock", lambda: PlaybackClock(lambda: time[0]))
    return time


def append(client: RealtimeClient, *parts: Pcm) -> None:
    pcm = np.concatenate(parts)
    for start in range(0, len(pcm), CHUNK):
        data = base64.b64encode(pcm_bytes(pcm[start : start + CHUNK])).decode()
        client.send("input_audio_buffer.append", audio=data)


def kinds(events: list[dict[str, Any]]) -> list[str]:
    found = [event["type"] for event in events]
    return [kind for index, kind in enumerate(found) if not index or kind != found[index - 1]]


def test_speech_is_transcribed_and_answered(
    client: RealtimeClient, llm: ScriptedLLM, stt: ScriptedSTT, speech: Pcm
) -> None:
    client.update(audio=WANTED)
    append(client, SILENCE, speech, SILENCE)
    events = client.until("response.created")
    assert kinds(events) == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.completed",
        "response.created",
    ]
    started, stopped, committed, added, _, completed, _ = events
    assert len({event["item_id"] for event in (started, stopped, committed, completed)} | {added["item"]["id"]}) == 1
    assert added["item"]["content"] == [{"type": "input_audio", "transcript": None}]
    assert 0 < started["audio_start_ms"] < 1100
    assert stopped["audio_end_ms"] > 1000 + 1000 * len(speech) / RATE
    assert completed["transcript"] == "hello there"
    assert completed["usage"]["type"] == "duration"
    answer = client.until("response.done")
    assert texts(answer) == "Hello there. How are you?"
    assert audio(answer)
    assert llm.requests[0]["messages"] == [{"role": "user", "content": "hello there"}]
    (request,) = stt.requests
    assert ("language", "en") in request.fields
    with wave.open(io.BytesIO(request.file)) as file:
        seconds = (stopped["audio_end_ms"] - started["audio_start_ms"]) / 1000
        assert file.getnframes() / file.getframerate() == pytest.approx(seconds, abs=0.01)


def test_a_turn_by_hand_is_committed_and_answered_on_request(
    client: RealtimeClient, llm: ScriptedLLM, stt: ScriptedSTT, speech: Pcm
) -> None:
    client.update(audio=MANUAL)
    stt.script = TranscriptScript(steps=[Action.WAIT])
    append(client, speech, SILENCE)
    client.send("input_audio_buffer.commit")
    client.send("response.create")
    assert kinds(client.until("response.created")) == [
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
    ]
    assert not llm.requests  # the response waits for the transcript
    stt.release()
    assert client.next("response.done")["response"]["status"] == "completed"
    assert llm.requests[0]["messages"] == [{"role": "user", "content": "hello there"}]
    append(client, speech)
    client.send("input_audio_buffer.clear")
    client.next("input_audio_buffer.cleared")
    assert client.fail("input_audio_buffer.commit")["code"] == "input_audio_buffer_commit_empty"


def test_a_response_that_waits_for_a_transcript_can_be_cancelled(
    client: RealtimeClient, llm: ScriptedLLM, stt: ScriptedSTT, speech: Pcm
) -> None:
    client.update(audio=MANUAL)
    stt.script = TranscriptScript(steps=[Action.WAIT])
    append(client, speech)
    client.send("input_audio_buffer.commit")
    client.send("response.create")
    client.next("response.created")
    client.send("response.cancel")
    assert client.next("response.done")["response"]["status"] == "cancelled"
    assert not llm.requests


def test_speech_interrupts_the_answer(
    client: RealtimeClient, llm: ScriptedLLM, engine: PausableEngine, speech: Pcm
) -> None:
    llm.script = Script(["One two. Three", Action.WAIT])
    client.say("Count!")
    client.send("response.create")
    client.next("response.output_audio.delta")
    append(client, SILENCE, speech)
    done = client.next("response.done")["response"]
    assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "turn_detected")
    eventually(lambda: engine.streams == 0 and llm.num_cancelled == 1)
    llm.script = Script(["Yes?"])
    append(client, SILENCE)
    assert client.next("response.done")["response"]["status"] == "completed"


def test_an_answer_that_still_plays_is_cut_at_the_word_that_was_played(
    now: list[float], server: RunningServer, llm: ScriptedLLM, stt: ScriptedSTT, speech: Pcm
) -> None:
    llm.script = Script(["One. Two. Three. Four."])
    with realtime(server) as client:
        client.update(audio={"output": {"timestamp_granularities": ["segment"]}})
        client.say("Count!")
        events = client.respond()
        item_id = events[-1]["response"]["output"][0]["id"]
        ends = [event["segment"]["end"] for event in events if event["type"] == "response.output_audio.segment"]
        client.respond(conversation="none")  # its audio is not part of the conversation's playback
        now[0] = ends[1]
        append(client, SILENCE, speech, SILENCE)
        truncated = client.next("conversation.item.truncated")
        assert truncated["item_id"] == item_id
        assert truncated["audio_end_ms"] == pytest.approx(1000 * ends[1], abs=1)
        client.next("response.done")
    history = [message["content"] for message in llm.requests[-1]["messages"]]
    assert history == ["Count!", "One. Two.", "hello there"]
    assert len(stt.requests) == 1


def test_a_cancelled_answer_is_cut_where_its_playback_can_be(
    now: list[float], server: RunningServer, llm: ScriptedLLM
) -> None:
    llm.script = Script(["One. Two. Three. ", "Four. Five", Action.WAIT])
    with realtime(server) as client:
        client.update(audio={"output": {"timestamp_granularities": ["segment"]}})
        client.send("response.create")
        ends: list[float] = []
        while len(ends) < 3:
            ends.append(client.next("response.output_audio.segment")["segment"]["end"])
        now[0] = ends[0]
        client.send("response.cancel")
        done = client.next("response.done")["response"]
        assert client.next("conversation.item.truncated")["audio_end_ms"] == pytest.approx(1000 * ends[0], abs=1)
    assert done["output"][0]["content"][0]["transcript"] == "One."


def test_speech_does_not_interrupt_if_the_session_says_so(
    client: RealtimeClient, llm: ScriptedLLM, speech: Pcm
) -> None:
    client.update(audio={"input": {"turn_detection": {"type": "server_vad", "interrupt_response": False}}})
    llm.script = Script(["One two.", Action.WAIT])
    client.say("Count!")
    client.send("response.create")
    client.next("response.output_audio.delta")
    append(client, SILENCE, speech, SILENCE)
    client.next("conversation.item.done")
    llm.release()
    assert client.next("response.done")["response"]["status"] == "completed"
    assert client.next("response.done")["response"]["status"] == "completed"  # to what was said meanwhile
    assert [message["content"] for message in llm.requests[-1]["messages"]] == ["Count!", "One two.", "hello there"]


def test_a_turn_without_words_is_not_answered(
    client: RealtimeClient, llm: ScriptedLLM, stt: ScriptedSTT, speech: Pcm
) -> None:
    client.update(audio=WANTED)
    stt.script = TranscriptScript([" "])
    append(client, SILENCE, speech, SILENCE)
    assert client.next("conversation.item.input_audio_transcription.completed")["transcript"] == ""
    client.say("Hi!")
    client.respond()
    assert [request["messages"] for request in llm.requests] == [[{"role": "user", "content": "Hi!"}]]


@pytest.mark.parametrize("wanted", [True, False])
def test_an_stt_that_fails_is_reported_and_the_session_goes_on(
    wanted: bool, client: RealtimeClient, llm: ScriptedLLM, stt: ScriptedSTT, speech: Pcm
) -> None:
    client.update(audio={"input": {**MANUAL["input"], **(WANTED["input"] if wanted else {})}})
    stt.script = TranscriptScript(status=500, error={"error": {"message": "It broke."}})
    append(client, speech)
    client.send("input_audio_buffer.commit")
    failed = client.next("conversation.item.input_audio_transcription.failed" if wanted else "error")
    assert failed["error"]["code"] == "stt_failed"
    done = client.respond()[-1]["response"]
    assert (done["status"], done["status_details"]["error"]["code"]) == ("failed", "stt_failed")
    client.say("Then I write.")
    assert client.respond()[-1]["response"]["status"] == "completed"
    assert llm.requests[0]["messages"] == [{"role": "user", "content": "Then I write."}]


def test_a_client_that_leaves_cancels_its_transcription(server: RunningServer, stt: ScriptedSTT, speech: Pcm) -> None:
    stt.script = TranscriptScript(steps=[Action.WAIT])
    with realtime(server) as client:
        client.update(audio=MANUAL)
        append(client, speech)
        client.send("input_audio_buffer.commit")
        eventually(lambda: stt.num_active == 1)
    eventually(lambda: stt.num_active == 0)


def test_audio_may_be_telephone_audio_or_part_of_an_item(
    client: RealtimeClient, llm: ScriptedLLM, stt: ScriptedSTT, speech: Pcm
) -> None:
    client.update(audio={"input": {"format": {"type": "audio/pcmu"}, "turn_detection": None}})
    narrow = to_pcm(resample(from_pcm(speech), RATE, 8000))
    data = base64.b64encode(ulaw_bytes(narrow)).decode()
    client.send("input_audio_buffer.append", audio=data)
    client.send("input_audio_buffer.commit")
    content = [{"type": "input_audio", "audio": data}]
    client.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
    client.respond()
    assert [message["content"] for message in llm.requests[0]["messages"]] == ["hello there"] * 2
    for request in stt.requests:
        with wave.open(io.BytesIO(request.file)) as file:
            assert (file.getframerate(), file.getnframes()) == (8000, len(narrow))


@pytest.mark.parametrize("data", ["!", "AAA", 5])
def test_invalid_audio_is_an_error(data: object, client: RealtimeClient) -> None:
    assert client.fail("input_audio_buffer.append", audio=data)["param"] == "audio"


def test_samples_may_be_split_between_events(client: RealtimeClient, stt: ScriptedSTT, speech: Pcm) -> None:
    client.update(audio=MANUAL)
    data = pcm_bytes(speech)
    for start in range(0, len(data), 9999):
        client.send("input_audio_buffer.append", audio=base64.b64encode(data[start : start + 9999]).decode())
    client.send("input_audio_buffer.commit")
    client.next("conversation.item.done")
    eventually(lambda: len(stt.requests) == 1)
    assert stt.requests[0].file.endswith(data)


def test_many_short_or_empty_events_take_no_more_memory_than_their_audio() -> None:
    async def run() -> InputAudioBuffer:
        buffer = InputAudioBuffer(AudioFormat(type="audio/pcm"), None)
        for index in range(10_000):
            await buffer.append(b"" if index % 2 else index.to_bytes(2, "little"))
        return buffer

    buffer = asyncio.run(run())
    assert len(buffer._parts) == 2
    assert buffer.take().pcm.tolist() == list(range(0, 10_000, 2))


def test_an_item_of_the_conversation_is_transcribed_once(client: RealtimeClient, stt: ScriptedSTT, speech: Pcm) -> None:
    client.update(audio=MANUAL)
    stt.script = TranscriptScript(steps=[Action.WAIT])
    append(client, speech)
    client.send("input_audio_buffer.commit")
    item = client.next("input_audio_buffer.committed")["item_id"]
    eventually(lambda: len(stt.requests) == 1)
    client.send("response.create", response={"input": [{"type": "item_reference", "id": item}]})
    client.next("response.created")
    stt.release()
    assert client.next("response.done")["response"]["status"] == "completed"
    assert len(stt.requests) == 1


def test_without_an_stt_the_first_audio_is_an_error(llm: ScriptedLLM, speech: Pcm) -> None:
    settings = Settings(llm=llm.url)
    with closing(PausableEngine()) as engine, serving(engine, settings) as server, realtime(server) as client:
        append(client, speech)
        error = client.next("error")["error"]
        assert error["code"] == "stt_not_configured"
        assert "--stt" in error["message"]
        client.say("Hi!")
        assert client.next("conversation.item.done")  # and no further errors
        assert [event["type"] for event in client.events].count("error") == 1
        content = [{"type": "input_audio", "audio": base64.b64encode(pcm_bytes(speech)).decode()}]
        client.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
        done = client.respond()[-1]["response"]
        assert done["status_details"]["error"]["code"] == "stt_not_configured"
        assert not llm.requests


def test_a_thinker_that_takes_audio_gets_it(llm: ScriptedLLM, speech: Pcm) -> None:
    info = replace(CUSTOM, takes_conversations=True)
    llm.script = Script(["Hello."], prompt_ids=[1, 2], ids=[[3]])
    with (
        closing(PausableEngine(info)) as engine,
        serving(engine, Settings(llm=llm.url)) as server,
        realtime(server) as client,
    ):
        append(client, SILENCE, speech, SILENCE)
        assert client.next("response.done")["response"]["status"] == "completed"
        (part,) = llm.requests[0]["messages"][0]["content"]
        assert part["type"] == "input_audio"
        with wave.open(io.BytesIO(base64.b64decode(part["input_audio"]["data"]))) as file:
            assert file.getnframes() > len(speech)
