# SPDX-License-Identifier: Apache-2.0
"""The engine's status in shared memory: complete at every read, and never without space."""

import os
import threading
from contextlib import closing
from pathlib import Path

import pytest

from polyvox.engine.engine_status import EngineState, EngineStatus
from polyvox.ipc.shared_record import HEADER, SIZE
from polyvox.ipc.status_file import StatusFile


def test_a_reader_sees_what_was_written_last(tmp_path: Path) -> None:
    with closing(StatusFile(tmp_path, create=True)) as writer, closing(StatusFile(tmp_path)) as reader:
        assert reader.read() == EngineStatus(EngineState.STARTING)
        status = EngineStatus(EngineState.RESTARTING, "load", 0.5, "it died", 1.5, 2.5, 3.5, 4, 24_000)
        writer.write(status)
        assert reader.read() == status
        writer.write(EngineStatus(EngineState.RUNNING, reason="é" * SIZE))
        assert reader.read().reason.startswith("é" * 100)
    assert os.stat(tmp_path / "status").st_blocks * 512 >= SIZE  # all of its space is allocated


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("\x1b" * 2 * SIZE, "\x1b" * 100),
        ("\U0001f600" * SIZE, "\U0001f600" * 100),
        ("/caf\udce9 is missing", "/caf? is missing"),
    ],
    ids=["escapes", "wide", "undecodable"],
)
def test_any_reason_can_be_written(reason: str, shown: str, tmp_path: Path) -> None:
    with closing(StatusFile(tmp_path, create=True)) as writer, closing(StatusFile(tmp_path)) as reader:
        writer.write(
            EngineStatus(EngineState.RESTARTING, "x" * 100, 1 / 3, reason, 1 / 3, 1e-300, 1 / 3, 10**18, 10**18)
        )
        assert reader.read().reason.startswith(shown)


def test_a_read_during_writes_is_never_a_mixture(tmp_path: Path) -> None:
    states = [
        EngineStatus(EngineState.RESTARTING, reason=letter * 700, num_restarts=n) for n, letter in enumerate("ab")
    ]
    done = threading.Event()
    with closing(StatusFile(tmp_path, create=True)) as writer, closing(StatusFile(tmp_path)) as reader:
        writer.write(states[0])

        def write() -> None:
            while not done.is_set():
                for status in states:
                    writer.write(status)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            assert all(reader.read() in states for _ in range(5000))
        finally:
            done.set()
            thread.join()


def test_a_writer_that_was_killed_during_a_write_leaves_the_status_before_it(tmp_path: Path) -> None:
    with closing(StatusFile(tmp_path, create=True)) as writer, closing(StatusFile(tmp_path)) as reader:
        status = EngineStatus(EngineState.RUNNING, sample_rate=24_000)
        writer.write(status)
        assert reader.read() == status
        writer._map[20:30] = b"0" * 10
        assert reader.read() == status


def test_a_header_that_was_only_cleared_is_no_status(tmp_path: Path) -> None:
    with closing(StatusFile(tmp_path, create=True)) as writer, closing(StatusFile(tmp_path)) as reader:
        status = EngineStatus(EngineState.RUNNING, sample_rate=24_000)
        writer.write(status)
        assert reader.read() == status
        writer._map[: HEADER.size] = bytes(HEADER.size)
        assert reader.read() == status
