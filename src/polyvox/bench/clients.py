"""Clients of speech servers: an OpenAI-compatible endpoint, raw or as events, and vLLM-Omni's WebSocket."""

import asyncio
import base64
import binascii
import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import urlsplit

from polyvox.bench.ear import Clock, Ear, Failure, Format
from polyvox.bench.metrics import Trace
from polyvox.errors import InvalidRequest, PolyvoxError

if TYPE_CHECKING:
    import aiohttp

Protocols = Literal["http", "sse", "ws"]

NOT_RAW = ("application/json", "text/event-stream", "text/html", "text/plain", "audio/mpeg", "audio/mp3", "audio/ogg",
           "audio/opus", "audio/flac", "audio/aac", "audio/mp4")  # fmt: skip
READ_BYTES = 1 << 20  # of one event or message
TOLD = 200  # characters of an error that are kept


class Client(Protocol):
    async def speak(self, text: str, seed: int, trace: Trace, clock: Clock) -> None:
        """Has a text spoken and fills its trace, which has been sent already; raises Failure."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and how it is asked. What `extra` gives is put over the body; null takes a field out."""

    base_url: str
    protocol: Protocols = "http"
    endpoint: str | None = None
    model: str | None = None
    voice: str | None = None
    form: Format = "pcm"
    sample_rate: int = 24_000  # of pcm that does not say
    extra: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    seeds: bool = False  # whether each request has a seed of its own in its body

    def check(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest("base-url", self.base_url, "must be a URL such as http://127.0.0.1:8000")
        if self.protocol == "ws" and self.form != "pcm":
            raise InvalidRequest("format", self.form, "must be pcm over a WebSocket")

    @property
    def url(self) -> str:
        base = self.base_url.rstrip("/").removesuffix("/v1")
        if self.endpoint is not None:
            return base + "/" + self.endpoint.lstrip("/")
        return base + ("/v1/audio/speech/stream" if self.protocol == "ws" else "/v1/audio/speech")

    def body(self, text: str, seed: int) -> dict[str, Any]:
        """The JSON of a request; over a WebSocket, of the session."""
        body: dict[str, Any] = {"response_format": self.form}
        if self.protocol == "ws":
            body |= {"type": "session.config", "stream_audio": True}
        else:
            # Some servers go by one of the two, some by the other.
            body |= {"input": text, "stream": True, "stream_format": "sse" if self.protocol == "sse" else "audio"}
        if self.model is not None:
            body["model"] = self.model
        if self.voice is not None:
            body["voice"] = self.voice
        if self.seeds:
            body["seed"] = seed
        return {name: value for name, value in (body | self.extra).items() if value is not None}


@asynccontextmanager
async def connected(target: Target, connections: int) -> AsyncIterator[Client]:
    """A client for so many requests at once."""
    aiohttp = _aiohttp()
    connector = aiohttp.TCPConnector(limit=connections, ttl_dns_cache=None, keepalive_timeout=60)
    timeout = aiohttp.ClientTimeout(total=None)  # each request has its own
    kinds: dict[str, Callable[..., _ServerClient]] = {
        "http": RawClient,
        "sse": EventClient,
        "ws": SocketClient,
    }
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=target.headers) as session:
        yield kinds[target.protocol](session, target)


def _aiohttp() -> Any:
    try:
        import aiohttp
    except ImportError:
        raise PolyvoxError("Driving a server needs aiohttp: pip install 'polyvox[bench]'") from None
    return aiohttp


class _ServerClient(ABC):
    def __init__(self, session: "aiohttp.ClientSession", target: Target) -> None:
        self.session, self.target = session, target

    async def speak(self, text: str, seed: int, trace: Trace, clock: Clock) -> None:
        aiohttp = _aiohttp()
        try:
            await self._speak(text, seed, trace, clock)
        except aiohttp.ClientPayloadError as error:
            raise Failure("early end", str(error)[:TOLD]) from error
        except aiohttp.ClientConnectorError as error:
            raise Failure("connect", str(error)[:TOLD]) from error
        except aiohttp.WSServerHandshakeError as error:
            raise Failure(f"http {error.status}", error.message[:TOLD]) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            kind = "connect" if trace.first_byte is None else "early end"
            raise Failure(kind, f"{type(error).__name__}: {error}"[:TOLD]) from error

    @abstractmethod
    async def _speak(self, text: str, seed: int, trace: Trace, clock: Clock) -> None:
        """One request, what arrives of it noted in the trace."""

    @asynccontextmanager
    async def _post(self, text: str, seed: int) -> "AsyncIterator[aiohttp.ClientResponse]":
        async with self.session.post(self.target.url, json=self.target.body(text, seed)) as response:
            if response.status != 200:
                raise Failure(f"http {response.status}", (await response.text())[:TOLD])
            yield response


class RawClient(_ServerClient):
    """The body is the sound."""

    async def _speak(self, text: str, seed: int, trace: Trace, clock: Clock) -> None:
        async with self._post(text, seed) as response:
            said = response.headers.get("content-type", "")
            kind = said.split(";")[0].strip()
            if kind in NOT_RAW:
                raise Failure("told", f"the answer is {kind}, not raw {self.target.form}")
            trace.sample_rate = _rate(said) or self.target.sample_rate
            ear = Ear(trace, clock, self.target.form)
            async for data in response.content.iter_any():
                ear.hear(data)
            ear.end()


class EventClient(_ServerClient):
    """Server-sent events: speech.audio.delta with base64, then speech.audio.done."""

    async def _speak(self, text: str, seed: int, trace: Trace, clock: Clock) -> None:
        async with self._post(text, seed) as response:
            kind = response.headers.get("content-type", "").split(";")[0].strip()
            if kind != "text/event-stream":
                raise Failure("told", f"the answer is {kind}, not text/event-stream")
            trace.sample_rate = self.target.sample_rate
            ear = Ear(trace, clock, self.target.form)
            done, held = False, b""
            async for data in response.content.iter_any():
                now = ear.now()
                ear.byte(now)
                *events, held = re.split(rb"\r?\n\r?\n", held + data)
                if len(held) > READ_BYTES:
                    raise Failure("told", f"an event of more than {READ_BYTES} bytes")
                for event in events:
                    done = _hear_event(event, ear, now) or done
            if not done:
                raise Failure("early end", "no speech.audio.done")
            ear.end()


def _hear_event(event: bytes, ear: Ear, now: float) -> bool:
    """Whether this event was the last."""
    lines = [line for line in event.splitlines() if line.startswith(b"data:")]
    data = b"\n".join(line[5:].removeprefix(b" ") for line in lines)
    if not data:
        return False  # a comment that keeps the connection open
    if data.strip() == b"[DONE]":
        return True
    told = _json(data)
    kind = told.get("type")
    if kind == "speech.audio.delta":
        ear.hear(_bytes(told.get("audio") or told.get("delta") or ""), now)
    elif kind == "speech.audio.done":
        return True
    elif kind in ("speech.audio.error", "error") or "error" in told:
        raise Failure("told", json.dumps(told.get("error", told), ensure_ascii=False)[:TOLD])
    return False


class SocketClient(_ServerClient):
    """vLLM-Omni's and SGLang-Omni's WebSocket: a session for each utterance, its text in one message."""

    async def _speak(self, text: str, seed: int, trace: Trace, clock: Clock) -> None:
        aiohttp = _aiohttp()
        trace.sample_rate = self.target.sample_rate
        ear = Ear(trace, clock)
        url = self.target.url.replace("http", "ws", 1)
        async with self.session.ws_connect(url, max_msg_size=READ_BYTES) as socket:
            await socket.send_json(self.target.body(text, seed))
            await socket.send_json({"type": "input.text", "text": text})
            await socket.send_json({"type": "input.done"})
            done = False
            while not done:
                message = await socket.receive()
                now = ear.now()
                if message.type == aiohttp.WSMsgType.BINARY:
                    ear.hear(message.data, now)
                elif message.type == aiohttp.WSMsgType.TEXT:
                    ear.byte(now)
                    done = _hear_message(_json(message.data), ear, now)
                else:
                    raise Failure("early end", f"closed with {socket.close_code} before session.done")
            ear.end()
            await socket.send_json({"type": "session.close"})


def _hear_message(told: dict[str, Any], ear: Ear, now: float) -> bool:
    """Whether the utterance is over."""
    kind = told.get("type")
    if kind == "audio.chunk":
        ear.hear(_bytes(told.get("audio_b64", "")), now)
    elif kind == "audio.start":
        if rate := told.get("sample_rate"):
            ear.rate(int(rate))
    elif kind == "error" or (kind == "audio.done" and told.get("error")):
        raise Failure("told", json.dumps(told, ensure_ascii=False)[:TOLD])
    return kind == "session.done"


def _rate(content_type: str) -> int | None:
    """Of audio/pcm;rate=24000."""
    found = re.search(r"rate=(\d+)", content_type)
    return int(found[1]) if found else None


def _json(data: bytes | str) -> dict[str, Any]:
    try:
        told = json.loads(data)
    except ValueError:
        raise Failure("told", f"not JSON: {data[:60]!r}") from None
    if not isinstance(told, dict):
        raise Failure("told", f"not a JSON object: {data[:60]!r}")
    return told


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Failure("told", f"not base64: {text[:60]!r}") from None


async def within(seconds: float, client: Client, text: str, seed: int, trace: Trace, clock: Clock) -> None:
    """Has a text spoken, in so many seconds at most."""
    try:
        async with asyncio.timeout(seconds):
            await client.speak(text, seed, trace, clock)
    except TimeoutError:
        raise Failure("timeout", f"not done after {seconds:g} s") from None
