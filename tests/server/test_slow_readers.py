# SPDX-License-Identifier: Apache-2.0
"""Clients that read slowly or not at all: their streams end in time, and other clients are served."""

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from unittest import mock

import pytest

from ipc.engine_processes import eventually
from polyvox.errors import StreamFailed
from polyvox.server import server_process
from polyvox.server.settings import Settings
from polyvox.server.synthesis.reader import MAX_BUFFERED, ReaderTimeout, ReaderTimer
from polyvox.server.synthesis.utterance import Utterance
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving
from server.load_storms import begin
from server.paced_engine import PacedEngine

SENTENCES = 500
LONG_TEXT = "Hi. " * SENTENCES  # 11 MB of pcm: more than all buffers of a connection
SMALL = 4096  # receive buffer in bytes


class FakeClock:
    """A loop whose time is set by the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.loop = asyncio.new_event_loop()
        self.loop.time = lambda: self.now  # type: ignore[method-assign]

    def write(self, timer: ReaderTimer, seconds: float, audio_seconds: float, num_bytes: int = 1 << 20) -> None:
        """A write that blocks for some seconds."""

        async def send() -> None:
            self.now += seconds
            for _ in range(3):  # lets the timeout cancel it
                await asyncio.sleep(0)

        async def write() -> None:
            await timer.write(send(), num_bytes, audio_seconds)

        self.loop.run_until_complete(write())


def test_a_write_takes_at_most_the_reader_timeout_and_the_playing_time_of_the_buffers() -> None:
    clock = FakeClock()
    with closing(clock.loop):
        timer = ReaderTimer(10.0)
        with pytest.raises(ReaderTimeout) as failure:
            clock.write(timer, 12.0, audio_seconds=60.0, num_bytes=60 * MAX_BUFFERED)  # buffers of one second
        assert failure.value.problem == "reader"
        timer = ReaderTimer(10.0)
        clock.write(timer, 12.0, audio_seconds=60.0, num_bytes=15 * MAX_BUFFERED)  # of four seconds


def test_all_writes_take_at_most_the_playing_time_and_the_reader_timeout() -> None:
    clock = FakeClock()
    with closing(clock.loop):
        timer = ReaderTimer(10.0)
        for second in range(100):  # as fast as it plays
            clock.write(timer, 1.0, audio_seconds=second + 1.0)
        for second in range(9):  # half as fast
            clock.write(timer, 2.0, audio_seconds=100.0 + second + 1.0)
        with pytest.raises(ReaderTimeout) as failure:
            clock.write(timer, 2.0, audio_seconds=110.0)
        assert failure.value.problem == "reader_slow"


def test_the_time_between_writes_does_not_count() -> None:
    clock = FakeClock()
    with closing(clock.loop):
        timer = ReaderTimer(10.0)
        for second in range(100):
            clock.now += 30.0  # the client waits for audio
            clock.write(timer, 1.0, audio_seconds=second + 1.0)


def test_writes_that_do_not_wait_share_one_timer() -> None:
    clock = FakeClock()
    with closing(clock.loop), mock.patch.object(clock.loop, "call_at", wraps=clock.loop.call_at) as call_at:
        timer = ReaderTimer(10.0)
        for second in range(50):
            clock.write(timer, 0.0, audio_seconds=second + 1.0)
        assert call_at.call_count == 1


def test_a_cancelled_write_is_not_a_timeout() -> None:
    async def write() -> None:
        await ReaderTimer(10.0).write(asyncio.Event().wait(), 1, 1.0)  # type: ignore[arg-type]

    async def main() -> None:
        task = asyncio.create_task(write())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def open_websocket(server: RunningServer, path: str, *messages: dict[str, object]) -> socket.socket:
    """A WebSocket with a small receive buffer, after its handshake and some messages."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", server.port))
    head = ["upgrade: websocket", "connection: upgrade", "sec-websocket-version: 13"]
    head += ["sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==", f"host: 127.0.0.1:{server.port}"]
    connection.sendall("\r\n".join([f"GET {path} HTTP/1.1", *head, "", ""]).encode())
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(1)
    for message in messages:
        data = json.dumps(message).encode()
        connection.sendall(b"\x81\xfe" + len(data).to_bytes(2, "big") + b"\0\0\0\0" + data)
    return connection


def read_to_end(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


def begin_http(server: RunningServer) -> socket.socket:
    return begin(server, LONG_TEXT, receive_buffer=SMALL)


def begin_events(server: RunningServer) -> socket.socket:
    return begin(server, LONG_TEXT, receive_buffer=SMALL, stream_format="sse")


def begin_websocket(server: RunningServer) -> socket.socket:
    config = {"type": "session.config", "response_format": "pcm", "stream_audio": True}
    text: dict[str, object] = {"type": "input.text", "text": LONG_TEXT}
    return open_websocket(server, "/v1/audio/speech/stream", config, text, {"type": "input.done"})


def begin_elevenlabs(server: RunningServer) -> socket.socket:
    path = "/v1/text-to-speech/heart/stream-input?output_format=pcm_24000"
    return open_websocket(server, path, {"text": " "}, {"text": LONG_TEXT}, {"text": ""})


TRANSPORTS = [begin_http, begin_events, begin_websocket, begin_elevenlabs]
Begin = Callable[[RunningServer], socket.socket]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_little_is_generated_ahead_of_a_client_that_does_not_read(transport: Begin, engine: PausableEngine) -> None:
    with serving(engine) as server, transport(server) as connection:
        connection.recv(100)
        num_requests = -1
        while num_requests != (num_requests := len(engine.requests)):  # until it stands still
            threading.Event().wait(0.3)
        assert 1 < num_requests < 60
        eventually(lambda: engine.streams <= 1)  # sentences that are generated keep no slot


@pytest.mark.slow
def test_clients_that_read_slower_than_real_time_are_reset_on_every_transport(engine: PausableEngine) -> None:
    ends: list[type[Exception]] = []

    def read_slowly(transport: Begin) -> None:
        with transport(server) as connection:
            try:
                while True:  # 24 kB/s of 48 kB/s
                    assert connection.recv(2400), "ended without a reset"
                    threading.Event().wait(0.1)
            except OSError as error:
                ends.append(type(error))

    with serving(engine, Settings(reader_timeout=2)) as server, server.client() as client:
        threads = [threading.Thread(target=read_slowly, args=(transport,)) for transport in TRANSPORTS]
        for thread in threads:
            thread.start()
        eventually(lambda: len(server.state.synthesis.active) == len(TRANSPORTS))
        eventually(lambda: not server.state.synthesis.active or threading.Event().wait(0.1))
        for thread in threads:
            thread.join(60)
        assert ends == [ConnectionResetError] * len(TRANSPORTS)
        eventually(lambda: engine.streams == 0)
        lines = client.get("/metrics").text
        assert 'polyvox_aborts_total{reason="timeout"} 4.0' in lines
        assert 'polyvox_timeouts_total{kind="reader_slow"} 0.0' not in lines


@pytest.mark.slow
def test_slow_readers_do_not_keep_others_from_being_served() -> None:
    """The engine runs seven streams in real time, and eight clients read 20 bytes a second of a long text."""
    text = "The quick brown fox jumps over the lazy dog near the river bank, and goes home. " * 60
    with closing(PacedEngine(slots=8, queue=32, max_queue_seconds=10.0)) as engine, serving(engine) as server:
        slow = [begin(server, text, receive_buffer=SMALL) for _ in range(8)]
        stop = threading.Event()

        def read_slowly() -> None:
            while not stop.wait(1.0):
                for connection in slow:
                    connection.recv(20)

        reader = threading.Thread(target=read_slowly)
        reader.start()
        try:
            eventually(lambda: len(server.state.synthesis.active) == len(slow))
            start = time.monotonic()
            with server.client() as client:  # rejected at once while the first sentences of the slow clients run
                eventually(lambda: server.speak(client).status_code == 200 or stop.wait(1.0))
            assert time.monotonic() - start < 40  # 45 s if the engine generates what the kernel buffers by default
        finally:
            stop.set()
            reader.join()
            for connection in slow:
                connection.close()


def test_the_unread_rest_of_a_failed_response_is_reset_after_the_reader_timeout(
    engine: PausableEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        serving(engine, Settings(reader_timeout=0.5)) as server,
        begin(server, receive_buffer=SMALL, max_new_tokens=1000) as stalled,
    ):
        engine.resume(20)
        eventually(lambda: bool(server.state.synthesis.active))
        stalled.recv(100)
        (connection,) = server.server.server_state.connections
        num_chunks = 20
        while not connection.transport.get_write_buffer_size():  # until the kernel takes no more
            num_chunks += 2
            engine.resume(num_chunks)
            threading.Event().wait(0.02)

        def fail(_: Utterance, __: object) -> None:
            raise StreamFailed("The engine ended the stream before it was finished.")

        monkeypatch.setattr(Utterance, "_add_result", fail)
        engine.resume(num_chunks + 1)
        for utterance in server.state.synthesis.active:
            assert utterance._streams is not None
            assert utterance._streams.current is not None
            utterance._streams.current.cancel()
        eventually(lambda: not server.state.synthesis.active)
        eventually(lambda: not server.server.server_state.connections)
        with pytest.raises(ConnectionResetError):
            read_to_end(stalled)
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == ["request failed"]


def test_the_unread_rest_of_a_complete_response_is_reset_after_the_reader_timeout(
    engine: PausableEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "SEND_BUFFER", SMALL)  # of the kernel
    with (
        serving(engine, Settings(reader_timeout=0.5)) as server,
        begin(server, receive_buffer=1, max_new_tokens=20) as stalled,  # 19 kB, which fit into the buffers
        server.client() as client,
    ):
        eventually(lambda: bool(engine.requests) and not server.state.synthesis.active)
        eventually(lambda: 'polyvox_timeouts_total{kind="reader"} 1.0' in client.get("/metrics").text)
        assert 'polyvox_requests_total{outcome="stop"} 1.0' in client.get("/metrics").text
        with pytest.raises(ConnectionResetError):
            read_to_end(stalled)
