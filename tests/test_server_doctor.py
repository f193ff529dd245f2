# SPDX-License-Identifier: Apache-2.0
"""polyvox doctor --server: a server that works, buffering proxies, wrong keys, dead ports, servers that start."""

import http.client
import json
import os
import socket
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ipc.engine_processes import TIMEOUT, eventually
from ipc.fake_engine import staged
from polyvox.cli import server_checks
from polyvox.cli.findings import Finding, counted
from polyvox.cli.main import main
from polyvox.cli.server_checks import ServerChecks
from polyvox.cli.timed_client import Download, parse_metrics, parse_url
from polyvox.errors import InvalidRequest
from polyvox.ipc.supervisor import EngineProcess
from polyvox.server.server_process import connect_remote
from polyvox.server.settings import Settings
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving, serving_on

KEY = "secret"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving(PausableEngine(step_seconds=0.01), Settings(api_keys=[KEY])) as running:
        yield running


def findings(address: str, key: str | None = KEY) -> dict[str, Finding]:
    """By subject, as the command finds them."""
    found: dict[str, Finding] = {}
    for check in ServerChecks(address, key).checks():
        for finding in check():
            found[finding.subject] = finding
        if any(finding.ends_checks for finding in found.values()):
            break
    return found


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["polyvox", "doctor", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


class BufferingProxy(socketserver.StreamRequestHandler):
    """Forwards a response when it is complete, and no WebSockets."""

    port = 0

    def handle(self) -> None:
        line, headers = self.rfile.readline().decode(), http.client.parse_headers(self.rfile)
        method, path, _ = line.split()
        body = self.rfile.read(int(headers.get("content-length", 0)))
        kept = {name: value for name, value in headers.items() if name.lower() not in ("connection", "upgrade")}
        upstream = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        upstream.request(method, path, body, kept)
        response = upstream.getresponse()
        data = response.read()
        self.wfile.write(f"HTTP/1.1 {response.status} {response.reason}\r\n".encode())
        for name, value in response.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.wfile.write(f"{name}: {value}\r\n".encode())
        self.wfile.write(f"content-length: {len(data)}\r\nconnection: close\r\n\r\n".encode() + data)
        upstream.close()


@contextmanager
def proxied(server: RunningServer) -> Iterator[str]:
    handler = type("Proxy", (BufferingProxy,), {"port": server.port})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as proxy:
        proxy.daemon_threads = True
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{proxy.server_address[1]}"
        proxy.shutdown()
        thread.join(TIMEOUT)


def test_a_server_that_works_has_no_problems(server: RunningServer) -> None:
    found = findings(server.address)
    found.pop("event loop", None)  # a loaded machine may delay it
    assert [*found] == [
        *("address", "connection", "server", "key", "version", "speech", "streaming", "WebSocket", "latency", "load"),
        "history",
    ]
    for subject in ("address", "connection", "server", "key", "version", "speech", "WebSocket"):
        assert found[subject].state == "ok", found[subject]
    assert found["key"].message == "accepted"
    assert "0 requests rejected for lack of capacity" in found["history"].message  # not the checks' own requests


@pytest.mark.parametrize(("number", "text"), [(0, "0 streams"), (1.0, "1 stream"), (1_234_567.0, "1234567 streams")])
def test_numbers_have_a_noun_in_the_right_form(number: float, text: str) -> None:
    assert counted(number, "stream") == text


def test_a_proxy_that_buffers_is_found_and_one_that_drops_websockets(server: RunningServer) -> None:
    with proxied(server) as address:
        found = findings(address)
        checks = ServerChecks(address, KEY)

        def buffers() -> bool:
            """A loaded machine may delay the first audio so much that the rest shows nothing."""
            found.update({finding.subject: finding for finding in checks.streaming()})
            return found["streaming"].broken

        eventually(buffers)
    assert found["speech"].state == "ok"
    assert "a proxy buffers" in found["streaming"].message
    assert "proxy_buffering off" in str(found["streaming"].fix)
    assert found["WebSocket"].broken
    assert "not upgraded" in found["WebSocket"].message


@pytest.mark.parametrize(("key", "message"), [(None, "needs a key"), ("wrong", "rejects this key")])
def test_a_missing_or_wrong_key_ends_the_checks(server: RunningServer, key: str | None, message: str) -> None:
    found = findings(server.address, key)
    assert [*found][-1] == "key"
    assert message in found["key"].message
    assert found["key"].broken


def test_a_dead_port_says_what_to_do_and_the_command_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert run(monkeypatch, "--server", f"127.0.0.1:{port}") == 1
    out, err = capsys.readouterr()
    assert f"port {port} cannot be reached" in out
    assert "start the server" in out
    assert "The server has problems" in err
    assert run(monkeypatch, "--server", f"http://127.0.0.1:{port}", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["findings"][-1]["subject"] == "connection"


def test_an_unknown_host_is_a_problem_of_dns() -> None:
    found = findings("http://no-such-host.invalid")
    assert [*found] == ["address"]
    assert "cannot be resolved" in found["address"].message


def test_tls_on_a_port_without_it_is_explained(server: RunningServer) -> None:
    found = findings(server.address.replace("http://", "https://"))
    assert [*found][-1] == "TLS"
    assert found["TLS"].fix == "use http:// if this port has no TLS"


def test_a_server_that_is_starting_says_when_to_try_again(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with (
        EngineProcess(partial(staged, str(gate)), wait_for_start=False) as process,
        serving_on(connect_remote(process.endpoint), wait=False) as starting,
    ):
        with gate.open("w"):  # when the process has opened it, it has reported the stage
            found = findings(starting.address, None)
        assert [*found][-1] == "server"
        assert found["server"].broken
        assert found["server"].message.startswith("starting: The engine is starting")
        assert "run this command again" in str(found["server"].fix)


def test_another_server_is_not_taken_for_polyvox() -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), OtherServer) as other:
        thread = threading.Thread(target=other.serve_forever, daemon=True)
        thread.start()
        found = findings(f"http://127.0.0.1:{other.server_address[1]}")
        other.shutdown()
    assert "not the status of Polyvox" in found["server"].message


class OtherServer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass
        self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello")


def download(*pieces: tuple[float, int]) -> Download:
    return Download(200, http.client.HTTPMessage(), list(pieces))


def test_a_check_that_fails_unexpectedly_blames_the_server_not_the_installation(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: str) -> dict[str, float]:
        raise ValueError("could not convert string to float: '<html>'")

    monkeypatch.setattr(server_checks, "parse_metrics", fail)
    assert run(monkeypatch, "--server", server.address, "--key", KEY) == 1
    shown = capsys.readouterr().out
    assert "could not convert string" in shown
    assert "check that the URL is that of a Polyvox server" in " ".join(shown.split())
    assert "reinstall" not in shown


def test_pauses_of_a_player_are_counted() -> None:
    rate = 1000  # 2,000 bytes a second
    assert download((0.5, 2000), (1.4, 2000), (2.4, 2000)).underruns(rate) == 0
    late = download((0.5, 2000), (1.6, 200), (1.9, 2000))
    assert late.underruns(rate) == 2
    assert late.audio_seconds(rate) == 2.1
    assert late.max_gap() == pytest.approx(1.1)
    assert download((1.0, 10), (1.0, 10)).spread == 0


def test_metrics_are_added_over_their_labels() -> None:
    text = '# TYPE a gauge\na{replica="0"} 1\na{replica="1"} 2.5\nb 3\n'
    assert parse_metrics(text) == {"a": 3.5, 'a{replica="0"}': 1.0, 'a{replica="1"}': 2.5, "b": 3.0}


@pytest.mark.parametrize("url", ["ftp://example.com", "http://", "http://host:port", "http://host:99999"])
def test_an_invalid_url_is_rejected(url: str) -> None:
    with pytest.raises(InvalidRequest, match="must be a URL"):
        parse_url(url)


def test_the_command_accepts_a_url_without_a_scheme() -> None:
    parts: Any = parse_url("tts.example.com:8000/polyvox")
    assert (parts.scheme, parts.hostname, parts.port, parts.path) == ("http", "tts.example.com", 8000, "/polyvox")
