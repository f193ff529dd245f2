# SPDX-License-Identifier: Apache-2.0
"""The servers under test: one on the embedded voice, one on a tiny Base checkpoint."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from conformance.playground_page import ARGUMENTS, CHROMIUM, PlaygroundPage, open_page
from conformance.realtime_server import RealtimeServer, run_realtime_server
from conformance.server_process import ServerProcess, run_server
from ipc.engine_processes import eventually


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server on the embedded voice."""
    with run_server(tmp_path_factory.mktemp("voices")) as running:
        yield running


@pytest.fixture(scope="session")
def cloning(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server on a tiny Base checkpoint with random weights, for cloning."""
    with run_server(tmp_path_factory.mktemp("library"), "--model", str(checkpoints / "base")) as running:
        yield running


@pytest.fixture(scope="session")
def shared_realtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealtimeServer]:
    with run_realtime_server(tmp_path_factory.mktemp("voices")) as running:
        yield running


@pytest.fixture
def realtime(shared_realtime: RealtimeServer) -> Iterator[RealtimeServer]:
    """A server with an LLM that gives one answer and an STT server that hears one question."""
    shared_realtime.reset()
    yield shared_realtime
    shared_realtime.llm.release()
    shared_realtime.stt.release()
    eventually(lambda: shared_realtime.process.active_streams() == 0 and shared_realtime.llm.num_active == 0)
    assert shared_realtime.process.errors() == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture
def visit(browser: Browser, server: ServerProcess) -> Iterator[PlaygroundPage]:
    with open_page(browser, server.url) as visit:
        yield visit


@pytest.fixture(autouse=True)
def _no_errors(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test leaves an error in the log of a server that it used."""
    yield
    for name in {"server", "cloning"} & set(request.fixturenames):
        running: ServerProcess = request.getfixturevalue(name)
        assert running.errors() == []
