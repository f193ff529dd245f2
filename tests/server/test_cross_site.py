# SPDX-License-Identifier: Apache-2.0
"""Foreign web pages, rebound host names and ambiguous requests are rejected; the server's own page works."""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from ipc.fake_engine import ABOUT
from polyvox.server.settings import Settings
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving
from server.websocket_clients import connect_websocket

pytestmark = pytest.mark.slow

FOREIGN = "https://evil.example"
SPEECH, VOICES, SOCKET = "/v1/audio/speech", "/v1/audio/voices", "/v1/audio/speech/stream"
VOICE = {"name": "anna", "speaker_embedding": "[1, 2, 3, 4]", "replace": "true"}


@pytest.fixture(scope="module")
def cloning_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server without keys whose model clones voices."""
    folder: Path = tmp_path_factory.mktemp("voices")
    with closing(PausableEngine(ABOUT)) as engine, serving(engine, Settings(voices_dir=folder)) as server:
        yield server


def multipart(client: httpx.Client, **headers: str) -> httpx.Response:
    return client.post(VOICES, files={name: (None, value) for name, value in VOICE.items()}, headers=headers)


def test_a_foreign_page_cannot_add_replace_or_remove_a_voice(cloning_server: RunningServer) -> None:
    with cloning_server.client() as client:
        assert multipart(client).status_code == 201  # a program sends no origin
        for origin in (FOREIGN, "null", "http://127.0.0.1:1", "http://[broken"):
            refused = multipart(client, origin=origin)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "origin_refused")
            assert "cors_origins" in refused.json()["error"]["message"]
            assert client.delete(f"{VOICES}/anna", headers={"origin": origin}).status_code == 403
            assert client.post(SPEECH, json={"input": "Hi."}, headers={"origin": origin}).status_code == 403
        assert client.get(VOICES, headers={"origin": FOREIGN}).status_code == 200  # browsers hide the response
        assert multipart(client, origin=cloning_server.address).status_code == 201  # the playground


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_voice_is_added_as_json_or_as_a_form_with_a_file_only(
    cloning_server: RunningServer, content_type: str
) -> None:
    body = b'{"name": "anna", "speaker_embedding": [1, 2, 3, 4], "replace": true}'
    headers = {"content-type": content_type} if content_type else {}
    with cloning_server.client() as client:
        refused = client.post(VOICES, content=body, headers=headers)
        assert refused.status_code == 415
        assert "must be application/json or multipart/form-data" in refused.json()["error"]["message"]
        accepted = client.post(VOICES, content=body, headers={"content-type": "application/json; charset=utf-8"})
        assert accepted.status_code == 201


def test_pages_of_allowed_origins_may_call(engine: PausableEngine) -> None:
    for allowed in ([FOREIGN], ["*"]):
        with serving(engine, Settings(cors_origins=allowed)) as server, server.client() as client:
            assert client.post(SPEECH, json={"input": "Hi."}, headers={"origin": FOREIGN}).status_code == 200


def test_a_request_with_a_key_may_come_from_any_origin(engine: PausableEngine) -> None:
    with serving(engine, Settings(api_keys=["key"])) as server, server.client() as client:
        headers = {"origin": "app://desktop", "authorization": "Bearer key"}
        assert client.post(SPEECH, json={"input": "Hi."}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "host",
    (
        "127.0.0.1 192.168.1.5:8000 [::1]:8000 localhost LOCALHOST. tts.localhost:80 studio.local polyvox:8000 "
        f"tts.default.svc.cluster.local host.docker.internal printer.lan {socket.gethostname()}"
    ).split(),
)
def test_addresses_and_private_host_names_are_allowed(host: str, client: httpx.Client) -> None:
    assert client.get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "local.evil.example"])
def test_a_public_host_name_is_rejected_unless_it_is_allowed(
    host: str, server: RunningServer, client: httpx.Client
) -> None:
    for path in ("/v1/models", "/", "/v1/voices/livez"):  # the last one is not a health path
        refused = client.get(path, headers={"host": host})
        assert (refused.status_code, refused.json()["error"]["code"]) == (421, "host_refused")
        assert "allowed_hosts" in refused.json()["error"]["message"]
    assert client.get("/livez", headers={"host": host}).status_code == 200
    upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(f"GET {SOCKET} HTTP/1.1\r\nhost: {host}\r\n{upgrade}{key}\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 421")


def test_allowed_host_names_are_those_of_the_setting(engine: PausableEngine) -> None:
    def statuses(allowed: list[str], keys: list[str]) -> list[int]:
        with serving(engine, Settings(allowed_hosts=allowed, api_keys=keys)) as server, server.client() as client:
            hosts = ("tts.example", "a.tts.example", "evil.example")
            auth = {"authorization": "Bearer key"}
            return [client.get("/v1/models", headers={"host": host, **auth}).status_code for host in hosts]

    assert statuses(["tts.example"], []) == [200, 421, 421]
    assert statuses([".TTS.example"], []) == [200, 200, 421]
    assert statuses(["*"], []) == [200, 200, 200]
    assert statuses([], ["key"]) == [200, 200, 200]  # a page would have to know the key
    assert statuses(["tts.example"], ["key"]) == [200, 421, 421]


def test_the_playground_works_behind_a_proxy_that_rewrites_the_host(engine: PausableEngine) -> None:
    origin = {"origin": "https://tts.example"}
    with serving(engine, Settings(allowed_hosts=["tts.example"])) as server, server.client() as client:
        assert client.post(SPEECH, json={"input": "Hi."}, headers=origin).status_code == 200
        with connect_websocket(server, SOCKET, origin=origin["origin"]):
            pass
        assert client.post(SPEECH, json={"input": "Hi."}, headers={"origin": FOREIGN}).status_code == 403


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        b"content-length: 5\r\ncontent-length: 5\r\n",
        b"content-length: 5\r\ncontent-length: 6\r\n",
        b"content-length: 5, 5\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"transfer-encoding : chunked\r\n",
        b"host: other\r\ncontent-length: 5\r\n",
    ],
)
def test_a_request_with_an_ambiguous_length_or_host_is_rejected_and_its_connection_closed(
    head: bytes, server: RunningServer, engine: PausableEngine
) -> None:
    smuggled = b"0\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(b"POST /v1/audio/speech HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n" + smuggled)
        received = b""
        while part := connection.recv(10_000):
            received += part
    assert received.startswith(b"HTTP/1.1 400")
    assert received.count(b"HTTP/1.1") == 1
    assert not engine.requests
