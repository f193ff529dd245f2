# SPDX-License-Identifier: Apache-2.0
"""Clients of speech servers: OpenAI-compatible HTTP, raw or as server-sent events, and vLLM-Omni's WebSocket."""

import asyncio
import base64
import binascii
import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import urlsplit

from polyvox.bench.metrics import RequestTrace
from polyvox.bench.receiver import (
    INVALID_RESPONSE,
    SERVER_ERROR,
    TRUNCATED,
    AudioFormat,
    AudioReceiver,
    Clock,
    RequestFailed,
)
from polyvox.errors import InvalidRequest, PolyvoxError, how_to_install

if TYPE_CHECKING:
    import aiohttp

WireProtocol = Literal["http", "sse", "ws"]

NOT_RAW = ("application/json", "text/event-stream", "text/html", "text/plain", "audio/mpeg", "audio/mp3", "audio/ogg",
           "audio/opus", "audio/flac", "audio/aac", "audio/mp4")  # fmt: skip
MAX_MESSAGE_BYTES = 1 << 20  # of one event or message
MAX_DETAIL = 200  # characters of an error message that are kept
KEEPALIVE_SECONDS = 60
CONNECT_STAGE = "connect"  # of a WebSocket: from the start of a request until its text is sent
# A token of live text: a word or a mark, with the space before it. Most words are one token of a large vocabulary, and
# the tokenizer of models with random weights has these tokens.
_TOKEN = re.compile(r"\s*(?:'?\w+|[^\s\w]+)|\s+$")


class Client(Protocol):
    async def synthesise(self, text: str, seed: int, trace: RequestTrace, clock: Clock) -> None:
        """Sends one request and fills its trace, whose `sent` is already set; raises RequestFailed."""


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """A server and the requests it is sent. `extra` overrides fields of the body; null removes a field."""

    base_url: str
    protocol: WireProtocol = "http"
    endpoint: str | None = None
    model: str | None = None
    voice: str | None = None
    audio_format: AudioFormat = "pcm"
    sample_rate: int = 24_000  # of PCM whose response does not declare it
    extra: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    send_seeds: bool = False  # whether each request has a seed in its body
    text_rate: float | None = None  # tokens per second of live text, over a WebSocket; None: the whole text at once

    def check(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest("base-url", self.base_url, "must be a URL such as http://127.0.0.1:8000")
        if self.protocol == "ws" and self.audio_format != "pcm":
            raise InvalidRequest("format", self.audio_format, "must be pcm over a WebSocket")
        if self.text_rate is not None and (self.protocol != "ws" or not self.text_rate > 0):
            raise InvalidRequest("text-rate", self.text_rate, "must be above 0, and needs the protocol ws")

    @property
    def url(self) -> str:
        base = self.base_url.rstrip("/").removesuffix("/v1")
        if self.endpoint is not None:
            return base + "/" + self.endpoint.lstrip("/")
        return base + ("/v1/audio/speech/stream" if self.protocol == "ws" else "/v1/audio/speech")

    def body(self, text: str, seed: int) -> dict[str, Any]:
        """The JSON body of a request; over a WebSocket, the session configuration."""
        body: dict[str, Any] = {"response_format": self.audio_format}
        if self.protocol == "ws":
            body |= {"type": "session.config", "stream_audio": True}
            if self.text_rate is not None:
                body["split_granularity"] = "token"
        else:
            # Some servers read `stream`, others `stream_format`.
            body |= {"input": text, "stream": True, "stream_format": "sse" if self.protocol == "sse" else "audio"}
        if self.model is not None:
            body["model"] = self.model
        if self.voice is not None:
            body["voice"] = self.voice
        if self.send_seeds:
            body["seed"] = seed
        body |= self.extra
        return {key: value for key, value in body.items() if value is not None}


@asynccontextmanager
async def connect(target: ServerTarget, max_connections: int) -> AsyncIterator[Client]:
    """A client of a server with a connection pool of this size."""
    aiohttp = _import_aiohttp()
    connector = aiohttp.TCPConnector(limit=max_connections, ttl_dns_cache=None, keepalive_timeout=KEEPALIVE_SECONDS)
    timeout = aiohttp.ClientTimeout(total=None)  # each request has its own
    clients: dict[str, Callable[..., _ServerClient]] = {"http": HttpClient, "sse": SseClient, "ws": WebSocketClient}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=target.headers) as session:
        yield clients[target.protocol](session, target)


def _import_aiohttp() -> Any:
    try:
        import aiohttp
    except ImportError:
        raise PolyvoxError(f"Benchmarking a server requires the package aiohttp: {how_to_install('bench')}.") from None
    return aiohttp


class _ServerClient(ABC):
    def __init__(self, session: "aiohttp.ClientSession", target: ServerTarget) -> None:
        self.session, self.target = session, target

    async def synthesise(self, text: str, seed: int, trace: RequestTrace, clock: Clock) -> None:
        aiohttp = _import_aiohttp()
        try:
            await self._synthesise(text, seed, trace, clock)
        except aiohttp.ClientPayloadError as error:
            raise RequestFailed(TRUNCATED, str(error)[:MAX_DETAIL]) from error
        except aiohttp.ClientConnectorError as error:
            raise RequestFailed("connect", str(error)[:MAX_DETAIL]) from error
        except aiohttp.WSServerHandshakeError as error:
            raise RequestFailed(f"http {error.status}", error.message[:MAX_DETAIL]) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            kind = "connect" if trace.first_byte is None else TRUNCATED
            raise RequestFailed(kind, f"{type(error).__name__}: {error}"[:MAX_DETAIL]) from error

    @abstractmethod
    async def _synthesise(self, text: str, seed: int, trace: RequestTrace, clock: Clock) -> None:
        """Sends one request and records its response in the trace."""

    @asynccontextmanager
    async def _post(self, text: str, seed: int) -> "AsyncIterator[aiohttp.ClientResponse]":
        async with self.session.post(self.target.url, json=self.target.body(text, seed)) as response:
            if response.status != 200:
                raise RequestFailed(f"http {response.status}", (await response.text())[:MAX_DETAIL])
            yield response


class HttpClient(_ServerClient):
    """The response body is the audio."""

    async def _synthesise(self, text: str, seed: int, trace: RequestTrace, clock: Clock) -> None:
        async with self._post(text, seed) as response:
            content_type = response.headers.get("content-type", "")
            media_type = content_type.split(";")[0].strip()
            if media_type in NOT_RAW:
                expected = self.target.audio_format
                raise RequestFailed(INVALID_RESPONSE, f"content type is {media_type}, not raw {expected}")
            trace.sample_rate = _declared_rate(content_type) or self.target.sample_rate
            trace.stages = _server_timing(response.headers.get("server-timing", ""))
            receiver = AudioReceiver(trace, clock, self.target.audio_format)
            async for data in response.content.iter_any():
                receiver.push(data)
            receiver.finish()


class SseClient(_ServerClient):
    """Server-sent events: speech.audio.delta with base64 audio, then speech.audio.done."""

    async def _synthesise(self, text: str, seed: int, trace: RequestTrace, clock: Clock) -> None:
        async with self._post(text, seed) as response:
            media_type = response.headers.get("content-type", "").split(";")[0].strip()
            if media_type != "text/event-stream":
                raise RequestFailed(INVALID_RESPONSE, f"content type is {media_type}, not text/event-stream")
            trace.sample_rate = self.target.sample_rate
            trace.stages = _server_timing(response.headers.get("server-timing", ""))
            receiver = AudioReceiver(trace, clock, self.target.audio_format)
            done, buffer = False, b""
            async for data in response.content.iter_any():
                now = receiver.now()
                receiver.on_byte(now)
                *events, buffer = re.split(rb"\r?\n\r?\n", buffer + data)
                if len(buffer) > MAX_MESSAGE_BYTES:
                    raise RequestFailed(INVALID_RESPONSE, f"event larger than {MAX_MESSAGE_BYTES} bytes")
                for event in events:
                    done = _on_event(event, receiver, now) or done
            if not done:
                raise RequestFailed(TRUNCATED, "no speech.audio.done")
            receiver.finish()


def _on_event(event: bytes, receiver: AudioReceiver, now: float) -> bool:
    """Handles one event; whether it was the last."""
    lines = [line for line in event.splitlines() if line.startswith(b"data:")]
    data = b"\n".join(line[5:].removeprefix(b" ") for line in lines)
    if not data:
        return False  # a keep-alive comment
    if data.strip() == b"[DONE]":
        return True
    message = _parse_json(data)
    kind = message.get("type")
    if kind == "speech.audio.delta":
        receiver.push(_decode_base64(message.get("audio") or message.get("delta") or ""), now)
    elif kind == "speech.audio.done":
        return True
    elif kind in ("speech.audio.error", "error") or "error" in message:
        detail = json.dumps(message.get("error", message), ensure_ascii=False)
        raise RequestFailed(SERVER_ERROR, detail[:MAX_DETAIL])
    return False


class WebSocketClient(_ServerClient):
    """The WebSocket of vLLM-Omni and SGLang-Omni: one session per utterance, the text in one message or live."""

    async def _synthesise(self, text: str, seed: int, trace: RequestTrace, clock: Clock) -> None:
        aiohttp = _import_aiohttp()
        trace.sample_rate = self.target.sample_rate
        receiver = AudioReceiver(trace, clock)
        url = self.target.url.replace("http", "ws", 1)
        async with self.session.ws_connect(url, max_msg_size=MAX_MESSAGE_BYTES) as socket:
            await socket.send_json(self.target.body(text, seed))
            connect_seconds = clock() - trace.sent
            writing = asyncio.create_task(self._send_text(socket, text))
            try:
                done = False
                while not done:
                    message = await socket.receive()
                    now = receiver.now()
                    if message.type == aiohttp.WSMsgType.BINARY:
                        receiver.push(message.data, now)
                    elif message.type == aiohttp.WSMsgType.TEXT:
                        receiver.on_byte(now)
                        fields = _parse_json(message.data)
                        done = _on_message(fields, receiver, now)
                        if done and (stages := _stages_of(fields)):
                            trace.stages = {CONNECT_STAGE: connect_seconds, **stages}
                    else:
                        raise RequestFailed(TRUNCATED, f"closed with code {socket.close_code} before session.done")
            finally:
                writing.cancel()
                with suppress(asyncio.CancelledError, ConnectionError):  # the response says what went wrong
                    await writing
            receiver.finish()
            await socket.send_json({"type": "session.close"})

    async def _send_text(self, socket: "aiohttp.ClientWebSocketResponse", text: str) -> None:
        """Sends the text, live text one token after the other."""
        rate, clock = self.target.text_rate, asyncio.get_running_loop().time
        began = clock()
        for number, piece in enumerate([text] if rate is None else live_tokens(text)):
            if number and rate is not None:
                await asyncio.sleep(began + number / rate - clock())
            await socket.send_json({"type": "input.text", "text": piece})
        await socket.send_json({"type": "input.done"})


def live_tokens(text: str) -> list[str]:
    """The text in pieces of one token each."""
    return _TOKEN.findall(text)


def _on_message(message: dict[str, Any], receiver: AudioReceiver, now: float) -> bool:
    """Handles one text message; whether the utterance is complete."""
    kind = message.get("type")
    if kind == "audio.chunk":
        receiver.push(_decode_base64(message.get("audio_b64", "")), now)
    elif kind == "audio.start":
        if rate := message.get("sample_rate"):
            receiver.set_sample_rate(int(rate))
    elif kind == "error" or (kind == "audio.done" and message.get("error")):
        raise RequestFailed(SERVER_ERROR, json.dumps(message, ensure_ascii=False)[:MAX_DETAIL])
    return kind == "session.done"


def _declared_rate(content_type: str) -> int | None:
    """The sample rate in a content type such as audio/pcm;rate=24000."""
    found = re.search(r"rate=(\d+)", content_type)
    return int(found[1]) if found else None


def _server_timing(header: str) -> dict[str, float]:
    """Seconds by name in the header Server-Timing. Entries without a duration are ignored."""
    found = {}
    for entry in header.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            try:
                if key.strip().lower() == "dur":
                    found[name] = float(value.strip().strip('"')) / 1e3
            except ValueError:
                continue
    return found


def _stages_of(message: dict[str, Any]) -> dict[str, float]:
    """Seconds by stage in the last message of an utterance; empty if the server does not report them."""
    stages = message.get("server_timing")
    if not isinstance(stages, dict):
        return {}
    return {str(name): value / 1e3 for name, value in stages.items() if isinstance(value, int | float)}


def _parse_json(data: bytes | str) -> dict[str, Any]:
    try:
        message = json.loads(data)
    except ValueError:
        raise RequestFailed(INVALID_RESPONSE, f"not JSON: {data[:60]!r}") from None
    if not isinstance(message, dict):
        raise RequestFailed(INVALID_RESPONSE, f"not a JSON object: {data[:60]!r}")
    return message


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RequestFailed(INVALID_RESPONSE, f"not base64: {text[:60]!r}") from None


async def synthesise_with_timeout(
    seconds: float, client: Client, text: str, seed: int, trace: RequestTrace, clock: Clock
) -> None:
    """One request; raises RequestFailed after this many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await client.synthesise(text, seed, trace, clock)
    except TimeoutError:
        raise RequestFailed("timeout", f"not complete after {seconds:g} s") from None
