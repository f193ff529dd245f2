# SPDX-License-Identifier: Apache-2.0
"""The load of the mixed soak: every kind of client at once, in an open loop at a share of the server's capacity."""

import asyncio
import base64
import hashlib
import io
import json
import random
import select
import socket
import time
import wave
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp

SAMPLE_RATE = 24_000
PLAYER_SECONDS = 0.1  # of audio that a player buffers before it starts
TOKEN_CHARACTERS, TOKEN_SECONDS = 4, (0.02, 0.08)  # of live text: faster than speech, so no pause of a player is ours
NUM_SEEDS = 3  # requests repeat texts and seeds, and equal requests must give equal audio
SLOW_BYTES_PER_SECOND = 20
SLOW_READER_SECONDS = 60.0  # after which a slow client disconnects
SMALL_BUFFER = 4096  # bytes of a slow client's receive buffer
MAX_ACTIVE = 400  # clients
GRACE_SECONDS = 60.0  # that a request may take, beside twice its audio
VOICE = "narrator"

SENTENCES = (
    "The train to the coast leaves at ten past nine.",
    "Please have your tickets ready when you board it.",
    "Of course, I have moved the meeting to Thursday.",
    "Nobody had expected the storm to last this long.",
    "There are three museums within a short walk of here.",
    "She opened the window and listened to the street.",
    "The library closes early on the last day of the month.",
    "We will need four chairs, a table and a long cable.",
    "He wrote the address on the back of an old envelope.",
    "Warm water and a little soap are usually enough.",
    "The second half of the concert begins in ten minutes.",
    "After the bridge, take the first road on the left.",
)

BAD_REQUESTS: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/v1/audio/speech", b"{not json"),
    ("POST", "/v1/audio/speech", {"input": "Hello.", "speed": 9}),
    ("POST", "/v1/audio/speech", {"input": ""}),
    ("POST", "/v1/audio/speech", {"input": "Hello.", "voice": "nobody"}),
    ("POST", "/v1/audio/speech", {"input": ["Hello."], "response_format": "pcm"}),
    ("POST", "/v1/audio/speech", {"input": "Hello. " * 20_000}),
    ("POST", "/v1/text-to-speech/nobody/stream", {"text": "Hello."}),
    ("GET", "/v1/no/such/path", None),
    ("DELETE", "/v1/audio/voices/nobody", None),
)


@dataclass(slots=True)
class ClientResult:
    """What became of one client. Times are seconds since the start of the load."""

    kind: str
    started: float
    ended: float = 0.0
    # complete, rejected (503), refused (4xx), aborted (as planned), cut_off (slow, by the server), interrupted (the
    # connection or the engine failed), failed (an unexpected response), hung (no end)
    outcome: str = ""
    first_audio: float | None = None  # seconds from the request
    audio_seconds: float = 0.0
    underruns: int = 0
    digest: str = ""  # of the audio
    request: str = ""  # what the digest depends on
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in ("", None)}


class ServerInterrupted(Exception):
    """The server ended the connection or reported a failure in mid-stream."""


class ServerRejected(Exception):
    """The server is at capacity or restarting."""


class UnexpectedResponse(Exception):
    """A response that no client may get."""


@dataclass(slots=True)
class Player:
    """Plays a stream as it arrives: counts underruns and hashes the bytes."""

    result: ClientResult
    sent_at: float
    bytes_per_second: int | None = 2 * SAMPLE_RATE  # None for compressed formats, which are not played
    played_until: float | None = None
    num_bytes: int = 0
    _hash: Any = field(default_factory=hashlib.sha256)

    def push(self, data: bytes, now: float) -> None:
        if not data:
            return
        if self.result.first_audio is None:
            self.result.first_audio = now - self.sent_at
        self._hash.update(data)
        self.num_bytes += len(data)
        if self.bytes_per_second is None:
            return
        if self.played_until is None:
            self.played_until = now + PLAYER_SECONDS
        elif now > self.played_until:
            self.result.underruns += 1
            self.played_until = now
        self.played_until += len(data) / self.bytes_per_second

    def finish(self) -> None:
        self.result.digest = self._hash.hexdigest()[:16]
        if self.bytes_per_second is not None:
            self.result.audio_seconds = self.num_bytes / self.bytes_per_second


Client = Callable[[ClientResult], Awaitable[None]]


class MixedLoad:
    """Clients of all kinds against one server. `results` gets one entry for each client that ended."""

    def __init__(self, port: int, seed: int, clones: bool, on_result: Callable[[ClientResult], None]) -> None:
        """clones: whether the server has voices that were uploaded, and takes more of them."""
        self._port, self._chance, self._on_result = port, random.Random(seed), on_result
        self._fields: dict[str, Any] = {"voice": VOICE} if clones else {}
        self._began = time.monotonic()
        self._num_uploads = 0
        self.active: dict[str, int] = {}
        self.skipped = 0  # clients above MAX_ACTIVE
        # kind: (share of the clients, seconds of audio that one costs the engine, client)
        self._kinds: dict[str, tuple[float, float, Client]] = {
            "http": (0.30, 8.0, self._http),
            "sse": (0.12, 8.0, self._sse),
            "live": (0.20, 8.0, self._live),
            "elevenlabs": (0.11, 8.0, self._elevenlabs),
            "long": (0.03, 71.0, self._long),
            "abort": (0.09, 5.0, self._abort),
            "early abort": (0.07, 1.0, self._abort_early),
            "slow": (0.005, 110.0, self._slow),
            "stalled": (0.005, 110.0, self._stalled),
            "bad": (0.06, 0.0, self._bad),
            **({"upload": (0.01, 5.0, self._upload)} if clones else {}),
        }
        total = sum(share for share, *_ in self._kinds.values())
        self.audio_per_client = sum(share * seconds for share, seconds, _ in self._kinds.values()) / total

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    async def run(self, load: float, seconds: float) -> None:
        """Starts clients that ask for `load` seconds of audio per second, for a while; then waits for all of them."""
        rate = load / self.audio_per_client
        names, shares = list(self._kinds), [share for share, *_ in self._kinds.values()]
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with (
            aiohttp.ClientSession(
                f"http://127.0.0.1:{self._port}", connector=connector, timeout=aiohttp.ClientTimeout(total=None)
            ) as self._session,
            asyncio.TaskGroup() as clients,
        ):
            due = self.now
            while (due := due + self._chance.expovariate(rate)) < seconds:
                await asyncio.sleep(max(0.0, due - self.now))
                if sum(self.active.values()) >= MAX_ACTIVE:
                    self.skipped += 1
                    continue
                clients.create_task(self._run_one(self._chance.choices(names, shares)[0]))
            await asyncio.sleep(max(0.0, seconds - self.now))

    async def _run_one(self, kind: str) -> None:
        _, seconds, client = self._kinds[kind]
        result = ClientResult(kind, self.now)
        self.active[kind] = self.active.get(kind, 0) + 1
        try:
            async with asyncio.timeout(GRACE_SECONDS + 2 * seconds):
                await client(result)
        except TimeoutError:
            result.outcome = "hung"
        except ServerRejected as error:
            # An admitted request may not be rejected later.
            result.outcome = "rejected" if result.first_audio is None else "interrupted"
            result.detail = str(error)
        except UnexpectedResponse as error:
            result.outcome, result.detail = "failed", str(error)
        except (ServerInterrupted, aiohttp.ClientError, OSError) as error:
            result.outcome, result.detail = "interrupted", f"{type(error).__name__}: {error}"[:200]
        except Exception as error:  # a response that the client cannot read
            result.outcome, result.detail = "failed", repr(error)[:200]
        finally:
            self.active[kind] -= 1
        result.ended = self.now
        self._on_result(result)

    # Whole texts

    def _text(self, num_sentences: int) -> tuple[str, int]:
        """One of the texts with this many sentences, and one of their seeds."""
        first, seed = self._chance.randrange(len(SENTENCES)), self._chance.randrange(NUM_SEEDS)
        chosen = [SENTENCES[(first + i) % len(SENTENCES)] for i in range(num_sentences)]
        return " ".join(chosen), seed

    def _body(self, result: ClientResult, num_sentences: int, api: str, **more: Any) -> dict[str, Any]:
        text, seed = self._text(num_sentences)
        result.request = f"{api} {more.get('response_format', 'pcm')} seed={seed} {text}"
        return {"input": text, "seed": seed, "response_format": "pcm", **self._fields, **more}

    @asynccontextmanager
    async def _speech(self, body: Mapping[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self._session.post("/v1/audio/speech", json=body) as response:
            await _check_status(response)
            yield response

    async def _http(self, result: ClientResult) -> None:
        await self._stream(result, self._chance.choice((1, 2, 2, 3)))

    async def _long(self, result: ClientResult) -> None:
        await self._stream(result, self._chance.choice((12, 16, 20)))

    async def _stream(self, result: ClientResult, num_sentences: int) -> None:
        format = self._chance.choice(("pcm", "pcm", "pcm", "pcm", "wav", "mp3", "opus"))
        body = self._body(result, num_sentences, "whole", response_format=format)
        player = Player(result, self.now, 2 * SAMPLE_RATE if format == "pcm" else None)
        async with self._speech(body) as response:
            async for data in response.content.iter_any():
                player.push(data, self.now)
        player.finish()
        result.outcome = "complete"

    async def _sse(self, result: ClientResult) -> None:
        body = self._body(result, self._chance.choice((1, 2, 2, 3)), "whole")
        player = Player(result, self.now)
        async with self._speech({**body, "stream_format": "sse"}) as response:
            async for line in response.content:
                if not line.startswith(b"data: "):
                    continue
                event = json.loads(line[6:])
                if event["type"] == "speech.audio.delta":
                    player.push(base64.b64decode(event["audio"]), self.now)
                elif event["type"] == "speech.audio.error":
                    raise ServerInterrupted(str(event["error"]["message"]))
                elif event["type"] == "speech.audio.done":
                    result.outcome = "complete"
        player.finish()
        if not result.outcome:
            raise ServerInterrupted("no speech.audio.done")

    # Live text

    async def _send_tokens(self, text: str, send: Callable[[str], Awaitable[None]]) -> None:
        """Sends a text as a language model generates it, with random pauses."""
        for at in range(0, len(text), TOKEN_CHARACTERS):
            await send(text[at : at + TOKEN_CHARACTERS])
            await asyncio.sleep(self._chance.uniform(*TOKEN_SECONDS))

    async def _live(self, result: ClientResult) -> None:
        granularity = self._chance.choice(("sentence", "token"))
        text, seed = self._text(2)
        result.request = f"live {granularity} seed={seed} {text}"
        config = {"response_format": "pcm", "stream_audio": True, "split_granularity": granularity, "seed": seed}
        if granularity == "token":
            config["non_streaming_mode"] = False
        async with self._session.ws_connect("/v1/audio/speech/stream", max_msg_size=0) as ws:
            await ws.send_json({"type": "session.config", **config, **self._fields})
            player = Player(result, self.now)

            async def send() -> None:
                await self._send_tokens(text, lambda piece: ws.send_json({"type": "input.text", "text": piece}))
                await ws.send_json({"type": "input.done"})

            async with _in_background(send()):
                async for message in ws:
                    if message.type is aiohttp.WSMsgType.BINARY:
                        player.push(message.data, self.now)
                        continue
                    event = json.loads(message.data)
                    if event["type"] == "error" or event.get("error"):
                        _raise_error(event)
                    if event["type"] == "session.done":
                        result.outcome = "complete"
                        break
            player.finish()
            if not result.outcome:
                raise ServerInterrupted(f"closed with {ws.close_code}")

    async def _elevenlabs(self, result: ClientResult) -> None:
        text, seed = self._text(2)
        result.request = f"elevenlabs seed={seed} {text}"
        path = f"/v1/text-to-speech/{self._fields.get('voice', 'alloy')}/stream-input"
        async with self._session.ws_connect(f"{path}?output_format=pcm_24000&seed={seed}", max_msg_size=0) as ws:
            await ws.send_json({"text": " "})
            player = Player(result, self.now)

            async def send() -> None:
                await self._send_tokens(text, lambda piece: ws.send_json({"text": piece}))
                await ws.send_json({"text": ""})

            async with _in_background(send()):
                async for message in ws:
                    event = json.loads(message.data)
                    if event.get("error"):
                        _raise_error(event)
                    if event.get("audio"):
                        player.push(base64.b64decode(event["audio"]), self.now)
                    if event.get("isFinal"):
                        result.outcome = "complete"
                        break
            player.finish()
            if not result.outcome:
                raise ServerInterrupted(f"closed with {ws.close_code}")

    # Clients that leave, or read slowly

    async def _abort(self, result: ClientResult) -> None:
        body = self._body(result, 6, "abort", response_format=self._chance.choice(("pcm", "mp3", "opus")))
        wanted = self._chance.randrange(1, 100_000)
        async with self._speech(body) as response:
            async for data in response.content.iter_any():
                wanted -= len(data)
                if wanted <= 0:
                    break
            response.close()
        result.outcome = "aborted"

    async def _abort_early(self, result: ClientResult) -> None:
        """Disconnects before the first byte, or, on an idle server, around it."""
        body = self._body(result, 6, "abort")
        with suppress(TimeoutError, ServerRejected):
            async with asyncio.timeout(self._chance.random() * 0.05), self._speech(body):
                pass
        result.outcome = "aborted"

    @asynccontextmanager
    async def _slow_socket(self, result: ClientResult) -> AsyncIterator[socket.socket]:
        """A connection with a small receive buffer, after the headers of a long response."""
        body = json.dumps(self._body(result, 40, "slow")).encode()
        headers = ("POST /v1/audio/speech HTTP/1.1", f"host: 127.0.0.1:{self._port}", "content-type: application/json")
        head = "\r\n".join((*headers, "connection: close", f"content-length: {len(body)}", "", ""))
        loop = asyncio.get_running_loop()
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
            connection.setblocking(False)
            await loop.sock_connect(connection, ("127.0.0.1", self._port))
            await loop.sock_sendall(connection, head.encode() + body)
            status = await loop.sock_recv(connection, 64)
            if not status:
                raise ServerInterrupted("closed before the response")
            if status.split(b" ")[1] == b"503":
                raise ServerRejected("503")
            if status.split(b" ")[1] != b"200":
                raise UnexpectedResponse(status.decode("latin-1"))
            yield connection

    async def _slow(self, result: ClientResult) -> None:
        loop, end, state = asyncio.get_running_loop(), self.now + SLOW_READER_SECONDS, select.poll()
        async with self._slow_socket(result) as connection:
            state.register(connection, select.POLLRDHUP)
            result.outcome = "aborted"
            while self.now < end:
                # The end is seen at once; a read returns it only after all data that has arrived.
                if state.poll(0) or not await loop.sock_recv(connection, SLOW_BYTES_PER_SECOND):
                    result.outcome = "cut_off"
                    break
                await asyncio.sleep(1.0)

    async def _stalled(self, result: ClientResult) -> None:
        """Reads nothing for a while, then what is left: the server must have ended the response by then."""
        loop = asyncio.get_running_loop()
        async with self._slow_socket(result) as connection:
            await asyncio.sleep(SLOW_READER_SECONDS)
            result.outcome = "cut_off"
            with suppress(ConnectionError):
                while data := await loop.sock_recv(connection, 1 << 16):
                    if data.endswith(b"\r\n0\r\n\r\n"):
                        result.outcome = "complete"

    # Bad requests and uploads

    async def _bad(self, result: ClientResult) -> None:
        method, path, body = self._chance.choice(BAD_REQUESTS)
        sent = {"data": body} if isinstance(body, bytes) else {"json": body} if body is not None else {}
        async with self._session.request(method, path, **sent) as response:
            text = await response.text()
            if response.status == 503:
                raise ServerRejected("503")
            if not 400 <= response.status < 500:
                raise UnexpectedResponse(f"{response.status} to {method} {path}: {text[:100]}")
        result.outcome = "refused"

    async def _upload(self, result: ClientResult) -> None:
        """Uploads a recording, speaks with it, and deletes it."""
        self._num_uploads += 1
        name = f"voice-{self._num_uploads}"
        form = aiohttp.FormData({"name": name, "consent": "mine"})
        form.add_field("audio_sample", _recording(), filename="recording.wav", content_type="audio/wav")
        async with self._session.post("/v1/audio/voices", data=form) as response:
            await _check_status(response, expected=201)
        try:
            async with self._speech(self._body(result, 1, "upload", voice=name)) as response:
                await response.read()
        finally:
            async with self._session.delete(f"/v1/audio/voices/{name}") as response:
                await _check_status(response)
        result.outcome = "complete"


async def _check_status(response: aiohttp.ClientResponse, expected: int = 200) -> None:
    if response.status == 503:
        raise ServerRejected((await response.text())[:200])
    if response.status != expected:
        raise UnexpectedResponse(f"{response.status}: {(await response.text())[:200]}")


def _raise_error(event: Mapping[str, Any]) -> None:
    """The error message of a WebSocket: with `retry_after` the server is at capacity."""
    text = json.dumps(event)[:200]
    if event.get("retry_after") is not None or event.get("code") == 1013:
        raise ServerRejected(text)
    raise ServerInterrupted(text)


@asynccontextmanager
async def _in_background(work: Awaitable[None]) -> AsyncIterator[None]:
    """Runs a sender beside its reader; a connection that is closed meanwhile is the reader's to report."""

    async def run() -> None:
        with suppress(ConnectionError, aiohttp.ClientError):
            await work

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _recording(seconds: float = 2.0) -> bytes:
    """A WAV file with a 200 Hz triangle wave."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
        period = [256 * abs(i % 120 - 60) - 7680 for i in range(120)]
        samples = period * round(seconds * SAMPLE_RATE / 120)
        writer.writeframes(b"".join(sample.to_bytes(2, "little", signed=True) for sample in samples))
    return file.getvalue()


async def add_voice(port: int, size: int) -> None:
    """Adds the voice that all clients use, as a speaker vector."""
    body = {"name": VOICE, "speaker_embedding": [0.1] * size, "consent": "mine"}
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
        session.post("/v1/audio/voices", json=body) as response,
    ):
        await _check_status(response, expected=201)
