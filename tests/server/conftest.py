"""An engine without a model and a server on it: one of each for the tests of a file, as if new for every test."""

from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from ipc.engine_processes import eventually
from polyvox.server.settings import Settings
from server.fakes import PLACES, HeldEngine
from server.live_server import Serving, serving


@pytest.fixture(scope="module")
def server_settings() -> Settings:
    """A file that needs others has its own."""
    return Settings(max_text=5000)


@pytest.fixture(scope="module")
def shared_engine() -> Iterator[HeldEngine]:
    with closing(HeldEngine()) as engine:
        yield engine


@pytest.fixture(scope="module")
def shared_server(shared_engine: HeldEngine, server_settings: Settings) -> Iterator[Serving]:
    with serving(shared_engine, server_settings) as server:
        yield server


@pytest.fixture
def engine(shared_engine: HeldEngine) -> Iterator[HeldEngine]:
    shared_engine.asked.clear()
    yield shared_engine
    shared_engine.places = PLACES
    shared_engine.let_go()
    eventually(lambda: shared_engine.streams == 0)


@pytest.fixture
def server(shared_server: Serving, engine: HeldEngine) -> Iterator[Serving]:
    shared_server.desk.speaker._refusals.clear()  # of the test before
    yield shared_server
    engine.let_go()
    eventually(lambda: not shared_server.desk.speaker.open)


@pytest.fixture
def client(server: Serving) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client
