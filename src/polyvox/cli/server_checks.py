# SPDX-License-Identifier: Apache-2.0
"""polyvox doctor --server: checks of a running server, as a client sees it, through all proxies in between."""

import asyncio
import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from urllib.parse import SplitResult, urlsplit

from polyvox import __version__
from polyvox.cli.findings import Finding, counted
from polyvox.engine.capacity import LIMITS
from polyvox.errors import InvalidRequest, PolyvoxError

CONNECT_TIMEOUT = 5.0  # seconds
ANSWER_TIMEOUT = 60.0  # seconds between two pieces of a response
NUM_SHORT_REQUESTS = 5
SHORT_TEXT = "Hello there."
# Several sentences: the speech of the first arrives long before that of the last is generated.
LONG_TEXT = (
    "The first sentence of this test is short. The second one is a little longer than the first. "
    "By now a server that streams has sent some audio. The last sentence ends the test."
)
SAMPLE_BYTES = 2  # of pcm
MAX_LATENCY = 1.0  # seconds to the first audio that a listener does not notice in a conversation
MAX_LAG = 0.25  # seconds of the event loop
MIN_CERTIFICATE_DAYS = 14
# Share of a response's time in which its bytes arrive, relative to the share in which the server sent them.
BUFFERED_SHARE = 0.25
STREAMED_SHARE = 0.2  # a response that the server sends in a smaller share of its time shows nothing
PROXY_HELP = "turn off response buffering in the proxy: proxy_buffering off (nginx), flush_interval -1 (Caddy)"
UPGRADE_HELP = "let the proxy forward the headers Upgrade and Connection, with HTTP/1.1"


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


class ServerChecks:
    """The checks of one server. A finding that makes the others meaningless ends them."""

    def __init__(self, url: str, key: str | None = None, voice: str | None = None) -> None:
        self._url = parse_url(url)
        self._key, self._voice = key, voice
        self._tls = ssl.create_default_context() if self._url.scheme == "https" else None
        assert self._url.hostname is not None
        self._host = self._url.hostname
        self._port = self._url.port or (443 if self._tls else 80)
        self._path = self._url.path.rstrip("/")

    def checks(self) -> Sequence[Callable[[], Iterator[Finding]]]:
        return (
            self.address,
            self.connection,
            self.tls,
            self.readiness,
            self.access,
            self.version,
            self.streaming,
            self.websocket,
            self.latency,
            self.load,
        )

    def address(self) -> Iterator[Finding]:
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError as error:
            yield _end("address", f"{self._host} cannot be resolved ({error.strerror})", "check the host name and DNS")
            return
        yield Finding("address", "ok", f"{self._host} is {', '.join(sorted({str(one[4][0]) for one in found}))}")

    def connection(self) -> Iterator[Finding]:
        began = time.perf_counter()
        try:
            with socket.create_connection((self._host, self._port), CONNECT_TIMEOUT):
                elapsed = time.perf_counter() - began
        except TimeoutError:
            message = f"port {self._port} did not answer within {CONNECT_TIMEOUT:g} s"
            yield _end("connection", message, "open the port in the firewall, or check the address")
            return
        except OSError as error:
            message = f"port {self._port} cannot be reached ({error.strerror})"
            yield _end("connection", message, "start the server, or check the port; polyvox serve listens on --host")
            return
        yield Finding("connection", "ok", f"port {self._port} in {_ms(elapsed)}")

    def tls(self) -> Iterator[Finding]:
        if self._tls is None:
            return
        try:
            with (
                socket.create_connection((self._host, self._port), CONNECT_TIMEOUT) as plain,
                self._tls.wrap_socket(plain, server_hostname=self._host) as secure,
            ):
                version, certificate = secure.version(), secure.getpeercert() or {}
        except ssl.SSLCertVerificationError as error:
            fix = "use a certificate of this name and its whole chain; for one of your own set SSL_CERT_FILE"
            yield _end("TLS", f"the certificate is not valid: {error.verify_message}", fix)
            return
        except (ssl.SSLError, OSError) as error:
            yield _end("TLS", f"the handshake failed ({error})", "use http:// if this port has no TLS")
            return
        expires = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(certificate["notAfter"])), UTC)
        days = (expires - datetime.now(UTC)).days
        message = f"{version}, the certificate is valid for {days} days"
        if days < MIN_CERTIFICATE_DAYS:
            yield Finding("TLS", "warn", message, "renew the certificate")
        else:
            yield Finding("TLS", "ok", message)

    def readiness(self) -> Iterator[Finding]:
        response = self._get("/readyz")
        found = response.json()
        status = found.get("status")
        if "problem" not in found:
            message = f"/readyz returned {response.status} and not the status of Polyvox"
            yield _end("server", message, "check the URL and the path prefix (root_path)")
            return
        if response.status != 200:
            seconds = found.get("retry_after")
            fix = f"run this command again in {seconds:.0f} s" if seconds else "read the server's log"
            yield _end("server", f"{status}: {found['problem']}", fix)
            return
        requests = counted(found.get("streams", 0), "request")
        yield Finding("server", "ok", f"ready; model {found.get('model')}, {requests} in progress")
        if limit := LIMITS.get(str(found.get("capacity_limit"))):
            yield Finding("capacity", "ok", f"{counted(found['capacity'], 'stream')} in real time, limited by {limit}")
        for replica in found.get("replicas", []):
            name = f"replica {replica['replica']}"
            if replica["status"] == "ready":
                message = f"ready; {counted(replica['streams'], 'stream')}, capacity {replica['capacity']}"
                yield Finding(name, "ok", f"{message}, {counted(replica['restarts'], 'restart')}")
            else:
                yield Finding(name, "warn", f"{replica['status']}: {replica['problem']}", "read the server's log")

    def access(self) -> Iterator[Finding]:
        response = self._get("/v1/audio/speech/polyvox-doctor")  # a record that does not exist; never public
        if response.status == 401:
            message = "the server rejects this key" if self._key else "the server needs a key"
            yield _end("key", message, "pass one of its api_keys as --key or POLYVOX_SERVER_KEY")
            return
        if response.status != 404:
            yield _end("key", f"the server returned {response.status}: {response.message()}", "read its log")
            return
        yield Finding("key", "ok", "accepted" if self._key else "none needed")

    def version(self) -> Iterator[Finding]:
        found = self._get("/openapi.json").json().get("info", {}).get("version")
        if found is None:
            yield Finding(
                "version", "warn", "unknown: /openapi.json is not available", "let the proxy forward all paths"
            )
        elif found != __version__:
            yield Finding("version", "warn", f"{found}; this command is {__version__}", "upgrade the older one")
        else:
            yield Finding("version", "ok", str(found))

    def streaming(self) -> Iterator[Finding]:
        """Speech arrives while it is generated, without pauses, and no proxy buffers it."""
        download = self._speak(LONG_TEXT)
        if download.status != 200 or not download.pieces:
            yield _end("speech", f"the server returned {download.status}: {_error_of(download)}", _speech_fix(download))
            return
        rate = int(self._get("/v1/models").json()["data"][0]["sample_rate"])
        seconds = download.audio_seconds(rate)
        spoken = f"{seconds:.1f} s of speech in {download.last:.2f} s, the first bytes after {_ms(download.first)}"
        yield Finding("speech", "ok", f"{spoken}, {len(download.pieces)} pieces, gaps up to {_ms(download.max_gap())}")
        if self._is_buffered(download):
            message = f"all audio arrived at once, after {download.first:.2f} s: a proxy buffers responses"
            yield _failure("streaming", message, PROXY_HELP)
        elif underruns := download.underruns(rate):
            message = f"a player that starts at once pauses {underruns} times; the audio arrives slower than it plays"
            fix = (
                "use a smaller model, a faster device or fewer streams"
                if download.last > seconds
                else "check the network"
            )
            yield Finding("streaming", "warn", message, fix)
        else:
            yield Finding("streaming", "ok", "audio arrives while it is generated, and a player has no pauses")

    def _is_buffered(self, download: Download) -> bool:
        """Whether the response arrived in a much smaller share of its time than that in which the server sent it."""
        record = self._get(f"/v1/audio/speech/{download.headers.get('x-request-id', '')}").json()
        first, seconds = record.get("first_audio"), record.get("seconds")
        if not isinstance(first, float) or not isinstance(seconds, float) or seconds <= 0:
            return download.spread < BUFFERED_SHARE * STREAMED_SHARE
        sent = (seconds - first) / seconds
        return sent > STREAMED_SHARE and download.spread < BUFFERED_SHARE * sent

    def websocket(self) -> Iterator[Finding]:
        from websockets.exceptions import InvalidHandshake, WebSocketException

        try:
            first, error = asyncio.run(self._speak_over_websocket())
        except InvalidHandshake as problem:
            yield _failure("WebSocket", f"the connection was not upgraded ({problem})", UPGRADE_HELP)
        except (WebSocketException, OSError, TimeoutError) as problem:
            name = str(problem) or type(problem).__name__
            yield _failure("WebSocket", f"the connection failed ({name})", UPGRADE_HELP)
        else:
            if error is not None:
                yield _failure("WebSocket", f"the server reported: {error}", "read the server's log")
            elif first is None:
                yield _failure("WebSocket", "no audio arrived", "read the server's log")
            else:
                yield Finding("WebSocket", "ok", f"first audio after {_ms(first)}")

    async def _speak_over_websocket(self) -> tuple[float | None, str | None]:
        """Seconds until the first audio, and the error that the server reported.

        The client with threads reads and writes a TLS connection at once, which fails now and then before Python 3.13.
        """
        from websockets.asyncio.client import connect

        scheme = "wss" if self._tls else "ws"
        host = f"[{self._host}]" if ":" in self._host else self._host
        url = f"{scheme}://{host}:{self._port}{self._path}/v1/audio/speech/stream"
        voice = {} if self._voice is None else {"voice": self._voice}
        messages: list[dict[str, object]] = [
            {"type": "session.config", "response_format": "pcm", "stream_audio": True, **voice},
            {"type": "input.text", "text": SHORT_TEXT},
            {"type": "input.done"},
        ]
        first: float | None = None
        async with connect(
            url,
            additional_headers=self._headers(),
            open_timeout=CONNECT_TIMEOUT,
            close_timeout=CONNECT_TIMEOUT,
            ssl=self._tls,
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

    def latency(self) -> Iterator[Finding]:
        times = []
        for _ in range(NUM_SHORT_REQUESTS):
            download = self._speak(SHORT_TEXT)
            if download.status != 200 or not download.pieces:
                message = f"a short request got {download.status}: {_error_of(download)}"
                yield Finding("latency", "warn", message, _speech_fix(download))
                return
            times.append(download.first)
        times.sort()
        median, largest = times[len(times) // 2], times[-1]
        message = f"first audio of {len(times)} short requests after {_ms(median)} (median), {_ms(largest)} (maximum)"
        if median > MAX_LATENCY:
            yield Finding("latency", "warn", message, "check load and network; a conversation needs less than 1 s")
        else:
            yield Finding("latency", "ok", message)

    def load(self) -> Iterator[Finding]:
        """Capacity, queue, underruns and rejections, as the server counts them."""
        response = self._get("/metrics")
        if response.status != 200:
            yield Finding("load", "warn", f"/metrics returned {response.status}", "let the proxy forward /metrics")
            return
        metrics = parse_metrics(response.body.decode(errors="replace"))
        streams, capacity = metrics.get("polyvox_engine_streams", 0.0), metrics.get("polyvox_streams_admissible", 0.0)
        queued, lag = metrics.get("polyvox_queue_depth", 0.0), metrics.get("polyvox_event_loop_lag_seconds", 0.0)
        message = f"{streams:g} of {counted(capacity, 'stream')} in real time, {counted(queued, 'request')} queued"
        if queued or (capacity and streams >= capacity):
            yield Finding("load", "warn", f"{message}: at capacity", "add replicas or servers")
        else:
            yield Finding("load", "ok", message)
        underruns, audio = (
            metrics.get("polyvox_playback_underruns_total", 0.0),
            metrics.get("polyvox_audio_seconds_total", 0.0),
        )
        rejected, restarts = (
            metrics.get("polyvox_rejections_total", 0.0),
            metrics.get("polyvox_engine_restarts_total", 0.0),
        )
        message = (
            f"{counted(underruns, 'underrun')} in {audio:.0f} s of audio, {counted(rejected, 'rejected request')}, "
            f"{counted(restarts, 'restart')}"
        )
        if underruns:
            yield Finding("history", "warn", message, "lower max_streams, or use a faster device")
        elif restarts:
            yield Finding("history", "warn", message, "the server's log has the reason of each restart")
        else:
            yield Finding("history", "ok", message)
        if lag > MAX_LAG:
            yield Finding("event loop", "warn", f"lag of {_ms(lag)}", "raise workers, or free CPU time")

    # Requests

    def _speak(self, text: str) -> Download:
        """Speech as pcm, with the time of each piece."""
        body = {"input": text, "response_format": "pcm"} | ({} if self._voice is None else {"voice": self._voice})
        headers = {"content-type": "application/json"}
        with self._request("POST", "/v1/audio/speech", json.dumps(body).encode(), headers) as (response, began):
            download = Download(response.status, response.headers)
            while piece := response.read1(1 << 16):
                download.pieces.append((time.perf_counter() - began, len(piece)))
                download.start = download.start or piece[:1000]
            return download

    def _get(self, path: str) -> Response:
        with self._request("GET", path) as (response, _):
            return Response(response.status, response.headers, response.read())

    @contextmanager
    def _request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Iterator[tuple[http.client.HTTPResponse, float]]:
        """A response whose body is not read yet, and the time at which the request was sent."""
        if self._tls is None:
            client = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_TIMEOUT)
        else:
            client = http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT_TIMEOUT, context=self._tls)
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
    """The sum of each metric over its labels, from Prometheus's text format."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name and not line.startswith("#"):
            name = name.partition("{")[0]
            found[name] = found.get(name, 0.0) + float(value)
    return found


def _failure(subject: str, message: str, fix: str) -> Finding:
    return Finding(subject, "fail", message, fix, essential=True)


def _end(subject: str, message: str, fix: str) -> Finding:
    """A failure after which other checks show nothing."""
    return Finding(subject, "fail", message, fix, essential=True, ends_checks=True)


def _error_of(download: Download) -> str:
    return Response(download.status, download.headers, download.start).message()


def _speech_fix(download: Download) -> str:
    if download.status == 503:
        return f"try again in {download.headers.get('retry-after', 'some')} s; if it stays so, add capacity"
    return "pass a voice of the server as --voice" if download.status in (400, 404, 422) else "read the server's log"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
