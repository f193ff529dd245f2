# SPDX-License-Identifier: Apache-2.0
"""Times of words and characters in all APIs: complete, in order, and never later than their audio."""

import asyncio
import base64
import json
from typing import Any

import httpx
import numpy as np
import pytest

from polyvox.alignment import SpeechTimeline, TimedText, Times
from polyvox.audio.samples import Samples
from polyvox.server.synthesis.timestamps import AlignmentScheduler, WebSocketAlignment
from polyvox.text.segment_text import SegmentText
from server.live_server import RunningServer
from server.websocket_clients import WebSocketClient, connect_websocket

pytestmark = pytest.mark.slow

TEXT = "It is 15 km away. “Really?” Yes, *really*, Dr. Lee."
WORDS = ["It", "is", "15", "km", "away.", "“Really?”", "Yes,", "*really*,", "Dr.", "Lee."]
SPOKEN = 'It is fifteen kilometers away. "Really?" Yes, really, Doctor Lee.'
BYTES_PER_SECOND = 48_000
SPEECH = "/v1/text-to-speech/heart"


def check_words(words: list[dict[str, Any]]) -> None:
    assert [word["word"].strip("*,") for word in words] == [word.strip("*,") for word in WORDS]
    end = 0.0
    for word in words:
        assert TEXT[word["text_start"] : word["text_end"]] == word["word"]
        assert end <= word["start"] <= word["end"]
        end = word["end"]


def sse(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    body = {"input": TEXT, "response_format": "pcm", "stream_format": "sse", "seed": 3, **fields}
    answer = client.post("/v1/audio/speech", json=body)
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line]


def test_events_have_words_before_their_audio_and_segments_at_their_end(client: httpx.Client) -> None:
    events = sse(client, timestamp_granularities=["word", "segment"])
    words: list[dict[str, Any]] = []
    segments: list[dict[str, Any]] = []
    seconds = 0.0
    for event in events:
        match event["type"]:
            case "speech.audio.words":
                assert event["estimated"] is True
                assert all(word["start"] >= seconds - 0.001 for word in event["words"])
                words += event["words"]
            case "speech.audio.segment":
                assert event["estimated"] is False
                segments.append(event["segment"])
            case "speech.audio.delta":
                seconds += len(base64.b64decode(event["audio"])) / BYTES_PER_SECOND
    check_words(words)
    assert [segment["text"] for segment in segments] == ["It is 15 km away.", "“Really?”", "Yes, *really*, Dr. Lee."]
    assert segments[-1]["end"] == pytest.approx(seconds, abs=0.001)
    assert segments[1]["start"] == pytest.approx(segments[0]["end"] + 0.25, abs=0.001)
    assert [segment["id"] for segment in segments] == [0, 1, 2]


def test_speed_changes_the_times(client: httpx.Client) -> None:
    segments = [
        event["segment"]
        for event in sse(client, timestamp_granularities=["segment"], speed=2.0)
        if event["type"] == "speech.audio.segment"
    ]
    plain = [
        event["segment"]
        for event in sse(client, timestamp_granularities=["segment"])
        if event["type"] == "speech.audio.segment"
    ]
    assert segments[-1]["end"] == pytest.approx(plain[-1]["end"] / 2, abs=0.01)


def test_without_granularities_there_are_no_times(client: httpx.Client) -> None:
    assert {event["type"] for event in sse(client)} == {"speech.audio.delta", "speech.audio.done"}


def test_granularities_need_events(client: httpx.Client) -> None:
    answer = client.post("/v1/audio/speech", json={"input": TEXT, "timestamp_granularities": ["word"]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "timestamp_granularities"
    wrong = {"input": TEXT, "timestamp_granularities": ["letter"], "stream_format": "sse"}
    assert client.post("/v1/audio/speech", json=wrong).status_code == 422


@pytest.mark.parametrize("config", [{"timestamp_granularities": ["word"]}, {"word_timestamps": True}])
@pytest.mark.parametrize("stream_audio", [True, False])
def test_our_websocket_sends_words_before_their_audio(
    config: dict[str, Any], stream_audio: bool, server: RunningServer
) -> None:
    with connect_websocket(server, "/v1/audio/speech/stream") as websocket:
        websocket.send(type="session.config", response_format="pcm", stream_audio=stream_audio, seed=3, **config)
        for piece in (TEXT[:7], TEXT[7:30], TEXT[30:]):
            websocket.send(type="input.text", text=piece)
        websocket.send(type="input.done")
        words, num_bytes = list[dict[str, Any]](), 0
        while True:
            found = websocket.receive()
            if isinstance(found, bytes):
                num_bytes += len(found)
            elif found["type"] == "audio.words":
                assert (found["utterance_index"], found["sentence_index"], found["estimated"]) == (0, 0, True)
                assert all(word["start"] >= num_bytes / BYTES_PER_SECOND - 0.001 for word in found["words"])
                words += found["words"]
            elif found["type"] == "session.done":
                break
    check_words(words)


@pytest.mark.parametrize("granularity", ["sentence", "clause", "token"])
def test_times_count_from_the_start_of_each_file(granularity: str, server: RunningServer) -> None:
    with connect_websocket(server, "/v1/audio/speech/stream") as websocket:
        websocket.send(
            type="session.config",
            response_format="pcm",
            stream_audio=True,
            split_granularity=granularity,
            timestamp_granularities=["word", "segment"],
        )
        websocket.send(type="input.text", text=TEXT)
        websocket.send(type="input.done")
        messages, _ = websocket.until("session.done")
    words = [word for message in messages if message["type"] == "audio.words" for word in message["words"]]
    assert [TEXT[word["text_start"] : word["text_end"]] for word in words] == [word["word"] for word in words]
    assert [word["word"].strip("*,") for word in words] == [word.strip("*,") for word in WORDS]
    segments = [message["segment"] for message in messages if message["type"] == "audio.segment"]
    assert len(segments) > 2
    assert all(0 <= segment["start"] <= 0.3 for segment in segments)  # the pause before it is part of the file


@pytest.mark.parametrize("path", ["stream/with-timestamps", "with-timestamps"])
def test_elevenlabs_http_has_the_times_of_all_characters(path: str, client: httpx.Client) -> None:
    answer = client.post(f"{SPEECH}/{path}?output_format=pcm_24000", json={"text": TEXT, "seed": 7})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    seconds = sum(len(base64.b64decode(line["audio_base64"])) for line in lines) / BYTES_PER_SECOND
    for field, expected in (("alignment", TEXT), ("normalized_alignment", SPOKEN)):
        found = [line[field] for line in lines if line[field] is not None]
        assert "".join(char for alignment in found for char in alignment["characters"]) == expected
        assert [word for alignment in found for word in "".join(alignment["characters"]).split()] == expected.split()
        starts = [start for alignment in found for start in alignment["character_start_times_seconds"]]
        ends = [end for alignment in found for end in alignment["character_end_times_seconds"]]
        assert starts == sorted(starts)
        assert ends == sorted(ends)
        assert ends[-1] >= seconds - 0.001


def speak(websocket: WebSocketClient, text: str, context: str | None = None) -> list[dict[str, Any]]:
    named = {} if context is None else {"context_id": context}
    websocket.send(text=" ", **named)
    for at in range(0, len(text), 5):
        websocket.send(text=text[at : at + 5], **named)
    if context is None:
        websocket.send(text="")
    else:
        websocket.send(flush=True, **named)
        websocket.send(close_context=True, **named)
    return websocket.final(context)[0]


@pytest.mark.parametrize("query", ["", "&sync_alignment=true"])
def test_elevenlabs_websocket_has_the_times_of_all_characters(query: str, server: RunningServer) -> None:
    with connect_websocket(server, f"{SPEECH}/stream-input?output_format=pcm_24000{query}") as websocket:
        messages = speak(websocket, TEXT)
    for field, expected in (("alignment", f" {TEXT}"), ("normalizedAlignment", SPOKEN)):
        pieces, seconds, end = list[str](), 0.0, 0
        for message in messages:
            if alignment := message[field]:
                pieces.append("".join(alignment["chars"]))
                origin = 0 if query else end  # clients add up the alignments
                starts, durations = alignment["charStartTimesMs"], alignment["charDurationsMs"]
                assert starts == sorted(starts)
                assert origin + starts[0] >= end
                assert all(a + b == c for a, b, c in zip(starts, durations, starts[1:], strict=False))
                first = len(pieces[-1]) - len(pieces[-1].lstrip())
                assert not pieces[-1].strip() or origin + starts[first] >= round(seconds * 1000) - 1
                end = origin + starts[-1] + durations[-1]
            seconds += len(base64.b64decode(message["audio"] or "")) / BYTES_PER_SECOND
        assert "".join(pieces) == expected
        assert [word for piece in pieces for word in piece.split()] == expected.split()
        assert end >= round(seconds * 1000) - 1


def test_contexts_have_their_own_times(server: RunningServer) -> None:
    with connect_websocket(server, f"{SPEECH}/multi-stream-input?output_format=pcm_24000") as websocket:
        for context, text in (("a", "Hello there."), ("b", "Good bye.")):
            messages = [message for message in speak(websocket, text, context) if message.get("alignment")]
            assert "".join("".join(message["alignment"]["chars"]) for message in messages) == f" {text}"
            assert messages[0]["alignment"]["charStartTimesMs"][0] < 300


def test_a_client_can_turn_alignments_off(server: RunningServer) -> None:
    with connect_websocket(server, f"{SPEECH}/stream-input?output_format=pcm_24000&sync_alignment=false") as websocket:
        assert all(message["alignment"] is None for message in speak(websocket, TEXT))


def test_other_tasks_run_between_the_alignments_of_utterances() -> None:
    order: list[str] = []

    class RecordingTimeline(SpeechTimeline):
        def push(self, samples: Samples, final: bool) -> TimedText:
            order.append("alignment")
            return super().push(samples, final)

    async def other_task() -> None:
        while order.count("alignment") < 4:
            order.append("other")
            await asyncio.sleep(0)

    async def run() -> None:
        scheduler, audio = AlignmentScheduler(), np.zeros(1920, np.float32)
        timelines = [RecordingTimeline(24_000) for _ in range(4)]
        for timeline in timelines:
            timeline.begin(SegmentText(0, complete=True))
        pushes = [scheduler.push(timeline, audio, False) for timeline in timelines]
        async with asyncio.timeout(5):
            await asyncio.gather(*pushes, other_task())

    asyncio.run(run())
    assert ["alignment", "alignment"] not in [order[at : at + 2] for at in range(len(order))]
    assert order.count("alignment") == 4


def test_rounded_times_add_up() -> None:
    alignment, total = WebSocketAlignment(from_start=False), 0
    for number in range(1, 101):
        times = Times()
        if number % 3:
            times.add("a", (number - 0.5) * 0.0804)
            times.end_at(number * 0.0804)
        found = alignment.message_fields([TimedText(number * 0.0804, times)])["alignment"]
        if found is not None:
            total += found["charStartTimesMs"][-1] + found["charDurationsMs"][-1]
    assert total == 8040
