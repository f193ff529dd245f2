# SPDX-License-Identifier: Apache-2.0
"""Whole-file responses: bounded in memory, sent from disk, and deleted on every exit path."""

import base64
import errno
import gc
import os
import tempfile
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ipc.engine_processes import eventually
from polyvox.server.settings import Settings
from polyvox.server.settings_sources import load_settings
from polyvox.server.synthesis.spool import Spool, SpooledFile, SpoolFull
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving
from server.load_storms import begin
from server.websocket_clients import connect_websocket

CHUNK = 960  # bytes of pcm
NUM_CHUNKS = 4000  # 3.8 MB of pcm, 80 seconds
MAX_BYTES = 8_000_000


def open_files(folder: Path) -> list[str]:
    """Files of this process in a folder; unnamed ones too."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(entry))
        except OSError:  # closed meanwhile
            continue
    return [path for path in found if path.startswith(str(folder))]


@pytest.fixture
def files(engine: PausableEngine, tmp_path: Path) -> Iterator[RunningServer]:
    settings = Settings(spool_dir=tmp_path, max_spool_bytes=MAX_BYTES, reader_timeout=5)
    with serving(engine, settings) as server:
        yield server
        eventually(lambda: server.state.synthesis.spool.num_bytes == 0)
        assert open_files(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def speak(client: httpx.Client, **fields: object) -> httpx.Response:
    body = {"input": "Hi.", "stream": False, "seed": 1, "max_new_tokens": NUM_CHUNKS, **fields}
    return client.post("/v1/audio/speech", json=body)


def test_the_total_size_of_files_is_limited() -> None:
    limited = Spool(None, 100)
    first, second = SpooledFile(limited), SpooledFile(limited)
    first.write(b"x" * 60)
    first.seek(0)
    first.write(b"y" * 60)  # overwrites
    assert limited.num_bytes == 60
    second.write(b"x" * 40)
    with pytest.raises(SpoolFull, match=r"share of max_spool_bytes \(100\)"):
        second.write(b"x")
    first.close()
    first.close()
    second.write(b"x")
    assert limited.num_bytes == 41
    del second
    gc.collect()
    assert limited.num_bytes == 0


def test_a_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class FullFile:
        def tell(self) -> int:  # vocabulary: allow (the file protocol)
            return 0

        def write(self, _: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def close(self) -> None:
            pass

    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", lambda *_, **__: FullFile())
    with (
        pytest.raises(SpoolFull, match="cannot be stored: No space left on device"),
        SpooledFile(Spool(None, 9)) as file,
    ):
        file.write(b"x")


def test_the_spool_folder_must_be_writable(tmp_path: Path) -> None:
    assert load_settings({"spool_dir": str(tmp_path)}).spool_dir == tmp_path
    with pytest.raises(ValueError, match="must be a writable folder"):
        Settings(spool_dir=tmp_path / "missing")


@pytest.mark.parametrize("format", ["wav", "flac", "m4a"])
def test_a_large_file_is_sent_from_disk(format: str, files: RunningServer, tmp_path: Path) -> None:
    with (
        files.client() as client,
        client.stream(
            "POST",
            "/v1/audio/speech",
            json={"input": "Hi.", "stream": False, "response_format": format, "max_new_tokens": 2 * NUM_CHUNKS},
        ) as response,
    ):
        parts = response.iter_raw()
        received = len(next(parts))
        assert len(open_files(tmp_path)) == 1
        received += sum(map(len, parts))
        assert received == int(response.headers["content-length"]) > 1 << 20


def test_a_whole_file_has_the_samples_of_a_stream(files: RunningServer) -> None:
    with files.client() as client:
        whole = speak(client, response_format="wav").content
        streamed = speak(client, response_format="pcm", stream=True).content
        assert whole[44:] == streamed
        assert len(streamed) == NUM_CHUNKS * CHUNK


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/speech/batch"])
def test_a_client_that_disconnects_leaves_no_file(path: str, files: RunningServer, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"stream": False, "max_new_tokens": NUM_CHUNKS, "response_format": "wav"}
    if path.endswith("batch"):
        fields |= {"items": [{}]}
    with begin(files, path=path, receive_buffer=4096, **fields) as connection:
        connection.recv(1000)
        assert len(open_files(tmp_path)) == 1
    eventually(lambda: not files.state.synthesis.active)  # the fixture checks the files


def test_a_client_that_stops_reading_a_file_leaves_none(engine: PausableEngine, tmp_path: Path) -> None:
    with serving(engine, Settings(spool_dir=tmp_path, reader_timeout=0.3)) as server:
        fields: dict[str, Any] = {"stream": False, "response_format": "wav", "max_new_tokens": 1200}
        with begin(server, receive_buffer=4096, **fields) as stalled:
            stalled.recv(1000)
            assert len(open_files(tmp_path)) == 1
            eventually(lambda: open_files(tmp_path) == [])
            eventually(lambda: server.state.synthesis.spool.num_bytes == 0)  # counted after the file is closed


@pytest.mark.parametrize("format", ["wav", "mp3"])
def test_a_file_beyond_the_limit_is_rejected_before_anything_is_sent(format: str, engine: PausableEngine) -> None:
    with serving(engine, Settings(max_spool_bytes=1_000_000)) as server, server.client() as client:
        rejected = speak(client, response_format=format, sample_rate=48_000, max_new_tokens=2 * NUM_CHUNKS)
        assert rejected.status_code == 503
        assert rejected.json()["error"]["code"] == "spool_full"
        assert int(rejected.headers["retry-after"]) > 0
        eventually(lambda: server.state.synthesis.spool.num_bytes == 0)
        assert speak(client, response_format=format, max_new_tokens=10).status_code == 200
        eventually(lambda: engine.streams == 0)


def test_server_processes_share_the_limit_and_report_the_size(engine: PausableEngine) -> None:
    with serving(engine, Settings(max_spool_bytes=8_000_000, workers=4)) as server, server.client() as client:
        spool = server.state.synthesis.spool
        spool.resize(2_000_000)
        with pytest.raises(SpoolFull):
            spool.resize(1)
        eventually(lambda: "polyvox_spool_bytes 2e+06" in client.get("/metrics").text or threading.Event().wait(0.05))


def test_items_of_a_batch_beyond_the_limit_fail_alone(engine: PausableEngine) -> None:
    items = [{"max_new_tokens": 10}, {"max_new_tokens": NUM_CHUNKS}, {"max_new_tokens": 20}]
    body = {"input": "Hi.", "response_format": "wav", "items": items}
    with serving(engine, Settings(max_spool_bytes=1_000_000)) as server, server.client() as client:
        response = client.post("/v1/audio/speech/batch", json=body)
        assert [result["status"] for result in response.json()["results"]] == ["success", "error", "success"]
        assert [result["index"] for result in response.json()["results"]] == [0, 1, 2]
        assert response.json()["results"][1]["error"]["code"] == "spool_full"
        sizes = [len(base64.b64decode(response.json()["results"][index]["audio_data"])) for index in (0, 2)]
        assert sizes == [44 + 10 * CHUNK, 44 + 20 * CHUNK]
        assert len(response.content) == int(response.headers["content-length"])
        eventually(lambda: server.state.synthesis.spool.num_bytes == 0)


def test_a_file_as_json_has_the_same_bytes(files: RunningServer) -> None:
    with files.client() as client:
        body = {"text": "Hi.", "seed": 1}
        plain = client.post("/v1/text-to-speech/heart?output_format=wav_48000", json=body)
        as_json = client.post("/v1/text-to-speech/heart/with-timestamps?output_format=wav_48000", json=body)
        assert base64.b64decode(as_json.json()["audio_base64"]) == plain.content
        assert as_json.json()["alignment"]["characters"] == list("Hi.")


def test_a_websocket_sends_a_large_file_in_several_frames(files: RunningServer) -> None:
    with connect_websocket(files, "/v1/audio/speech/stream") as client:
        client.send(type="session.config", response_format="wav", max_new_tokens=NUM_CHUNKS)
        client.send(type="input.text", text="Hi.")
        client.send(type="input.done")
        frames = []
        while isinstance(found := client.receive(), bytes) or found["type"] != "audio.done":
            frames += [found] if isinstance(found, bytes) else []
        assert [len(frame) for frame in frames[:-1]] == [1000 * 1024] * 3
        assert found["total_bytes"] == sum(map(len, frames)) == 44 + NUM_CHUNKS * CHUNK


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/speech/batch"])
def test_memory_does_not_grow_with_the_length_of_a_file(path: str, engine: PausableEngine) -> None:
    body = {"input": "Hi.", "stream": False, "response_format": "wav", "max_new_tokens": 2 * NUM_CHUNKS}
    if path.endswith("batch"):
        body = {**body, "items": [{}]}
    with serving(engine) as server, server.client() as client:
        speak(client, max_new_tokens=10)  # imports and caches
        gc.collect()
        tracemalloc.start()
        try:
            with client.stream("POST", path, json=body) as response:
                received = sum(map(len, response.iter_raw()))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert received > 7_500_000
        assert peak < 5_000_000
