# SPDX-License-Identifier: Apache-2.0
"""Clients that disconnect, read slowly or are too many affect only themselves."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from ipc.engine_processes import eventually
from ipc.fake_engine import LENGTH
from polyvox.engine.config import EngineConfig
from polyvox.server.settings import Settings
from polyvox.server.synthesis import service
from polyvox.tts import TTS
from server.fakes import MAX_STREAMS, PausableEngine
from server.live_server import RunningServer, serving
from server.load_storms import begin, storm
from server.websocket_clients import connect_websocket

pytestmark = pytest.mark.slow

PAUSE_AFTER = 24  # chunks of every stream, until `resume`


def count(server: RunningServer, name: str) -> float:
    with server.client() as client:
        lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def test_a_hundred_disconnects_free_everything(engine: PausableEngine) -> None:
    with serving(engine, Settings(max_streams=200)) as server:
        engine.resume(PAUSE_AFTER)
        storm(server, 100)
        eventually(lambda: engine.streams == 0 and not server.state.synthesis.active)
        assert count(server, 'polyvox_aborts_total{reason="disconnect"}') == 100
        engine.resume()
        with server.client() as client:
            assert server.speak(client).status_code == 200


def test_a_disconnect_before_the_first_audio_frees_the_slot(engine: PausableEngine) -> None:
    with serving(engine) as server:
        engine.resume(0)
        connection = begin(server)
        eventually(lambda: engine.streams == 1)
        connection.close()
        eventually(lambda: engine.streams == 0 and not server.state.synthesis.active)


def test_a_disconnect_cancels_the_prefetched_segment(engine: PausableEngine) -> None:
    with serving(engine) as server:
        engine.resume(PAUSE_AFTER)  # enough of the first sentence that the second is begun
        connection = begin(server, "Hi. Ho.", max_new_tokens=1000)
        eventually(lambda: engine.streams == 2)
        connection.close()
        eventually(lambda: engine.streams == 0)


def test_a_disconnect_frees_the_slot_of_a_real_engine(embedded: TTS) -> None:
    with serving(embedded.engine) as server:
        connection = begin(server, "This one goes on for a while, and then for a while more.")
        connection.recv(1000)
        connection.close()
        eventually(lambda: embedded.engine.stats()["slots_free"] == embedded.engine.config.max_streams)


def test_a_slow_reader_pauses_only_its_own_stream(engine: PausableEngine) -> None:
    chunks = 30_000  # 29 MB: more than all buffers between
    with serving(engine) as server, server.client() as client:
        slow = begin(server, receive_buffer=4096, seed=77, max_new_tokens=chunks)
        slow.recv(100)
        for seed in range(5):
            assert len(server.speak(client, seed=seed).content) == LENGTH * 960
        made = -1.0
        while made != (made := engine.stats()["made.77"]):  # until it stands still
            threading.Event().wait(0.2)
        assert 0 < made < chunks
        slow.close()
        eventually(lambda: engine.streams == 0)


def test_a_client_that_stops_reading_is_disconnected_after_the_reader_timeout(engine: PausableEngine) -> None:
    with serving(engine, Settings(reader_timeout=0.5)) as server:
        stalled = begin(server, receive_buffer=4096, max_new_tokens=100_000)
        eventually(lambda: engine.streams == 1)
        eventually(lambda: engine.streams == 0 and not server.state.synthesis.active)
        assert count(server, 'polyvox_aborts_total{reason="timeout"}') == 1
        eventually(lambda: not server.server.server_state.connections)  # aborted, although data is buffered
        stalled.close()


def test_a_client_that_never_reads_a_complete_response_is_disconnected(engine: PausableEngine) -> None:
    with serving(engine, Settings(reader_timeout=0.5)) as server:
        path = "/v1/audio/speech/batch"
        stalled = begin(server, path=path, receive_buffer=4096, max_new_tokens=10_000, items=[{}])  # 26 MB in one send
        eventually(lambda: count(server, "polyvox_requests_total") == 1)
        eventually(lambda: not server.server.server_state.connections)
        stalled.close()


def test_a_websocket_client_that_stops_reading_is_disconnected_after_the_reader_timeout(engine: PausableEngine) -> None:
    with (
        serving(engine, Settings(reader_timeout=0.5)) as server,
        connect_websocket(server, "/v1/audio/speech/stream") as client,
    ):
        client.send(type="session.config", response_format="pcm", stream_audio=True, max_new_tokens=100_000)
        client.send(type="input.text", text="Hi.")
        client.send(type="input.done")
        eventually(lambda: engine.streams == 1)
        eventually(lambda: engine.streams == 0 and not server.state.synthesis.active)
        assert count(server, 'polyvox_aborts_total{reason="timeout"}') == 1
        eventually(lambda: not server.server.server_state.connections)  # aborted, although data is buffered


def test_a_large_body_does_not_block_the_event_loop(engine: PausableEngine) -> None:
    with serving(engine) as server, server.client() as client, ThreadPoolExecutor(1) as pool:
        body = b'{"input": "Hi.", "ignored": "' + b"1" * 12_000_000 + b'"}'
        large = pool.submit(client.post, "/v1/audio/speech", content=body)
        latencies = []
        with server.client() as other:
            while not large.done():
                start = time.monotonic()
                assert other.get("/livez").status_code == 200
                latencies.append(time.monotonic() - start)
        assert large.result().status_code == 200
        assert sorted(latencies)[len(latencies) // 2] < 0.1


def test_requests_beyond_capacity_are_rejected_and_admitted_ones_finish() -> None:
    with closing(PausableEngine(max_streams=3)) as engine, serving(engine) as server, ThreadPoolExecutor(16) as pool:
        engine.resume(PAUSE_AFTER)
        with server.client() as client:
            inside = [begin(server, seed=seed, max_new_tokens=40) for seed in range(3)]
            eventually(lambda: engine.streams == 3)
            rejected = list(pool.map(lambda _: server.speak(client), range(60)))
        assert {response.status_code for response in rejected} == {503}
        # The engine's time, or in a flood up to twice as long, so that clients do not come back all at once.
        assert all(2500 <= int(response.headers["retry-after-ms"]) <= 5000 for response in rejected)
        assert {response.json()["error"]["type"] for response in rejected} == {"overloaded"}
        engine.resume()
        for connection in inside:
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                received += connection.recv(1 << 16)
            assert received.startswith(b"HTTP/1.1 200")
            connection.close()
        eventually(lambda: engine.streams == 0)


def test_requests_beyond_those_that_the_engine_could_accept_are_rejected_before_their_preparation(
    engine: PausableEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MIN_PREPARING", 0)
    with serving(engine, Settings(max_queue=0)) as server, server.client() as client:
        assert server.speak(client).status_code == 200
        monkeypatch.setattr(server.state.synthesis, "num_slots", lambda: 0)
        rejected = server.speak(client)
        assert rejected.status_code == 503
        assert "are being prepared" in rejected.json()["error"]["message"]


def test_in_a_flood_a_rejection_of_the_engine_is_repeated_without_asking_it_again(
    engine: PausableEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "REJECTION_SECONDS", 60.0)
    with serving(engine) as server, server.client() as client:
        engine.max_streams = 0
        for _ in range(service.MAX_REJECTIONS):
            assert server.speak(client).json()["error"]["retry_after"] == 2.5
        engine.max_streams = MAX_STREAMS
        repeated = [server.speak(client) for _ in range(10)]
        assert {response.status_code for response in repeated} == {503}
        assert all(3 <= response.json()["error"]["retry_after"] <= 5 for response in repeated)
        assert server.speak(client, stream=False).status_code == 200  # files are admitted by other rules
        server.state.synthesis._rejections.clear()
        assert server.speak(client).status_code == 200


def test_a_later_sentence_waits_for_a_free_slot() -> None:
    with closing(PausableEngine(max_streams=1)) as engine, serving(engine) as server, server.client() as client:
        response = server.speak(client, "One. Two. Three.", seed=1)
        assert response.status_code == 200
        assert len(response.content) == 3 * LENGTH * 960 + 2 * 12_000


def test_concurrent_requests_of_one_key_are_limited(engine: PausableEngine) -> None:
    settings = Settings(api_keys=["a", "b"], max_streams_per_key=2)
    with serving(engine, settings) as server, server.client() as client:
        engine.resume(PAUSE_AFTER)
        keys = [{"authorization": f"Bearer {name}"} for name in "ab"]
        body = {"input": "Hi.", "response_format": "pcm", "max_new_tokens": 40}
        with (
            client.stream("POST", "/v1/audio/speech", json=body, headers=keys[0]) as first,
            client.stream("POST", "/v1/audio/speech", json=body, headers=keys[0]) as second,
        ):
            rejected = client.post("/v1/audio/speech", json=body, headers=keys[0])
            assert rejected.status_code == 429
            assert int(rejected.headers["retry-after"]) > 0
            assert rejected.headers["retry-after-ms"]
            assert rejected.headers["maximum-concurrent-requests"] == "2"
            with client.stream("POST", "/v1/audio/speech", json=body, headers=keys[1]) as other:
                assert other.status_code == 200
                engine.resume()
                other.read()
            first.read()
            second.read()
        eventually(lambda: client.post("/v1/audio/speech", json=body, headers=keys[0]).status_code == 200)


def test_a_batch_counts_towards_the_limit_of_its_key(engine: PausableEngine) -> None:
    with (
        serving(engine, Settings(max_streams_per_key=3)) as server,
        server.client() as client,
        ThreadPoolExecutor(1) as pool,
    ):
        engine.resume(1)
        other = begin(server)
        eventually(lambda: engine.streams == 1)
        items = [{"input": "Hi.", "max_new_tokens": 2} for _ in range(8)]
        answer = pool.submit(client.post, "/v1/audio/speech/batch", json={"items": items})
        eventually(lambda: engine.streams == 3)
        rejected = server.speak(client)
        assert (rejected.status_code, engine.streams) == (429, 3)
        engine.resume()
        assert answer.result().json()["succeeded"] == 8
        other.close()
        eventually(lambda: not server.state.synthesis.active)
        assert count(server, 'polyvox_requests_total{outcome="overloaded"}') == 1
        # All counts are released, a moment after the responses.
        eventually(lambda: all(server.speak(client).status_code == 200 for _ in range(4)))


def test_a_draining_server_finishes_running_requests(engine: PausableEngine) -> None:
    with serving(engine) as server, server.client() as client:
        engine.resume(PAUSE_AFTER)
        body = {"input": "Hi.", "response_format": "pcm", "max_new_tokens": 40, "seed": 1}
        with client.stream("POST", "/v1/audio/speech", json=body) as response:
            parts = response.iter_raw()
            received = next(parts)
            server.state.synthesis.draining = True  # what the signal does first
            with server.client() as another:
                assert another.get("/readyz").status_code == 503
                assert another.get("/readyz").json()["status"] == "draining"
                assert another.get("/livez").status_code == 200
                assert server.speak(another).status_code == 503
            server.server.should_exit = True
            engine.resume()
            received += b"".join(parts)
        assert len(received) == 40 * 960
        server.thread.join(20)
        assert not server.thread.is_alive()


def test_a_request_beyond_the_drain_timeout_ends_without_a_final_chunk(engine: PausableEngine) -> None:
    with serving(engine) as server:
        engine.resume(PAUSE_AFTER)
        with begin(server, max_new_tokens=40) as connection:
            received = connection.recv(1 << 16)
            server.server.should_exit = True
            server.thread.join(20)
            while part := connection.recv(1 << 16):
                received += part
        assert received.startswith(b"HTTP/1.1 200")
        assert not received.endswith(b"0\r\n\r\n")
        eventually(lambda: engine.streams == 0)


def test_a_full_engine_rejects_with_a_retry_time(embedded: TTS) -> None:
    config = EngineConfig(max_streams=1, max_queue=0)
    with TTS(embedded.model, config) as small, serving(small.engine) as server, server.client() as client:
        paused = small.stream("Hello", live=True)
        paused.append(" there, my friend.")
        began = time.monotonic()
        response = server.speak(client)
        while response.status_code == 200 and time.monotonic() - began < 20:  # until the one that is paused has begun
            response = server.speak(client)
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        paused.cancel()
