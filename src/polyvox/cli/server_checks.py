# SPDX-License-Identifier: Apache-2.0
"""polyvox doctor --server: checks of a running server, as a client sees it, through all proxies in between."""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from polyvox import __version__
from polyvox.cli.findings import Finding, counted
from polyvox.cli.timed_client import CONNECT_TIMEOUT, Download, Response, TimedClient, parse_metrics
from polyvox.engine.capacity import LIMITS

NUM_SHORT_REQUESTS = 5
SHORT_TEXT = "Hello there."
# Several sentences: the speech of the first arrives long before that of the last is generated.
LONG_TEXT = (
    "The first sentence of this test is short. The second one is a little longer than the first. "
    "By now a server that streams has sent some audio. The last sentence ends the test."
)
MAX_LATENCY = 1.0  # seconds to the first audio that a listener does not notice in a conversation
MAX_LAG = 0.25  # seconds of the event loop
MIN_CERTIFICATE_DAYS = 14
# Share of a response's time in which its bytes arrive, relative to the share in which the server sent them.
BUFFERED_SHARE = 0.25
STREAMED_SHARE = 0.2  # a response that the server sends in a smaller share of its time shows nothing
PROXY_HELP = "turn off response buffering in the proxy: proxy_buffering off (nginx), flush_interval -1 (Caddy)"
UPGRADE_HELP = "let the proxy forward the headers Upgrade and Connection, with HTTP/1.1"


class ServerChecks:
    """The checks of one server. A finding that makes the others meaningless ends them."""

    def __init__(self, url: str, key: str | None = None, voice: str | None = None) -> None:
        self._client = TimedClient(url, key)
        self._has_key, self._voice = bool(key), voice

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
        host = self._client.host
        try:
            found = socket.getaddrinfo(host, self._client.port, type=socket.SOCK_STREAM)
        except OSError as error:
            yield _end("address", f"{host} cannot be resolved ({error.strerror})", "check the host name and DNS")
            return
        addresses = ", ".join(sorted({str(one[4][0]) for one in found}))
        yield Finding("address", "ok", f"{host} is {addresses}")

    def connection(self) -> Iterator[Finding]:
        began = time.perf_counter()
        try:
            with socket.create_connection((self._client.host, self._client.port), CONNECT_TIMEOUT):
                elapsed = time.perf_counter() - began
        except TimeoutError:
            message = f"port {self._client.port} did not answer within {CONNECT_TIMEOUT:g} s"
            yield _end("connection", message, "open the port in the firewall, or check the address")
            return
        except OSError as error:
            message = f"port {self._client.port} cannot be reached ({error.strerror})"
            yield _end("connection", message, "start the server, or check the port; polyvox serve listens on --host")
            return
        yield Finding("connection", "ok", f"port {self._client.port} in {_ms(elapsed)}")

    def tls(self) -> Iterator[Finding]:
        if self._client.tls is None:
            return
        try:
            with (
                socket.create_connection((self._client.host, self._client.port), CONNECT_TIMEOUT) as plain,
                self._client.tls.wrap_socket(plain, server_hostname=self._client.host) as secure,
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
        response = self._client.get("/readyz")
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
        response = self._client.get("/v1/audio/speech/polyvox-doctor")  # a record that does not exist; never public
        if response.status == 401:
            message = "the server rejects this key" if self._has_key else "the server needs a key"
            yield _end("key", message, "pass one of its api_keys as --key or POLYVOX_SERVER_KEY")
            return
        if response.status != 404:
            yield _end("key", f"the server returned {response.status}: {response.message()}", "read its log")
            return
        yield Finding("key", "ok", "accepted" if self._has_key else "none needed")

    def version(self) -> Iterator[Finding]:
        found = self._client.get("/openapi.json").json().get("info", {}).get("version")
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
        download = self._client.speak(LONG_TEXT, self._voice)
        if download.status != 200 or not download.pieces:
            yield _end("speech", f"the server returned {download.status}: {_error_of(download)}", _speech_fix(download))
            return
        rate = int(self._client.get("/v1/models").json()["data"][0]["sample_rate"])
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
        record = self._client.get(f"/v1/audio/speech/{download.headers.get('x-request-id', '')}").json()
        first, seconds = record.get("first_audio"), record.get("seconds")
        if not isinstance(first, float) or not isinstance(seconds, float) or seconds <= 0:
            return download.spread < BUFFERED_SHARE * STREAMED_SHARE
        sent = (seconds - first) / seconds
        return sent > STREAMED_SHARE and download.spread < BUFFERED_SHARE * sent

    def websocket(self) -> Iterator[Finding]:
        from websockets.exceptions import InvalidHandshake, WebSocketException

        try:
            first, error = asyncio.run(self._client.speak_over_websocket(SHORT_TEXT, self._voice))
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

    def latency(self) -> Iterator[Finding]:
        times = []
        for _ in range(NUM_SHORT_REQUESTS):
            download = self._client.speak(SHORT_TEXT, self._voice)
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
        response = self._client.get("/metrics")
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
        overloaded, restarts = (
            metrics.get('polyvox_requests_total{outcome="overloaded"}', 0.0),
            metrics.get("polyvox_engine_restarts_total", 0.0),
        )
        message = (
            f"{counted(underruns, 'underrun')} in {audio:.0f} s of audio, "
            f"{counted(overloaded, 'request')} rejected for lack of capacity, {counted(restarts, 'restart')}"
        )
        if underruns:
            yield Finding("history", "warn", message, "lower max_streams, or use a faster device")
        elif restarts:
            yield Finding("history", "warn", message, "the server's log has the reason of each restart")
        else:
            yield Finding("history", "ok", message)
        if lag > MAX_LAG:
            yield Finding("event loop", "warn", f"lag of {_ms(lag)}", "raise workers, or free CPU time")


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
