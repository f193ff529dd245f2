# SPDX-License-Identifier: Apache-2.0
"""nginx, Caddy and Traefik in front of a server, with the files of deploy/proxies: streams and WebSockets."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from websockets.sync.client import connect

from conformance.server_process import ServerProcess, run_server
from ipc.engine_processes import eventually
from server.certificates import Certificate, create_certificate

FOLDER = Path(__file__).parents[2] / "deploy/proxies"
PROGRAMS = Path(__file__).parents[2] / ".conformance/clients/deployment/bin"
TIMEOUT = 120.0
HOST = "tts.example.com"
STREAMING = {"stream_audio": True, "split_granularity": "sentence"}
MAX_DIFFERENCE = 1e-3  # of samples: sums of another batch are rounded differently
# Long enough that it cannot be finished when its first audio arrives: later sentences wait for the reader.
TEXT = " ".join(f"This is sentence number {number} of a long text that is read aloud." for number in range(20))


class Proxy:
    """A running proxy. verify: how clients check its certificate."""

    def __init__(self, port: int, verify: ssl.SSLContext | None) -> None:
        self.port, self.verify = port, verify

    def client(self) -> httpx.Client:
        scheme = "http" if self.verify is None else "https"
        url = f"{scheme}://127.0.0.1:{self.port}"
        verify = self.verify or False
        return httpx.Client(base_url=url, verify=verify, headers={"host": HOST}, timeout=TIMEOUT, trust_env=False)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def replaced(name: str, changes: dict[str, str]) -> str:
    """A file of deploy/proxies with other addresses and files."""
    text = (FOLDER / name).read_text()
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def nginx_command(folder: Path, port: int, upstream: str, certificate: Certificate) -> list[str]:
    changes = {
        "listen 443": f"listen 127.0.0.1:{port}",
        "127.0.0.1:8000": upstream,
        "/etc/ssl/certs/tts.example.com.pem": str(certificate.cert),
        "/etc/ssl/private/tts.example.com.key": str(certificate.key),
    }
    site = folder / "polyvox.conf"
    site.write_text(replaced("nginx.conf", changes))
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = folder / "main.conf"
    main.write_text(
        f"daemon off; pid {folder}/pid; error_log stderr;\nevents {{}}\n"
        f"http {{\naccess_log off;\ngzip on;\n{paths}include {site};\n}}\n"
    )
    return ["nginx", "-p", str(folder), "-c", str(main), "-e", "stderr"]


def caddy_command(folder: Path, port: int, upstream: str, certificate: Certificate) -> list[str]:
    site = f"{{\nadmin off\nauto_https off\n}}\nhttps://:{port}"
    changes = {
        "tts.example.com {": f"{site} {{\n\ttls {certificate.cert} {certificate.key}",
        "127.0.0.1:8000": upstream,
    }
    file = folder / "Caddyfile"
    file.write_text(replaced("Caddyfile", changes).partition("\n")[2])
    return ["caddy", "run", "--config", str(file), "--adapter", "caddyfile"]


def traefik_command(folder: Path, port: int, upstream: str, _: Certificate) -> list[str]:
    routes = folder / "traefik-routes.yaml"
    routes.write_text(replaced("traefik-routes.yaml", {"127.0.0.1:8000": upstream}))
    main = folder / "traefik.yaml"
    main.write_text(replaced("traefik.yaml", {":8080": f"127.0.0.1:{port}", "traefik-routes.yaml": str(routes)}))
    return [str(PROGRAMS / "traefik"), f"--configFile={main}"]


COMMANDS = {"nginx": nginx_command, "caddy": caddy_command, "traefik": traefik_command}


@contextmanager
def running(name: str, folder: Path, server: ServerProcess) -> Iterator[Proxy]:
    certificate = create_certificate(folder / "tls", HOST)
    port = free_port()
    command = COMMANDS[name](folder, port, server.url.removeprefix("http://"), certificate)
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {name}: apt install {name}")
    environment = {**os.environ, "HOME": str(folder)}
    log = (folder / "log").open("w+")
    with log, subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log) as process:
        proxy = Proxy(port, None if name == "traefik" else certificate.client_context())

        def is_ready() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            try:
                with proxy.client() as client:
                    return client.get("/readyz").status_code == 200
            except httpx.TransportError:
                return threading.Event().wait(0.05)

        try:
            eventually(is_ready)
            yield proxy
        finally:
            process.terminate()
            process.wait(TIMEOUT)


@pytest.fixture(scope="module")
def public_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that has the proxies' host name."""
    with run_server(tmp_path_factory.mktemp("voices"), "--allowed-hosts", HOST, "--max-queue-seconds", "25") as server:
        yield server


@pytest.fixture(scope="module", params=COMMANDS)
def proxy(
    request: pytest.FixtureRequest, public_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxy]:
    with running(request.param, tmp_path_factory.mktemp(request.param), public_server) as proxy:
        yield proxy


@contextmanager
def streamed(proxy: Proxy, text: str = TEXT, **body: str | int) -> Iterator[httpx.Response]:
    """A streaming response. A server on a busy machine may reject a request; the client then tries again."""
    with proxy.client() as client:
        while True:
            with client.stream("POST", "/v1/audio/speech", json={"input": text, **body}) as response:
                if response.status_code != 503:
                    assert response.status_code == 200
                    yield response
                    return
            threading.Event().wait(1.0)


@pytest.mark.parametrize("format", ["pcm", "mp3"])
def test_audio_arrives_while_it_is_generated(proxy: Proxy, public_server: ServerProcess, format: str) -> None:
    finished = len(public_server.finished_requests())
    with streamed(proxy, response_format=format) as response:
        parts = response.iter_raw()  # closes the response when it is deleted
        assert next(parts)
        assert public_server.active_streams() == 1
        assert len(public_server.finished_requests()) == finished
    eventually(
        lambda: public_server.active_streams() == 0 or threading.Event().wait(0.05)
    )  # the client has disconnected


def test_events_arrive_one_by_one(proxy: Proxy, public_server: ServerProcess) -> None:
    with streamed(proxy, response_format="pcm", stream_format="sse") as response:
        lines = response.iter_lines()
        first = next(lines)
        assert json.loads(first.removeprefix("data: "))["type"] == "speech.audio.delta"
        assert public_server.active_streams() == 1
    eventually(lambda: public_server.active_streams() == 0 or threading.Event().wait(0.05))


def test_a_whole_stream_has_the_samples_of_the_server(proxy: Proxy, public_server: ServerProcess) -> None:
    text = "Good morning. It is late."
    with streamed(proxy, text, response_format="pcm", seed=5) as response:
        content = response.read()
    assert response.headers["x-request-id"]
    samples = np.frombuffer(content, "<i2") / np.float32(32768)
    expected = public_server.one_shot(text, 5)
    assert len(samples) == len(expected)
    assert np.abs(samples - expected).max() < MAX_DIFFERENCE


def test_a_websocket_streams_text_and_audio(proxy: Proxy, public_server: ServerProcess) -> None:
    scheme = "ws" if proxy.verify is None else "wss"
    url = f"{scheme}://{HOST}:{proxy.port}/v1/audio/speech/stream"
    connection = socket.create_connection(("127.0.0.1", proxy.port), TIMEOUT)
    context = proxy.verify
    if context is not None:
        context.check_hostname = False
    with connect(url, sock=connection, ssl=context, open_timeout=TIMEOUT, proxy=None) as websocket:
        websocket.send(json.dumps({"type": "session.config", "response_format": "pcm", **STREAMING}))
        websocket.send(json.dumps({"type": "input.text", "text": "This is the first sentence. This is"}))
        while not isinstance(websocket.recv(TIMEOUT), bytes):
            pass
        websocket.send(json.dumps({"type": "input.text", "text": " the second one."}))  # after the first audio
        websocket.send(json.dumps({"type": "input.done"}))
        message: str | bytes = b""
        while isinstance(message, bytes) or json.loads(message)["type"] != "session.done":
            message = websocket.recv(TIMEOUT)
    assert public_server.errors() == []


def test_the_log_has_the_address_of_the_client(proxy: Proxy, public_server: ServerProcess) -> None:
    with streamed(proxy, "Hi.") as response:
        identifier = response.headers["x-request-id"]
        response.read()
    eventually(lambda: any(record["request_id"] == identifier for record in public_server.finished_requests()))
    (record,) = [each for each in public_server.finished_requests() if each["request_id"] == identifier]
    assert record["client"] == "127.0.0.1"
