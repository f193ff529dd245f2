# SPDX-License-Identifier: Apache-2.0
"""The stages of the time to the first packet: in the header Server-Timing, in records and in metrics."""

import json
import re

import httpx
import pytest
from websockets.sync.client import connect

from ipc.engine_processes import eventually
from polyvox.engine.interface import FirstChunkTimes
from polyvox.server.synthesis.first_packet import STAGES, FirstPacketTimer, server_timing
from server.fakes import PausableEngine
from server.live_server import RunningServer

pytestmark = pytest.mark.slow

TIMEOUT = 60.0
TIMES = FirstChunkTimes(
    received_at=14.0, queued_at=14.0, admitted_at=14.5, text_at=14.5, first_frame_at=15.0, decoded_at=17.0
)
WHOLE_TEXT_STAGES = [stage for stage in STAGES if stage != "words"]


def stages_of(response: httpx.Response) -> dict[str, float]:
    """Seconds by stage, of the response's header."""
    found = re.findall(r"(\w+);dur=([\d.]+)", response.headers["server-timing"])
    return {name: float(milliseconds) / 1e3 for name, milliseconds in found}


def test_stages_add_up_to_the_time_from_the_request_to_the_packet() -> None:
    stages = FirstPacketTimer(submitted_at=12.0, chunk=TIMES).stages(arrived_at=10.0, started_at=11.0, now=18.0)
    assert stages == dict(zip(WHOLE_TEXT_STAGES, [1.0, 1.0, 2.0, 0.5, 0.5, 2.0, 1.0], strict=True))
    assert server_timing({"queue": 0.0005, "decode": 2.0}) == "queue;dur=0.50, decode;dur=2000.00"


def test_without_an_http_request_the_stages_begin_with_the_text() -> None:
    stages = FirstPacketTimer(submitted_at=12.0, chunk=TIMES).stages(arrived_at=None, started_at=11.0, now=18.0)
    assert stages is not None
    assert list(stages) == WHOLE_TEXT_STAGES[1:]
    assert sum(stages.values()) == pytest.approx(7.0)


def test_all_times_of_a_whole_text_in_the_engine_are_in_a_stage() -> None:
    """The stream is queued later than received, and the rest of its text is written later than it has a slot."""
    times = FirstChunkTimes(
        received_at=14.0, queued_at=14.25, admitted_at=14.5, text_at=14.75, first_frame_at=15.0, decoded_at=17.0
    )
    timer = FirstPacketTimer(submitted_at=12.0, chunk=times)
    stages = timer.stages(arrived_at=10.0, started_at=11.0, now=18.0)
    assert stages == dict(zip(WHOLE_TEXT_STAGES, [1.0, 1.0, 2.25, 0.25, 0.5, 2.0, 1.0], strict=True))
    assert sum(stages.values()) == 18.0 - 10.0
    assert timer.awaited_in_engine == 0.0  # so the time to first audio contains them, too


def test_waits_for_live_text_are_a_stage_of_their_own() -> None:
    """Two seconds before the submission, three until the first token is known and a quarter until there are enough."""
    times = FirstChunkTimes(
        received_at=14.0, queued_at=17.0, admitted_at=17.5, text_at=17.75, first_frame_at=18.0, decoded_at=19.0
    )
    timer = FirstPacketTimer(live=True, awaited=2.0, submitted_at=13.0, chunk=times)
    stages = timer.stages(arrived_at=None, started_at=12.0, now=20.0)
    assert stages == {
        "words": 5.25, "text": 1.0, "submit": 1.0, "queue": 0.5, "generate": 0.25, "decode": 1.0, "deliver": 1.0
    }  # fmt: skip
    assert sum(stages.values()) == 20.0 - (12.0 - 2.0)  # from the start, which is before the waits


def test_a_packet_that_is_not_of_the_first_segment_has_no_stages() -> None:
    assert FirstPacketTimer(submitted_at=12.0).stages(10.0, 11.0, 18.0) is None


@pytest.mark.parametrize("events", [True, False])
def test_a_streaming_response_has_its_stages_in_the_header_and_in_its_record(
    client: httpx.Client, events: bool
) -> None:
    body = {"input": "Hello there.", "response_format": "pcm", "stream_format": "sse" if events else "audio"}
    response = client.post("/v1/audio/speech", json=body)
    stages = stages_of(response)
    record = client.get(f"/v1/audio/speech/{response.headers['x-request-id']}").json()
    assert list(stages) == list(record["stages"]) == WHOLE_TEXT_STAGES
    assert sum(stages.values()) >= record["first_audio"] - 1e-4  # from the arrival on, before the text is prepared
    assert stages == pytest.approx(record["stages"], abs=1e-5)


def test_a_whole_file_and_speech_without_audio_have_no_stages(client: httpx.Client) -> None:
    whole_file = client.post("/v1/audio/speech", json={"input": "Hello there.", "stream": False})
    silent = client.post("/v1/audio/speech", json={"input": "silence", "response_format": "pcm"})
    assert whole_file.status_code == silent.status_code == 200
    assert "server-timing" not in {*whole_file.headers, *silent.headers}


def test_each_stage_is_counted_once_for_a_request_and_for_live_text(
    server: RunningServer, engine: PausableEngine, client: httpx.Client
) -> None:
    del engine

    def counts() -> dict[str, float]:
        text = client.get("/metrics").text
        found = re.findall(r'polyvox_first_packet_stage_seconds_count{stage="(\w+)"} ([\d.]+)', text)
        return {stage: float(count) for stage, count in found}

    before = counts()
    assert set(before) == set(STAGES)
    client.post("/v1/audio/speech", json={"input": "Hello there.", "response_format": "pcm"})
    url = f"ws://127.0.0.1:{server.port}/v1/audio/speech/stream"
    with connect(url, proxy=None, open_timeout=TIMEOUT) as websocket:
        websocket.send(json.dumps({"type": "session.config", "response_format": "pcm", "stream_audio": True}))
        websocket.send(json.dumps({"type": "input.text", "text": "Hello there."}))
        websocket.send(json.dumps({"type": "input.done"}))
        while b"session.done" not in (message := websocket.recv(TIMEOUT, decode=False)):
            assert message
        done = json.loads(message)
    stages = {stage: duration / 1e3 for stage, duration in done["server_timing"].items()}
    assert list(stages) == list(STAGES[1:])
    record = client.get(f"/v1/audio/speech/{done['request_id']}").json()
    assert record["first_audio"] == pytest.approx(sum(stages.values()) - stages["words"], abs=1e-3)
    expected = {stage: count + (1 if stage in ("request", "words") else 2) for stage, count in before.items()}
    eventually(lambda: counts() == expected)
