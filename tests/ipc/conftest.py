# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the process of a fake engine, and a client of it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from ipc.engine_processes import fake_engine_process
from polyvox.ipc.client import AsyncRemoteEngine
from polyvox.ipc.supervisor import EngineProcess


@pytest.fixture(scope="module")
def process() -> Iterator[EngineProcess]:
    with fake_engine_process() as running:
        yield running


@pytest.fixture
async def engine(process: EngineProcess) -> AsyncIterator[AsyncRemoteEngine]:
    running = AsyncRemoteEngine(process.endpoint)
    yield running
    await running.close()
