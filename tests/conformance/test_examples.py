# SPDX-License-Identifier: Apache-2.0
"""The examples that need client packages or a browser."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import sync_playwright

from conformance.capture import SAMPLE_RATE
from conformance.playground_page import ARGUMENTS, CHROMIUM
from conformance.server_process import TIMEOUT, ServerProcess, run_server
from polyvox.audio import read_audio

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(("name", "scheme"), [("pipecat_agent.py", "ws"), ("livekit_agent.py", "http")])
def test_an_agent_speaks(name: str, scheme: str, server: ServerProcess, tmp_path: Path) -> None:
    url = server.url.replace("http", scheme)
    command = [sys.executable, str(EXAMPLES / name), str(tmp_path / "answer.wav"), "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    assert len(read_audio(tmp_path / "answer.wav", SAMPLE_RATE)) > 3 * SAMPLE_RATE


@pytest.fixture
def page() -> Iterator[str]:
    """The browser example on a port of its own."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(EXAMPLES / "browser"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as files:
        Thread(target=files.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{files.server_port}"
        files.shutdown()


def test_a_page_of_another_origin_streams_speech(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYVOX_CORS_ORIGINS", page)
    with run_server(tmp_path) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        tab = browser.new_page()
        tab.goto(f"{page}/?server={server.url}")
        tab.click("button")
        tab.wait_for_selector("body[data-state=received]", timeout=TIMEOUT * 1000)
        assert "first audio after" in tab.inner_text("#status")
        assert int(tab.evaluate("document.body.dataset.samples")) > 2 * SAMPLE_RATE
        browser.close()
