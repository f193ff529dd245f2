# SPDX-License-Identifier: Apache-2.0
"""HTTPS and WSS with a certificate of the server's own."""

import asyncio
import json
import logging
import os
import shutil
import ssl
import threading
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect

from ipc.engine_processes import eventually
from polyvox.errors import InvalidRequest
from polyvox.server import tls
from polyvox.server.settings import Settings
from polyvox.server.settings_sources import load_settings
from polyvox.server.tls import ServerCertificate
from server.certificates import Certificate, create_certificate
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving

pytestmark = pytest.mark.slow

TIMEOUT = 60.0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return create_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return create_certificate(tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="module")
def server_settings(certificate: Certificate) -> Settings:
    return Settings(tls_cert=certificate.cert, tls_key=certificate.key)


def test_speech_streams_over_https(server: RunningServer, engine: PausableEngine, certificate: Certificate) -> None:
    assert server.address.startswith("https://")
    engine.resume(24)
    body = {"input": "Hi.", "response_format": "pcm", "max_new_tokens": 99}
    with (
        server.client(verify=certificate.client_context()) as client,
        client.stream("POST", "/v1/audio/speech", json=body) as response,
    ):
        parts = response.iter_raw()
        first = next(parts)  # the engine is paused after a few chunks
        assert response.status_code == 200
        assert first
        engine.resume()
        assert sum(map(len, parts)) > 0


def test_a_websocket_speaks_over_wss(server: RunningServer, certificate: Certificate) -> None:
    async def speak() -> list[str | bytes]:
        url = f"wss://127.0.0.1:{server.port}/v1/audio/speech/stream"
        # The client with threads reads and writes a TLS connection at once, which fails now and then before 3.13.
        async with connect(url, ssl=certificate.client_context(), proxy=None, open_timeout=TIMEOUT) as websocket:
            await websocket.send(json.dumps({"type": "session.config", "response_format": "pcm"}))
            await websocket.send(json.dumps({"type": "input.text", "text": "Hello there."}))
            await websocket.send(json.dumps({"type": "input.done"}))
            messages = [await websocket.recv()]
            while isinstance(messages[-1], bytes) or json.loads(messages[-1])["type"] != "session.done":
                messages.append(await websocket.recv())
        return messages

    messages = asyncio.run(asyncio.wait_for(speak(), TIMEOUT))
    assert any(isinstance(message, bytes) for message in messages)


def test_a_plain_request_to_a_tls_port_is_refused(server: RunningServer) -> None:
    with httpx.Client(timeout=TIMEOUT, trust_env=False) as client, pytest.raises(httpx.TransportError):
        client.get(f"http://127.0.0.1:{server.port}/livez")


def test_versions_before_tls_1_2_are_refused(certificate: Certificate) -> None:
    assert ServerCertificate(certificate.cert, certificate.key).context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_a_changed_certificate_is_used_for_new_connections_and_an_invalid_one_is_not(
    other: Certificate,
    tmp_path: Path,
    engine: PausableEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tls, "RELOAD_INTERVAL", 0.01)
    caplog.set_level(logging.INFO, tls.__name__)
    current = create_certificate(tmp_path)
    first = Certificate(Path(shutil.copy(current.cert, tmp_path / "first.pem")), current.key)
    with serving(engine, Settings(tls_cert=current.cert, tls_key=current.key)) as server:

        def is_served(certificate: Certificate) -> bool:
            with server.client(verify=certificate.client_context()) as client:
                try:
                    return client.get("/livez").status_code == 200
                except httpx.ConnectError:
                    return False

        assert is_served(first)
        replace(current.cert, other.cert)  # the key is still the old one
        eventually(lambda: logged(caplog, "certificate not loaded") or threading.Event().wait(0.01))
        assert is_served(first)
        replace(current.key, other.key)
        eventually(lambda: logged(caplog, "certificate loaded") or threading.Event().wait(0.01))
        assert is_served(other)
        assert not is_served(first)
        assert sum(record.message == "certificate not loaded" for record in caplog.records) == 1


def replace(path: Path, source: Path) -> None:
    """Replaces a file at once, as the clients of certificate authorities do."""
    os.replace(shutil.copy(source, path.with_suffix(".new")), path)


def logged(caplog: pytest.LogCaptureFixture, event: str) -> bool:
    return any(record.message == event for record in caplog.records)


def test_unchanged_files_are_not_loaded_again(certificate: Certificate) -> None:
    assert not ServerCertificate(certificate.cert, certificate.key).reload()


def test_the_watch_ends_when_it_is_cancelled(certificate: Certificate, caplog: pytest.LogCaptureFixture) -> None:
    async def watch() -> None:
        task = asyncio.create_task(ServerCertificate(certificate.cert, certificate.key).watch())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    caplog.set_level(logging.INFO, tls.__name__)
    asyncio.run(watch())
    assert not caplog.records


def test_invalid_certificates_are_named(certificate: Certificate, other: Certificate, tmp_path: Path) -> None:
    text = tmp_path / "text.pem"
    text.write_text("Hello.")
    encrypted = create_certificate(tmp_path / "encrypted", password="secret")
    cases = [
        ({"tls_cert": tmp_path / "none"}, "'tls_cert': must be a readable file: No such file"),
        ({"tls_cert": text, "tls_key": certificate.key}, "'tls_cert': must be a certificate in PEM format"),
        ({"tls_cert": certificate.cert}, "'tls_key': must be set with tls_cert"),
        ({"tls_key": certificate.key}, "'tls_key': must not be set without tls_cert"),
        ({"tls_cert": certificate.cert, "tls_key": tmp_path}, "'tls_key': must be a readable file: Is a directory"),
        ({"tls_cert": certificate.cert, "tls_key": text}, "'tls_key': must be a key in PEM format"),
        ({"tls_cert": certificate.cert, "tls_key": other.key}, "'tls_key': must be the key of the certificate in"),
        ({"tls_cert": encrypted.cert, "tls_key": encrypted.key}, "'tls_key': must be a key without a password"),
    ]
    for values, message in cases:
        with pytest.raises(InvalidRequest) as caught:
            load_settings({name: str(path) for name, path in values.items()})
        assert message in str(caught.value)
