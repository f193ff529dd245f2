# SPDX-License-Identifier: Apache-2.0
"""Requests of polyvox doctor to a server, with the time at which each piece of a response arrives."""

import asyncio
import http.client
import json
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import SplitResult, urlsplit

from polyvox.errors import InvalidRequest, PolyvoxError

CONNECT_TIMEOUT = 5.0  # seconds
ANSWER_TIMEOUT = 60.0  # seconds between two pieces of a response
SAMPLE_BYTES = 2  # of pcm


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> dict[str, Any]:
        """Empty if it is no JSON object."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def message(self) -> str:
        """The error in the body, or its start."""
        error = self.json().get("error")
        text = error.get("message") if isinstance(error, dict) else None
        return str(text) if text else self.body[:200].decode(errors="replace").strip() or "no body"


@dataclass(slots=True)
class Download:
    """A streamed response: when each piece arrived, in seconds after the request."""

    status: int
    headers: http.client.HTTPMessage
    pieces: list[tuple[float, int]] = field(default_factory=list)
    start: bytes = b""  # of the body, for errors

    @property
    def first(self) -> float:
        return self.pieces[0][0]

    @property
    def last(self) -> float:
        return self.pieces[-1][0]

    @property
    def spread(self) -> float:
        """Share of the time of the response in which its body arrived."""
        return (self.last - self.first) / max(self.last, 1e-9)

    def audio_seconds(self, sample_rate: int) -> float:
        return sum(size for _, size in self.pieces) / SAMPLE_BYTES / sample_rate

    def underruns(self, sample_rate: int) -> int:
        """Pauses of a player that starts with the first piece."""
        count, played_until = 0, self.first
        for at, size in self.pieces:
            if at > played_until:
                count, played_until = count + 1, at
            played_until += size / SAMPLE_BYTES / sample_rate
        return count

    def max_gap(self) -> float:
        times = [at for at, _ in self.pieces]
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)


class TimedClient:
    """Requests to one server, each over a connection of its own."""

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = parse_url(url)
        assert parts.hostname is not None
        self._key = key
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.host = parts.hostname
        self.port = parts.port or (443 if self.tls else 80)
        self._path = parts.path.rstrip("/")

    def get(self, path: str) -> Response:
        with self._request("GET", path) as (response, _):
            return Response(response.status, response.headers, response.read())

    def speak(self, text: str, voice: str | None) -> Download:
        """Speech as pcm, with the time of each piece."""
        body = {"input": text, "response_format": "pcm"} | ({} if voice is None else {"voice": voice})
        headers = {"content-type": "application/json"}
        with self._request("POST", "/v1/audio/speech", json.dumps(body).encode(), headers) as (response, began):
            download = Download(response.status, response.headers)
            while piece := response.read1(1 << 16):
                download.pieces.append((time.perf_counter() - began, len(piece)))
                download.start = download.start or piece[:1000]
            return download

    async def speak_over_websocket(self, text: str, voice: str | None) -> tuple[float | None, str | None]:
        """Seconds until the first audio, and the error that the server reported.

        The client with threads reads and writes a TLS connection at once, which fails now and then before Python 3.13.
        """
        from websockets.asyncio.client import connect

        scheme = "wss" if self.tls else "ws"
        host = f"[{self.host}]" if ":" in self.host else self.host
        url = f"{scheme}://{host}:{self.port}{self._path}/v1/audio/speech/stream"
        fields = {} if voice is None else {"voice": voice}
        messages: list[dict[str, object]] = [
            {"type": "session.config", "response_format": "pcm", "stream_audio": True, **fields},
            {"type": "input.text", "text": text},
            {"type": "input.done"},
        ]
        first: float | None = None
        async with connect(
            url,
            additional_headers=self._headers(),
            open_timeout=CONNECT_TIMEOUT,
            close_timeout=CONNECT_TIMEOUT,
            ssl=self.tls,
            proxy=None,
        ) as connection:
            began = time.perf_counter()
            for message in messages:
                await asyncio.wait_for(connection.send(json.dumps(message)), ANSWER_TIMEOUT)
            while True:
                received = await asyncio.wait_for(connection.recv(), ANSWER_TIMEOUT)
                if isinstance(received, bytes):
                    first = first or time.perf_counter() - began
                    continue
                found = json.loads(received)
                if found["type"] == "error":
                    return first, found["message"]
                if found["type"] == "session.done":
                    return first, None

    @contextmanager
    def _request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Iterator[tuple[http.client.HTTPResponse, float]]:
        """A response whose body is not read yet, and the time at which the request was sent.

        Failures to connect, send or receive raise PolyvoxError.
        """
        if self.tls is None:
            client = http.client.HTTPConnection(self.host, self.port, timeout=CONNECT_TIMEOUT)
        else:
            client = http.client.HTTPSConnection(self.host, self.port, timeout=CONNECT_TIMEOUT, context=self.tls)
        try:
            with closing(client):
                client.connect()
                client.sock.settimeout(ANSWER_TIMEOUT)
                began = time.perf_counter()
                client.request(method, self._path + path, body, {**self._headers(), **(headers or {})})
                yield client.getresponse(), began
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise PolyvoxError(f"{method} {self._path}{path} failed: {reason}.") from error

    def _headers(self) -> dict[str, str]:
        return {} if self._key is None else {"authorization": f"Bearer {self._key}"}


def parse_url(url: str) -> SplitResult:
    """The parts of a server's URL; http:// may be left out."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        valid = False
    if not valid:
        raise InvalidRequest("server", url, "must be a URL such as http://127.0.0.1:8000")
    return parts


def parse_metrics(text: str) -> dict[str, float]:
    """Each metric with its labels, and the sum over them by the name alone, from Prometheus's text format."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        if series and not line.startswith("#"):
            for name in {series, series.partition("{")[0]}:
                found[name] = found.get(name, 0.0) + float(value)
    return found
