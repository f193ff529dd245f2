# SPDX-License-Identifier: Apache-2.0
"""Voices over HTTP: lists, uploads, removal, and speech with them; real cloning on a tiny Base checkpoint."""

import base64
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from conftest import Loaded
from ipc.fake_engine import ABOUT
from polyvox.audio import encode
from polyvox.audio.samples import Samples
from polyvox.models.request import ClonedVoice
from polyvox.server.settings import Settings
from polyvox.server.synthesis import service
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving
from server.websocket_clients import connect_websocket
from voices.factories import MODEL, cloned

pytestmark = pytest.mark.slow


@pytest.fixture
def engine() -> Iterator[PausableEngine]:
    with closing(PausableEngine(ABOUT)) as engine:
        yield engine


@pytest.fixture
def server(engine: PausableEngine, tmp_path: Path) -> Iterator[RunningServer]:
    settings = Settings(
        voices_dir=tmp_path / "voices", max_recording_bytes=200_000, max_recording_seconds=5, max_body_bytes=400_000
    )
    with serving(engine, settings) as running:
        yield running


def recording(seconds: float = 2.0, format: str = "flac") -> bytes:
    time = np.arange(int(seconds * 24_000)) / 24_000
    voice = 0.3 * np.sin(2 * np.pi * 140 * time) * (1 + np.sin(2 * np.pi * 3 * time)) / 2
    return encode(voice.astype(np.float32), 24_000, format)


def test_a_long_recording_is_cut_with_a_notice(tmp_path: Path) -> None:
    info = replace(ABOUT, max_reference_seconds=3.0)
    settings = Settings(voices_dir=tmp_path / "voices")
    sample = {"audio_sample": ("a.flac", recording(4.0))}
    with (
        closing(PausableEngine(info)) as engine,
        serving(engine, settings) as server,
        server.client() as client,
    ):
        added = client.post("/v1/audio/voices", data={"name": "Long", "ref_text": "What is said."}, files=sample)
    assert added.status_code == 201
    assert added.headers["x-polyvox-notice"].endswith("its best 3.0 s are used. The transcript is ignored.")
    assert added.json()["seconds"] == pytest.approx(3.0, abs=0.1)
    assert added.json()["ref_text"] is None


def test_a_voice_can_be_added_used_and_removed(
    engine: PausableEngine, server: RunningServer, client: httpx.Client
) -> None:
    assert client.get("/v1/audio/voices").json() == {"object": "list", "voices": [], "data": []}
    fields = {"name": "Anna", "consent": "by letter", "ref_text": "What is said.", "speaker_description": "warm"}
    added = client.post("/v1/audio/voices", data=fields, files={"audio_sample": ("../anna.flac", recording())})
    assert added.status_code == 201
    body = added.json()
    assert (body["id"], body["name"], body["object"], body["type"]) == ("Anna", "Anna", "audio.voice", "audio_sample")
    assert (body["consent"], body["ref_text"], body["mode"]) == ("by letter", "What is said.", "in context")
    assert body["seconds"] == pytest.approx(2.0)
    assert body["created_at"] > 1_700_000_000
    listed = client.get("/v1/audio/voices").json()
    assert listed["voices"] == listed["data"] == [body]
    assert client.get("/v1/audio/voices/anna").json() == body
    for name in ("anna", "Anna", body["content_id"], {"id": "Anna"}, "alloy", "shimmer", None):
        assert server.speak(client, voice=name).status_code == 200
        voice = engine.requests[-1].voice
        assert isinstance(voice, ClonedVoice)
        assert voice.transcript == "What is said."
    unknown = server.speak(client, voice="bob")
    assert unknown.status_code == 404
    assert "Anna" in unknown.json()["error"]["message"]
    removed = client.delete("/v1/audio/voices/Anna")
    assert removed.json() == {"id": "Anna", "object": "audio.voice.deleted", "deleted": True}
    assert client.delete("/v1/audio/voices/Anna").status_code == 404
    assert server.speak(client, voice="Anna").status_code == 404


def test_a_voice_can_be_an_embedding_in_json_or_in_a_form(client: httpx.Client) -> None:
    body = {"name": "numbers", "speaker_embedding": [0.5, 1, 2, 3], "consent": "mine"}
    assert client.post("/v1/audio/voices", json=body).json()["type"] == "embedding"
    form = {"name": "form", "speaker_embedding": "[1, 2, 3, 4.5]"}
    assert client.post("/v1/audio/voices", data=form, files={"x": b""}).status_code == 400  # a file of another name
    assert (
        client.post("/v1/audio/voices", files={name: (None, value) for name, value in form.items()}).status_code == 201
    )
    sample = {"name": "json", "audio_sample": "data:audio/flac;base64," + base64.b64encode(recording()).decode()}
    assert client.post("/v1/audio/voices", json=sample).status_code == 201
    assert [voice["name"] for voice in client.get("/v1/audio/voices").json()["voices"]] == ["form", "json", "numbers"]


@pytest.mark.parametrize(("embedding", "status"), [("[" * 50_000, 400), ("[]," * 100_000, 413), ("[NaN]", 400)])
def test_an_embedding_in_a_form_is_limited(client: httpx.Client, embedding: str, status: int) -> None:
    files = {"name": (None, "form"), "speaker_embedding": (None, embedding)}
    assert client.post("/v1/audio/voices", files=files).status_code == status


def test_an_existing_voice_is_replaced_only_on_request(client: httpx.Client) -> None:
    body: dict[str, Any] = {"name": "anna", "speaker_embedding": [1, 2, 3, 4]}
    first = client.post("/v1/audio/voices", json=body).json()
    again = client.post("/v1/audio/voices", json={**body, "speaker_embedding": [4, 3, 2, 1]})
    assert again.status_code == 409
    replaced = client.post("/v1/audio/voices", json={**body, "speaker_embedding": [4, 3, 2, 1], "replace": True})
    assert replaced.status_code == 201
    assert replaced.json()["content_id"] != first["content_id"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 422, "name"),
        ({"name": "anna"}, 400, "audio_sample"),
        ({"name": "../anna", "speaker_embedding": [1, 2, 3, 4]}, 400, "name"),
        ({"name": "default", "speaker_embedding": [1, 2, 3, 4]}, 400, "name"),
        ({"name": "anna", "speaker_embedding": [1, 2]}, 400, "speaker_embedding"),
        ({"name": "anna", "speaker_embedding": ["x"]}, 422, "speaker_embedding"),
        ({"name": "anna", "audio_sample": "AAAA", "speaker_embedding": [1, 2, 3, 4]}, 400, "audio_sample"),
        ({"name": "anna", "audio_sample": "AAAA"}, 400, "audio_sample"),
        (
            {"name": "anna", "speaker_embedding": [1] * 4, "speaker_description": "\x1b"},
            400,
            "speaker_description",
        ),
        ({"name": "anna", "audio_sample": "not base64!"}, 400, "audio_sample"),
        ({"name": "anna", "audio_sample": base64.b64encode(bytes(210_000)).decode()}, 400, "audio_sample"),
    ],
)
def test_an_invalid_voice_is_rejected(body: object, status: int, param: str, client: httpx.Client) -> None:
    response = client.post("/v1/audio/voices", json=body)
    assert response.status_code == status, response.text
    assert response.json()["error"]["param"] == param
    assert client.get("/v1/audio/voices").json()["voices"] == []


def test_only_the_first_seconds_of_a_recording_are_read(client: httpx.Client) -> None:
    sample = {"audio_sample": recording(8.0)}
    added = client.post("/v1/audio/voices", data={"name": "long", "ref_text": "What is said."}, files=sample)
    assert added.status_code == 201
    assert added.headers["x-polyvox-notice"].startswith("The first 5 s of the recording are used.")
    assert (added.json()["seconds"], added.json()["ref_text"]) == (5.0, None)


def test_malformed_and_oversized_uploads_are_rejected(client: httpx.Client) -> None:
    files: dict[str, Any] = {"audio_sample": bytes(500_000)}
    assert client.post("/v1/audio/voices", data={"name": "large"}, files=files).status_code == 413
    for kind in ("multipart/form-data", "multipart/form-data; boundary=x"):
        broken = client.post("/v1/audio/voices", content=b"--x\r\ngarbage", headers={"content-type": kind})
        assert broken.status_code in (400, 422), broken.text
    many = {f"field{number}": "x" for number in range(30)}
    too_many_fields = client.post("/v1/audio/voices", data=many, files={"audio_sample": b""})
    assert too_many_fields.status_code == 400
    files = {"audio_sample": recording()[:300]}
    assert client.post("/v1/audio/voices", data={"name": "cut"}, files=files).status_code == 400
    assert client.get("/v1/audio/voices").json()["voices"] == []


def test_a_voice_of_another_model_is_rejected(server: RunningServer, client: httpx.Client) -> None:
    server.state.voices.library.add("stranger", cloned(1), MODEL)
    assert client.get("/v1/audio/voices").json()["voices"] == []
    response = server.speak(client, voice="stranger")
    assert response.status_code == 400
    assert "Small-Base" in response.json()["error"]["message"]


def test_a_request_may_contain_its_voice(engine: PausableEngine, server: RunningServer, client: httpx.Client) -> None:
    sample = base64.b64encode(recording()).decode()
    fields: dict[str, Any] = {"ref_audio": sample, "ref_text": "What is said.", "task_type": "Base"}
    assert server.speak(client, **fields).status_code == 200
    voice = engine.requests[-1].voice
    assert isinstance(voice, ClonedVoice)
    assert voice.transcript == "What is said."
    assert server.speak(client, **fields, x_vector_only_mode=True).status_code == 200
    voice = engine.requests[-1].voice
    assert isinstance(voice, ClonedVoice)
    assert voice.transcript is None
    for wrong in ({"ref_text": "alone"}, {"ref_audio": [sample, sample]}, {"speaker_embedding": [1.0]}):
        more: dict[str, Any] = wrong
        assert server.speak(client, **more).status_code == 400


def test_a_reference_is_the_same_as_ref_audio_and_ref_text(
    engine: PausableEngine, server: RunningServer, client: httpx.Client
) -> None:
    sample = base64.b64encode(recording()).decode()
    reference = {"audio_path": sample, "text": "What is said."}
    response = server.speak(client, references=[reference])
    assert (response.status_code, response.headers.get("x-polyvox-ignored")) == (200, None)
    voice = engine.requests[-1].voice
    assert isinstance(voice, ClonedVoice)
    assert voice.transcript == "What is said."
    assert server.speak(client, references=[{"audio_path": sample}]).status_code == 200
    voice = engine.requests[-1].voice
    assert isinstance(voice, ClonedVoice)
    assert voice.transcript is None
    with connect_websocket(server, "/v1/audio/speech/stream") as websocket:
        websocket.send(type="session.config", references=[reference], response_format="pcm")
        websocket.send(type="input.text", text="Hello.")
        websocket.send(type="input.done")
        websocket.until("session.done")
    voice = engine.requests[-1].voice
    assert isinstance(voice, ClonedVoice)
    assert voice.transcript == "What is said."


@pytest.mark.parametrize(
    "fields",
    [
        {"references": []},
        {"references": [{"audio_path": "AAAA"}, {"audio_path": "AAAA"}]},
        {"references": [{"text": "What is said."}]},
        {"references": [{"audio_path": "AAAA"}], "ref_audio": "AAAA"},
        {"references": [{"audio_path": "AAAA"}], "ref_text": "What is said."},
    ],
)
def test_a_request_has_at_most_one_reference_and_no_other_recording(
    fields: dict[str, Any], server: RunningServer, client: httpx.Client
) -> None:
    rejected = server.speak(client, **fields)
    assert (rejected.status_code, rejected.json()["error"]["param"]) == (400, "references")


def test_without_any_voice_the_error_says_how_to_provide_one(client: httpx.Client) -> None:
    for voice, status in ((None, 400), ("alloy", 404), ("anna", 404)):
        rejected = client.post("/v1/audio/speech", json={"input": "Hi.", "voice": voice})
        assert rejected.status_code == status
        assert "send ref_audio or speaker_embedding" in rejected.json()["error"]["message"]


def test_unknown_fields_of_an_upload_are_reported(client: httpx.Client) -> None:
    body = {"name": "anna", "speaker_embedding": [1, 2, 3, 4], "type": "prompt"}
    added = client.post("/v1/audio/voices", json=body)
    assert (added.status_code, added.headers["x-polyvox-ignored"]) == (201, "type")


def test_models_that_cannot_clone_name_one_that_can(tmp_path: Path) -> None:
    with (
        closing(PausableEngine()) as engine,
        serving(engine, Settings(voices_dir=tmp_path)) as server,
        server.client() as client,
    ):
        body = {"name": "anna", "speaker_embedding": [1, 2, 3, 4]}
        rejected = client.post("/v1/audio/voices", json=body)
        assert rejected.status_code == 400
        assert "Qwen/Qwen3-TTS-12Hz-1.7B-Base" in rejected.json()["error"]["message"]
        assert [voice["id"] for voice in client.get("/v1/audio/voices").json()["voices"]] == ["heart", "michael"]
        assert client.get("/v1/audio/voices/HEART").json()["type"] == "own"
        assert client.delete("/v1/audio/voices/heart").status_code == 400


def test_a_tiny_base_model_clones_an_upload_and_speaks_with_it(loaded: Loaded, tmp_path: Path) -> None:
    tts = loaded("base", "float32")
    with serving(tts.engine, Settings(voices_dir=tmp_path)) as server, server.client() as client:
        fields = {"name": "anna", "ref_text": "hello there", "consent": "mine"}
        added = client.post(
            "/v1/audio/voices", data=fields, files={"audio_sample": ("anna.mp3", recording(format="mp3"))}
        )
        assert added.status_code == 201, added.text
        assert added.json()["mode"] == "in context"
        kept = server.speak(client, voice="anna", seed=3, max_new_tokens=10)
        assert len(kept.content) > 500
        sample = base64.b64encode(recording(format="mp3")).decode()
        brought = server.speak(client, ref_audio=sample, ref_text="hello there", seed=3, max_new_tokens=10)
        assert brought.content == kept.content
        too_short = server.speak(client, ref_audio=base64.b64encode(recording(0.6)).decode())
        assert too_short.status_code == 400
        assert "between 1 and 30 s" in too_short.json()["error"]["message"]


def test_voices_that_are_being_cloned_count_as_pending_recordings(
    engine: PausableEngine, server: RunningServer, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloning, proceed, clone = threading.Event(), threading.Event(), engine.clone

    def clone_slowly(samples: Samples, transcript: str | None = None) -> ClonedVoice:
        cloning.set()
        assert proceed.wait(60)
        return clone(samples, transcript)

    monkeypatch.setattr(service, "MAX_PENDING_RECORDINGS", 1)
    monkeypatch.setattr(engine, "clone", clone_slowly)
    sample = base64.b64encode(recording()).decode()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.speak, client, ref_audio=sample)
        assert cloning.wait(60)
        assert server.speak(client, ref_audio=sample).status_code == 503
        proceed.set()
        assert first.result().status_code == 200
    assert server.speak(client, ref_audio=sample).status_code == 200
