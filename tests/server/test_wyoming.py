# SPDX-License-Identifier: Apache-2.0
"""The Wyoming protocol: what Home Assistant sends and reads, and clients that do not keep to it."""

import asyncio
import json
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from ipc.engine_processes import eventually
from ipc.fake_engine import LENGTH, SAMPLE_RATE
from polyvox.errors import InvalidRequest
from polyvox.server.server_process import connect_local, create_server
from polyvox.server.settings import Settings
from polyvox.server.settings_sources import load_settings
from polyvox.server.wyoming import listener as listener_module
from polyvox.server.wyoming.announcement import announced
from polyvox.server.wyoming.events import MAX_DATA_BYTES, MAX_LINE_BYTES
from server.fakes import PausableEngine

TIMEOUT = 30.0  # seconds


class WyomingClient:
    """Plain sockets, so that tests can send anything."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT)
        self._file = self.socket.makefile("rb")

    def send(self, type: str, payload: bytes = b"", **data: Any) -> None:
        content = json.dumps(data).encode()
        header = {"type": type, "data_length": len(content), "payload_length": len(payload)}
        self.socket.sendall(json.dumps(header).encode() + b"\n" + content + payload)

    def receive(self) -> tuple[str, dict[str, Any], bytes]:
        """The next event; its type is empty at the end of the connection."""
        line = self._file.readline()
        if not line:
            return "", {}, b""
        header = json.loads(line)
        data = json.loads(self._file.read(header.get("data_length", 0)) or b"{}")
        return header["type"], data, self._file.read(header.get("payload_length", 0))

    def until(self, last: str) -> tuple[list[str], bytes]:
        """The types of all events up to one, and their audio."""
        types, audio = [], b""
        while True:
            type, data, payload = self.receive()
            types.append(type)
            audio += payload
            if type == "audio-chunk":
                assert (data["rate"], data["width"], data["channels"]) == (SAMPLE_RATE, 2, 1)
            if type in (last, ""):
                return types, audio

    def close(self) -> None:
        self._file.close()
        self.socket.close()


@contextmanager
def serving_wyoming(engine: PausableEngine, **settings: Any) -> Iterator[int]:
    """The port of a server."""
    with (
        socket.create_server(("127.0.0.1", 0)) as http,
        socket.create_server(("127.0.0.1", 0)) as wyoming,
    ):
        quick = Settings(**{"drain_timeout": 1.0, **settings})
        server = create_server(connect_local(engine), quick, wyoming=wyoming)
        thread = threading.Thread(target=lambda: server.run(sockets=[http]), daemon=True)
        thread.start()
        try:
            eventually(lambda: (server.state is not None and server.state.health.ready) or threading.Event().wait(0.01))
            yield wyoming.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(TIMEOUT)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def shared_port(shared_engine: PausableEngine) -> Iterator[int]:
    with serving_wyoming(shared_engine, max_text_chars=5000) as port:
        yield port


@pytest.fixture
def client(shared_port: int, engine: PausableEngine) -> Iterator[WyomingClient]:
    assert engine.max_chunks is None
    with closing(WyomingClient(shared_port)) as client:
        yield client


def test_the_server_describes_its_voices_and_languages(client: WyomingClient) -> None:
    client.send("describe")
    type, info, _ = client.receive()
    (program,) = info["tts"]
    assert (type, program["supports_synthesize_streaming"], program["installed"]) == ("info", True, True)
    assert [(voice["name"], voice["languages"]) for voice in program["voices"]] == [
        ("heart", ["en"]),
        ("michael", ["en"]),
    ]
    client.send("ping", text="hello")
    assert client.receive()[:2] == ("pong", {"text": "hello"})


def test_a_text_is_spoken_with_the_chosen_voice(client: WyomingClient, engine: PausableEngine) -> None:
    client.send("synthesize", text="Hello there. How are you?", voice={"name": "michael", "language": "en_US"})
    types, audio = client.until("audio-stop")
    assert (types[0], set(types[1:-1])) == ("audio-start", {"audio-chunk"})
    assert len(audio) > 2 * LENGTH * 960
    assert {(request.voice, request.language) for request in engine.requests} == {("michael", "english")}
    client.send("synthesize", text="Again.")
    assert client.until("audio-stop")[1]


def test_streamed_text_gives_the_same_audio_as_one_text(client: WyomingClient, engine: PausableEngine) -> None:
    text = "Hello there. How are you? Fine, thanks."
    client.send("synthesize", text=text)
    whole = client.until("audio-stop")[1]
    engine.requests.clear()
    client.send("synthesize-start", voice={"name": "heart"})
    for start in range(0, len(text), 3):  # pieces end inside of words
        client.send("synthesize-chunk", text=text[start : start + 3])
    client.send("synthesize", text=text)  # for servers without streaming
    client.send("synthesize-stop")
    types, audio = client.until("synthesize-stopped")
    assert types[-2:] == ["audio-stop", "synthesize-stopped"]
    assert len(audio) == len(whole)
    assert [request.text for request in engine.requests] == ["Hello there.", "How are you?", "Fine, thanks."]


@pytest.mark.parametrize(
    ("fields", "last"), [({"text_format": "text"}, "audio-stop"), ({"text_format": "ssml"}, "error"), ({}, "error")]
)
def test_plain_text_is_not_parsed_as_ssml(fields: dict[str, Any], last: str, client: WyomingClient) -> None:
    client.send("synthesize", text="<speak> is the root.", **fields)
    types = [client.receive()[0]]
    while types[-1] not in ("audio-stop", "error"):
        types.append(client.receive()[0])
    assert types[-1] == last


def test_streamed_text_has_a_format_too(client: WyomingClient) -> None:
    client.send("synthesize-start", text_format="text")
    client.send("synthesize-chunk", text="<speak> is the root.")
    client.send("synthesize-stop")
    assert client.until("synthesize-stopped")[1]


def test_audio_starts_before_the_text_ends(client: WyomingClient) -> None:
    client.send("synthesize-start")
    client.send("synthesize-chunk", text="Hello there. And then we ")
    types = [client.receive()[0] for _ in range(2)]
    assert types == ["audio-start", "audio-chunk"]
    client.send("synthesize-stop")
    assert client.until("synthesize-stopped")[0][-1] == "synthesize-stopped"


def test_text_without_words_and_unknown_events_do_not_make_the_client_wait(client: WyomingClient) -> None:
    client.send("transcribe", payload=b"\0" * 1000, name="other")
    client.send("synthesize-chunk", text="Without a start.")
    client.send("synthesize", text=" ")
    assert client.until("audio-stop")[0] == ["audio-start", "audio-stop"]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ({"text": "Hi.", "voice": {"name": "nobody"}}, "voice_not_found"),
        ({"text": "Hi.", "voice": {"name": 7}}, "invalid_request"),
        ({"text": "Hi.", "voice": "heart"}, "invalid_request"),
        ({"text": 7}, "invalid_request"),
        ({"text": "x" * 5001}, "invalid_request"),
        ({"text": "overloaded"}, "overloaded"),
    ],
)
def test_an_error_is_reported_and_ends_the_connection(data: dict[str, Any], code: str, client: WyomingClient) -> None:
    client.send("synthesize", **data)
    events = [client.receive()]
    while events[-1][0] not in ("error", ""):
        events.append(client.receive())
    assert events[-1][1].get("code") == code
    assert client.receive()[0] == ""


@pytest.mark.parametrize(
    "data",
    [
        b"hello\n",
        b"[]\n",
        b'{"type": 7}\n',
        b'{"type": "describe", "data": [1]}\n',
        b'{"type": "describe", "data": [1], "data_length": 2}\n{}',
        b'{"type": "describe", "data_length": -1}\n',
        b'{"type": "describe", "data_length": %d}\n' % (MAX_DATA_BYTES + 1),
        b'{"type": "x", "payload_length": "1"}\n',
        b"x" * (MAX_LINE_BYTES + 1),
    ],
)
def test_what_is_not_an_event_ends_the_connection_with_an_error(data: bytes, client: WyomingClient) -> None:
    client.socket.sendall(data)
    assert client.receive()[0] == "error"


def test_a_new_text_ends_the_one_before_that_was_not_ended(client: WyomingClient, engine: PausableEngine) -> None:
    for text in ("", "One two. ", "Three"):
        client.send("synthesize-start")
        client.send("synthesize-chunk", text=text)
    client.send("synthesize-stop")
    for _ in range(3):
        assert client.until("synthesize-stopped")[0][-1] == "synthesize-stopped"
    assert [request.text for request in engine.requests] == ["One two.", "Three"]


def test_a_client_that_disconnects_frees_its_stream(shared_port: int, engine: PausableEngine) -> None:
    engine.resume(max_chunks=2)
    client = WyomingClient(shared_port)
    client.send("synthesize", text="Hello there.")
    assert client.receive()[0] == "audio-start"
    eventually(lambda: engine.streams == 1 or threading.Event().wait(0.01))
    client.close()
    eventually(lambda: engine.streams == 0 or threading.Event().wait(0.01))


def test_idle_and_excess_connections_are_closed(engine: PausableEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "MAX_CONNECTIONS", 1)
    with serving_wyoming(engine, websocket_idle_timeout=0.6) as port, closing(WyomingClient(port)) as first:
        first.send("describe")
        assert first.receive()[0] == "info"
        with closing(WyomingClient(port)) as second:
            assert second.receive()[:1] == ("error",)
            assert second.receive()[0] == ""
        assert first.receive()[0] == ""


def test_the_limit_per_address_applies(engine: PausableEngine) -> None:
    with serving_wyoming(engine, max_streams_per_address=1) as port:
        engine.resume(max_chunks=1)
        with closing(WyomingClient(port)) as first, closing(WyomingClient(port)) as second:
            first.send("synthesize", text="Hello there.")
            assert [first.receive()[0] for _ in range(2)] == ["audio-start", "audio-chunk"]
            second.send("synthesize", text="Hello there.")
            assert second.receive()[0] == "audio-start"
            assert second.receive()[1]["code"] == "too_many_requests"
            engine.resume()
            assert first.until("audio-stop")[0][-1] == "audio-stop"


def test_an_utterance_in_progress_finishes_when_the_server_stops(engine: PausableEngine) -> None:
    with serving_wyoming(engine, drain_timeout=20.0) as port:
        engine.resume(max_chunks=1)
        client = WyomingClient(port)
        client.send("synthesize", text="Hello there.")
        assert [client.receive()[0] for _ in range(2)] == ["audio-start", "audio-chunk"]
        threading.Timer(0.3, engine.resume).start()
    with closing(client):
        assert client.until("audio-stop")[0][-1] == "audio-stop"


@pytest.mark.parametrize("address", ["10200", "tcp://:1", "tcp://a:b", "tcp://a:99999"])
def test_an_invalid_address_is_rejected(address: str) -> None:
    with pytest.raises(InvalidRequest, match=r"tcp://0\.0\.0\.0:10200"):
        load_settings({"wyoming": address})


def test_an_announcement_needs_an_address_and_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings({"wyoming": "tcp://[::1]:10200"}).wyoming_address == ("::1", 10200)
    with pytest.raises(InvalidRequest, match="without wyoming"):
        load_settings({"zeroconf": True})
    monkeypatch.setitem(sys.modules, "zeroconf", None)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(InvalidRequest, match=r"pip install '\.\[zeroconf\]' in the clone"),
        announced(listener),
    ):
        pass


def test_the_address_is_announced_until_the_server_stops(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[Any] = []
    caplog.set_level(logging.INFO)

    class Zeroconf:
        def register_service(self, info: SimpleNamespace, allow_name_change: bool) -> None:
            calls.append((info.type, info.port, info.parsed_addresses, allow_name_change))

        def close(self) -> None:
            calls.append("closed")

    def service_info(type: str, name: str, port: int, parsed_addresses: list[str]) -> SimpleNamespace:
        return SimpleNamespace(type=type, name=name, port=port, parsed_addresses=parsed_addresses)

    package = SimpleNamespace(Zeroconf=Zeroconf, ServiceInfo=service_info)
    monkeypatch.setitem(sys.modules, "zeroconf", package)
    with socket.create_server(("127.0.0.1", 0)) as listener, announced(listener):
        port = listener.getsockname()[1]
        assert calls == [("_wyoming._tcp.local.", port, ["127.0.0.1"], True)]
    assert calls[-1] == "closed"
    assert "wyoming announced" in caplog.messages


def test_a_network_without_multicast_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Any) -> None:
        raise OSError(19, "No such device")

    package = SimpleNamespace(Zeroconf=fail, ServiceInfo=lambda *_, **__: None)
    monkeypatch.setitem(sys.modules, "zeroconf", package)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(InvalidRequest, match="multicast: No such device"),
        announced(listener),
    ):
        pass


def test_a_client_that_left_before_it_was_accepted_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio does not know its address then."""
    monkeypatch.setattr(asyncio.StreamWriter, "get_extra_info", lambda *_: None)
    waits_for_engine = asyncio.Event()

    async def connected() -> None:
        waits_for_engine.set()
        await asyncio.Event().wait()

    startup: Any = SimpleNamespace(connected=connected)

    async def serve(listener: socket.socket) -> None:
        wyoming = listener_module.WyomingListener(startup)
        await wyoming.start(listener)
        with socket.create_connection(listener.getsockname(), TIMEOUT) as client:
            await asyncio.wait_for(waits_for_engine.wait(), TIMEOUT)
            assert len(wyoming._tasks) == 1
            await wyoming.close()
            assert client.recv(1) == b""

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(serve(listener))
