"""The servers that all clients talk to: one on the embedded voice, one on a tiny checkpoint that clones."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.serve import Served, served


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """On the embedded voice."""
    with served(tmp_path_factory.mktemp("voices")) as running:
        yield running


@pytest.fixture(scope="session")
def cloning(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """On a tiny Base checkpoint with random weights."""
    with served(tmp_path_factory.mktemp("library"), "--model", str(checkpoints / "base")) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_failures(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test leaves an error in the log of a server that it used, or something that is still being said."""
    yield
    for name in {"server", "cloning"} & set(request.fixturenames):
        running: Served = request.getfixturevalue(name)
        assert running.failures() == []
