# SPDX-License-Identifier: Apache-2.0
"""Keys, limits, and recordings by URL and by file."""

import base64
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from ipc.fake_engine import ABOUT, SAMPLE_RATE
from polyvox.errors import InvalidRequest
from polyvox.models.request import ClonedVoice
from polyvox.server import recordings
from polyvox.server.recordings import RecordingReader, is_public
from polyvox.server.settings import Settings
from polyvox.voices import VoiceLibrary
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving
from server.websocket_clients import connect_websocket

pytestmark = pytest.mark.slow


def test_only_public_endpoints_respond_without_a_key(engine: PausableEngine) -> None:
    settings = Settings(api_keys=["right", "other"], public=["voices"])
    with serving(engine, settings) as server, server.client() as client:
        body = {"input": "Hi.", "response_format": "pcm"}
        wrong = [{}, {"authorization": "Bearer wrong"}, {"authorization": "right"}, {"xi-api-key": "righ"}]
        wrong += [{"authorization": "Basic right"}]
        for headers in wrong:
            rejected = client.post("/v1/audio/speech", json=body, headers=headers)
            assert rejected.status_code == 401
            assert rejected.json()["error"]["code"] == "invalid_api_key"
            assert rejected.headers["www-authenticate"] == "Bearer"
        for headers in ({"authorization": "Bearer right"}, {"xi-api-key": "other"}, {"authorization": "bearer  right"}):
            assert client.post("/v1/audio/speech", json=body, headers=headers).status_code == 200
        for path in ("/", "/livez", "/readyz", "/health", "/v1/audio/voices"):
            assert client.get(path).status_code == 200
        for path in ("/v1/models", "/metrics", "/docs", "/openapi.json", "/v1/audio/speech/x", "/nowhere"):
            assert client.get(path).status_code == 401
        assert client.post("/v1/audio/voices", json={}).status_code == 401  # only the list is public
        assert client.delete("/v1/audio/voices/x").status_code == 401
        body = client.get("/metrics", headers={"xi-api-key": "right"}).text
        assert 'polyvox_requests_total{outcome="rejected"} 13.0' in body


def test_callers_without_a_key_see_no_texts_of_public_voices(tmp_path: Path) -> None:
    VoiceLibrary(tmp_path).add(
        "anna",
        ClonedVoice(np.ones(48, np.float32), np.ones((2, 6), np.int64), "a transcript"),
        ABOUT.identity,
        consent="signed by Anna",
        source="anna.wav",
        description="a voice",
    )
    settings = Settings(api_keys=["right"], public=["voices"], voices_dir=tmp_path)
    with closing(PausableEngine(ABOUT)) as engine, serving(engine, settings) as server, server.client() as client:
        public = {"id": "anna", "name": "anna", "object": "audio.voice", "type": "audio_sample"}
        assert client.get("/v1/audio/voices").json()["data"][-1] == client.get("/v1/audio/voices/anna").json() == public
        for path in ("/v1/voices", "/v2/voices", "/v1/voices/anna"):
            body = client.get(path).text
            assert "anna" in body
            for secret in ("a transcript", "signed", "a voice"):
                assert secret not in body
        assert client.get("/v2/voices?search=a%20voice").json()["voices"] == []
        key = {"xi-api-key": "right"}
        assert client.get("/v1/audio/voices/anna", headers=key).json()["consent"] == "signed by Anna"
        assert client.get("/v1/audio/voices", headers=key).json()["data"][-1]["ref_text"] == "a transcript"
        assert client.get("/v1/voices/anna", headers=key).json()["description"] == "a voice"


SOCKETS = ("/v1/audio/speech/stream", *(f"/v1/text-to-speech/heart/{kind}stream-input" for kind in ("", "multi-")))


@pytest.mark.parametrize("path", SOCKETS)
def test_a_web_page_can_send_its_key_as_a_subprotocol(
    path: str, engine: PausableEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(engine, Settings(api_keys=["sk-right", "a/b (50%)"])) as server:
        for proposed, chosen in (
            (["polyvox", "polyvox-key.sk-right"], "polyvox"),
            (["polyvox-key.sk-right", "polyvox"], "polyvox"),
            (["realtime", "openai-insecure-api-key.sk-right", "other"], "realtime"),
            (["polyvox", "polyvox-key.a%2Fb%20%2850%25%29"], "polyvox"),
            (["polyvox-key.sk-right"], None),
        ):
            with connect_websocket(server, path, subprotocols=[Subprotocol(name) for name in proposed]) as websocket:
                assert websocket.connection.subprotocol == chosen
        for wrong in ("polyvox-key.sk-wrong", "sk-right.sk-right", "openai-insecure-api-key.a%2Fb"):
            names = [Subprotocol("polyvox"), Subprotocol(wrong)]
            if "key." not in wrong and "text-to-speech" in path:
                continue  # as good as none, and the first message may have one
            with pytest.raises(InvalidStatus) as rejected, connect_websocket(server, path, subprotocols=names):
                pass
            assert rejected.value.response.status_code == 401
        with connect_websocket(server, f"{path}?api_key=sk-right"):
            pass
    body = [record.getMessage() for record in caplog.records if not record.name.startswith("websockets")]
    assert body
    assert not any("sk-right" in line for line in body)


def test_a_subprotocol_is_selected_when_no_key_is_needed(engine: PausableEngine) -> None:
    with (
        serving(engine) as server,
        connect_websocket(server, SOCKETS[0], subprotocols=[Subprotocol("polyvox")]) as websocket,
    ):
        assert websocket.connection.subprotocol == "polyvox"


def test_a_body_that_is_too_large_or_too_slow_is_rejected(engine: PausableEngine) -> None:
    settings = Settings(max_body_bytes=2000, body_timeout=0.3)
    with serving(engine, settings) as server, server.client() as client:
        assert client.post("/v1/audio/speech", content=b"x" * 3000).status_code == 413
        unsized = client.post("/v1/audio/speech", content=(b"x" * 500 for _ in range(6)))
        assert unsized.status_code == 413
        with socket.create_connection(("127.0.0.1", server.port)) as slow:
            slow.settimeout(20)
            slow.sendall(b"POST /v1/audio/speech HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
            assert slow.recv(100).startswith(b"HTTP/1.1 408")
        assert 'polyvox_timeouts_total{kind="body"} 1.0' in client.get("/metrics").text


UPLOAD = b"POST /v1/audio/speech HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"


@pytest.mark.parametrize(
    "begin", [b"GET /", b"GET / HTTP/1.1\r\nhost: x\r\nx: ", b"GET / HTTP/1.1\r\n", UPLOAD, UPLOAD + b"x: "]
)
def test_headers_that_are_too_large_are_rejected(
    begin: bytes, server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    part = b"x: y\r\n" * 5000 if begin.endswith(b"\n") else b"x" * 30_000
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.settimeout(20)
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\ncookie: " + part[:30_000].strip() + b"\r\n\r\n")
        while b"alive" not in connection.recv(1000):  # one request with large headers is served
            pass
        connection.sendall(begin)
        with suppress(ConnectionError):  # the server closes the connection
            for _ in range(500):
                connection.sendall(part)
                threading.Event().wait(0.01)
            pytest.fail("The server read 15 MB of headers.")
    events = [record for record in caplog.records if getattr(record, "status", None) == 431]
    assert [(record.getMessage(), vars(record)["client"]) for record in events] == [("request rejected", "127.0.0.1")]


def test_a_connection_without_complete_headers_times_out(engine: PausableEngine) -> None:
    answered = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
    with serving(engine, Settings(body_timeout=0.3)) as server:
        for begin in (b"", b"GET /livez HTTP/1.1\r\nho", answered + b"GET /li"):
            with socket.create_connection(("127.0.0.1", server.port)) as idle:
                idle.settimeout(20)
                idle.sendall(begin)
                received = b""
                while part := idle.recv(1000):
                    received += part
                    idle.sendall(b"v")  # drops do not help
                assert received.count(b"HTTP/1.1 200") == begin.count(answered)
        with server.client() as client:
            assert 'polyvox_timeouts_total{kind="headers"} 3.0' in client.get("/metrics").text
        with socket.create_connection(("127.0.0.1", server.port)) as paused:  # one that is being answered is left alone
            engine.resume(1)
            body = b'{"input": "Hi.", "response_format": "pcm", "max_new_tokens": 9}'
            paused.sendall(
                b"POST /v1/audio/speech HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            )
            paused.settimeout(1.0)
            with pytest.raises(TimeoutError):
                list(iter(lambda: paused.recv(1000), b""))
            engine.resume()
            paused.settimeout(20)
            assert paused.recv(1000)


def test_only_pages_of_the_configured_origins_may_call(engine: PausableEngine) -> None:
    with (
        serving(engine, Settings(cors_origins=["https://a.example"], api_keys=["k"])) as server,
        server.client() as client,
    ):
        asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
        allowed = client.options("/v1/audio/speech", headers=asked)
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        rejected = client.post("/v1/audio/speech", json={}, headers={"origin": "https://a.example"})
        assert rejected.status_code == 401
        assert rejected.headers["access-control-allow-origin"] == "https://a.example"
        stranger = client.options("/v1/audio/speech", headers={**asked, "origin": "https://b.example"})
        assert "access-control-allow-origin" not in stranger.headers
    with serving(engine) as server, server.client() as client:
        answer = client.get("/livez", headers={"origin": "https://a.example"})
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("written", ["/tts", "/tts/", "tts"])
def test_the_server_works_behind_a_proxy_with_a_path_prefix(written: str, engine: PausableEngine) -> None:
    with serving(engine, Settings(root_path=written, api_keys=["k"])) as server, server.client() as client:
        body = client.get("/openapi.json", headers={"xi-api-key": "k"}).json()
        assert body["servers"] == [{"url": "/tts"}]
        for before in ("", "/tts"):  # a proxy may take the path away, or leave it
            assert client.get(f"{before}/livez").status_code == 200
            assert client.get(f"{before}/").status_code == 200
            assert client.get(f"{before}/metrics").status_code == 401
            assert client.get(f"{before}/metrics", headers={"xi-api-key": "k"}).status_code == 200
            with connect_websocket(server, f"{before}{SOCKETS[1]}") as websocket:
                websocket.send(text=" ", xi_api_key="k")
        assert client.get("/tts").headers["location"] == f"{server.address}/tts/"
        for path in ("/ttsx/livez", "/tts/tts/livez", "/tts/nowhere"):
            assert client.get(path, headers={"xi-api-key": "k"}).status_code == 404


# Recordings


class Site(BaseHTTPRequestHandler):
    """A web site with responses by path."""

    hits: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.hits.append(self.path)
        location = {"/twice": "/sound", "/inside": "http://inside.example/secret", "/file": "file:///etc/hostname"}
        location |= {"/loop": "/loop", "/elsewhere": "http://other.example/sound"}
        if self.path in location:
            self.send_response(302)
            self.send_header("location", location[self.path])
            self.end_headers()
        elif self.path == "/large":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(bytes(5000))
        elif self.path == "/sound":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"the sound")
        else:
            self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        Site.hits.clear()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


class Names:
    """A name server with a list of answers for each name."""

    def __init__(self, **names: list[str]) -> None:
        self.names = {name.replace("_", "."): answers for name, answers in names.items()}
        self.requests: list[str] = []

    def __call__(self, host: str, _: int) -> list[str]:
        self.requests.append(host)
        answers = self.names[host]
        return [answers.pop(0) if len(answers) > 1 else answers[0]]


def reader(names: Names, **more: Any) -> RecordingReader:
    """Only 127.0.0.1, the address of the site, counts as public."""
    settings = Settings(
        ref_audio_domains=["a.example", "inside.example", ".b.example"], max_recording_bytes=1000, **more
    )
    return RecordingReader(settings, SAMPLE_RATE, names, lambda address: str(address) == "127.0.0.1")


def test_an_allowed_url_is_fetched_and_redirects_are_followed(site: int) -> None:
    names = Names(a_example=["127.0.0.1"], deep_b_example=["127.0.0.1"])
    assert reader(names).find(f"http://a.example:{site}/twice") == b"the sound"
    assert reader(names).find(f"http://deep.b.example:{site}/sound") == b"the sound"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/inside", "only public addresses"),
        ("/file", "a URL at"),
        ("/loop", "redirects"),
        ("/elsewhere", "a URL at"),
        ("/large", "1,000 bytes"),
        ("/none", "404"),
    ],
)
def test_a_url_that_leads_elsewhere_is_rejected(path: str, expected: str, site: int) -> None:
    names = Names(a_example=["127.0.0.1"], inside_example=["10.0.0.1"], other_example=["127.0.0.1"])
    with pytest.raises(InvalidRequest, match=expected):
        reader(names).find(f"http://a.example:{site}{path}")
    assert "/secret" not in Site.hits


def test_a_host_is_resolved_once_and_its_address_pinned(site: int) -> None:
    names = Names(a_example=["127.0.0.1", "10.0.0.1"])
    assert reader(names).find(f"http://a.example:{site}/sound") == b"the sound"
    assert names.requests == ["a.example"]
    with pytest.raises(InvalidRequest, match="only public addresses"):
        reader(names).find(f"http://a.example:{site}/sound")


def test_a_host_with_one_private_address_is_rejected() -> None:
    both = RecordingReader(Settings(ref_audio_domains=["a.example"]), SAMPLE_RATE, lambda *_: ["8.8.8.8", "10.0.0.1"])
    with pytest.raises(InvalidRequest, match="only public addresses"):
        both.find("http://a.example/sound")


@pytest.mark.parametrize(
    "url",
    [
        "http://c.example/x",
        "http://b.example.evil/x",
        "http://xb.example/x",
        "http://a.example@c.example/x",
        "http://me@a.example/x",
        "http://[::1]/x",
        "http://127.0.0.1/x",
        "http://2130706433/x",
        "http://a.example:99999999/x",
        "http://",
        "ftp://a.example/x",
        "gopher://a.example/x",
        "/etc/hostname",
        "C:/x.wav",
    ],
)
def test_a_host_that_is_not_allowed_is_not_resolved(url: str) -> None:
    names = Names()
    with pytest.raises(InvalidRequest):
        reader(names).find(url)
    assert names.requests == []


def test_urls_are_rejected_by_default() -> None:
    with pytest.raises(InvalidRequest, match="URLs are disabled"):
        RecordingReader(Settings(), SAMPLE_RATE).find("https://a.example/x.wav")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "192.0.2.1",
        "198.18.0.1",
        "::1",
        "::",
        "fe80::1",
        "fc00::1",
        "ff02::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
    ],
)
def test_private_addresses_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"])
def test_global_addresses_are_public(address: str) -> None:
    assert is_public(ip_address(address))


def test_a_slow_download_is_aborted_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "FETCH_TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                while not stop.wait(0.05):
                    try:
                        connection.sendall(b"H")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(InvalidRequest, match="cannot be fetched"):
            reader(Names(a_example=["127.0.0.1"])).find(f"http://a.example:{listener.getsockname()[1]}/")
        stop.set()
        thread.join()


def test_files_are_read_only_below_media_root(tmp_path: Path) -> None:
    root, outside = tmp_path / "media", tmp_path / "outside.wav"
    root.mkdir()
    outside.write_bytes(b"secret")
    (root / "a b.wav").write_bytes(b"the sound")
    (root / "large.wav").write_bytes(bytes(1001))
    (root / "link.wav").symlink_to(outside)
    (tmp_path / "media-2").mkdir()
    (tmp_path / "media-2/x.wav").write_bytes(b"secret")
    inside = reader(Names(), media_root=root)
    assert inside.find(f"file://{root}/a%20b.wav") == b"the sound"
    assert inside.find(f"file://localhost{root}/a%20b.wav") == b"the sound"
    for path in (f"{root}/../outside.wav", f"{root}/%2e%2e/outside.wav", f"{root}/link.wav", f"{root}", outside):
        with pytest.raises(InvalidRequest, match="a file under media_root"):
            inside.find(f"file://{path}")
    for path in (f"{tmp_path}/media-2/x.wav", f"{root}/none.wav", f"{root}/a%00.wav"):
        with pytest.raises(InvalidRequest, match="a file under media_root"):
            inside.find(f"file://{path}")
    with pytest.raises(InvalidRequest, match="1,000 bytes"):
        inside.find(f"file://{root}/large.wav")
    for url in (f"file://{root}/a%20b.wav", "file://host/x.wav"):
        with pytest.raises(InvalidRequest, match="URLs are disabled"):
            RecordingReader(Settings(), SAMPLE_RATE).find(url)


def test_a_rejected_recording_is_reported_to_the_client() -> None:
    with closing(PausableEngine(ABOUT)) as base, serving(base) as server, server.client() as client:
        for source in ("https://a.example/x.wav", "file:///etc/hostname", base64.b64encode(b"noise").decode()):
            rejected: httpx.Response = server.speak(client, ref_audio=source)
            assert rejected.status_code == 400
            assert rejected.json()["error"]["param"] == "ref_audio"
