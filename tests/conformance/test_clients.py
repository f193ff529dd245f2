# SPDX-License-Identifier: Apache-2.0
"""Every stock client, in each version that is supported, receives speech with nothing changed but the address."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.client_runs import ENVIRONMENTS, RUNS, ClientRun, run_client, run_server_with_wyoming
from conformance.server_process import ServerProcess

ENVIRONMENT_FILES = Path(__file__).parent / "environments"
MAX_FIRST_SHARE = 0.6  # of the time to the end, for a client that streams


@pytest.fixture(scope="module")
def server_and_wyoming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, str]]:
    with run_server_with_wyoming(tmp_path_factory.mktemp("voices")) as running:
        yield running


@pytest.mark.parametrize("run", [pytest.param(run, id=run.label) for run in RUNS])
def test_a_stock_client_receives_speech(run: ClientRun, server_and_wyoming: tuple[ServerProcess, str]) -> None:
    found = run_client(run, *server_and_wyoming)
    assert found["version"]
    assert not run.streams or found["first"] < MAX_FIRST_SHARE * found["end"]


def test_every_environment_is_used_and_set_up() -> None:
    names = {file.stem for file in ENVIRONMENT_FILES.glob("*.txt")} | {"node"}
    assert names == {run.environment for run in RUNS} - {""} | {"ray", "deployment"}  # test_ray.py, test_deployment.py
    assert names <= {folder.name for folder in ENVIRONMENTS.iterdir()}
