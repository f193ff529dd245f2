# SPDX-License-Identifier: Apache-2.0
"""An engine without a model and a server on it, shared by the tests of a file and reset for each test."""

from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from ipc.engine_processes import eventually
from polyvox.server.settings import Settings
from server.fakes import MAX_STREAMS, PausableEngine
from server.live_server import RunningServer, serving


@pytest.fixture(scope="module")
def server_settings() -> Settings:
    """Overridden by files that need other settings."""
    return Settings(max_text_chars=5000)


@pytest.fixture(scope="module")
def shared_engine() -> Iterator[PausableEngine]:
    with closing(PausableEngine()) as engine:
        yield engine


@pytest.fixture(scope="module")
def shared_server(shared_engine: PausableEngine, server_settings: Settings) -> Iterator[RunningServer]:
    with serving(shared_engine, server_settings) as server:
        yield server


@pytest.fixture
def engine(shared_engine: PausableEngine) -> Iterator[PausableEngine]:
    shared_engine.requests.clear()
    yield shared_engine
    shared_engine.max_streams = MAX_STREAMS
    shared_engine.resume()
    eventually(lambda: shared_engine.streams == 0)


@pytest.fixture
def server(shared_server: RunningServer, engine: PausableEngine) -> Iterator[RunningServer]:
    shared_server.state.synthesis._rejections.clear()  # of the previous test
    yield shared_server
    engine.resume()
    eventually(lambda: not shared_server.state.synthesis.active)


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client
