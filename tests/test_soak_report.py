# SPDX-License-Identifier: Apache-2.0
"""The checks of the mixed soak on synthetic records: a good run passes all of them, and each defect fails its own."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from soak.mixed_load import PLAYER_SECONDS, SAMPLE_RATE, ClientResult, MixedLoad, Player
from soak.recorder import ProcessTree, Recorder, is_running
from soak.soak_report import (
    SoakRecord,
    count_streams_left,
    fit_slope,
    markdown,
    run_checks,
    total_of_counter,
    write_report,
)

SECONDS = 1000
KILLED_AT = 200.0


def sample(at: float) -> dict[str, Any]:
    roles = {"1": "main", "2": "engine", "3": "server"}
    values = {"rss": 100e6, "descriptors": 30, "threads": 8}
    return {
        "at": at,
        "processes": {pid: {"role": role, **values} for pid, role in roles.items()},
        "metrics": {"streams": 5.0, "queue": 0.0, "capacity": 31.0, "pages_free": 1200.0, "engine_underruns": 0.0},
        "clients": {"ttfa": [0.1, 0.2, 0.3], "underruns": 0, "outcomes": {"complete": 1}},
    }


def client(at: float, **fields: Any) -> dict[str, Any]:
    request = f"text {at % 7}"
    values = {"kind": "http", "outcome": "complete", "audio_seconds": 2.0, "underruns": 0, "first_audio": 0.1}
    return {"started": at, "ended": at + 3, "request": request, "digest": request, **values, **fields}


def good_record() -> SoakRecord:
    run = {
        "profile": "made-up", "seconds": SECONDS, "model": "simulated", "freed": True, "exit_code": 0,
        "processes_left": 0, "max_slow_seconds": 30, "streams_left": 0,
        "stop_seconds": 1.0, "capacity": 31, "rate": 2.0, "pages": 1280,
    }  # fmt: skip
    clients = [client(at) for at in range(0, SECONDS, 2)]
    clients.append(client(KILLED_AT - 1, outcome="interrupted"))
    clients.append(client(5, kind="stalled", outcome="cut_off"))
    clients.append(client(5, kind="slow", outcome="cut_off", ended=20))
    events = [
        {"at": KILLED_AT, "event": "kill", "role": "engine", "pid": 2},
        {"at": KILLED_AT + 5, "event": "ready", "role": "engine", "seconds": 5.0},
    ]
    return SoakRecord(run, [sample(at) for at in range(0, SECONDS, 10)], clients, events)


def grow(record: SoakRecord, column: str, by: float) -> SoakRecord:
    """A process whose column grows by so much in the second half."""
    samples = deepcopy(list(record.samples))
    for each in samples:
        each["processes"]["3"][column] += by * each["at"] / (SECONDS / 2)
    return replace(record, samples=samples)


def with_client(record: SoakRecord, **fields: Any) -> SoakRecord:
    return replace(record, clients=[*record.clients, client(500, **fields)])


def with_run(record: SoakRecord, **fields: Any) -> SoakRecord:
    return replace(record, run={**record.run, **fields})


def without_restart(record: SoakRecord) -> SoakRecord:
    return replace(record, events=[{"at": 1.0, "event": "kill", "role": "engine", "pid": 2}])


def with_underruns(record: SoakRecord) -> SoakRecord:
    return replace(record, clients=[*record.clients, *(client(at, underruns=1) for at in range(0, 8, 2))])


def test_a_good_run_passes_every_check() -> None:
    assert [check for check in run_checks(good_record()) if not check.passed] == []


DEFECTS: list[tuple[str, Callable[[SoakRecord], SoakRecord]]] = [
    ("every request ended", lambda record: with_client(record, outcome="hung")),
    ("no unexpected response", lambda record: with_client(record, outcome="failed", detail="500")),
    ("interrupted without a kill", lambda record: with_client(record, outcome="interrupted")),
    ("ready again after each kill", without_restart),
    ("stalled readers", lambda record: with_client(record, kind="stalled")),
    ("slow readers", lambda record: with_client(record, kind="slow", outcome="aborted", ended=560)),
    ("free at the end", lambda record: with_run(record, freed=False)),
    ("free at the end", lambda record: with_run(record, freed=None)),
    ("left in the engine", lambda record: with_run(record, streams_left=3)),
    ("left in the engine", lambda record: with_run(record, streams_left=None)),
    ("ended by itself", lambda record: with_run(record, exit_code=None)),
    ("ended by itself", lambda record: with_run(record, processes_left=1)),
    ("underrun", with_underruns),
    ("equal audio", lambda record: with_client(record, request="text 0", digest="of another stream")),
    ("memory", lambda record: grow(record, "rss", 60e6)),
    ("descriptors", lambda record: grow(record, "descriptors", 20)),
    ("threads", lambda record: grow(record, "threads", 20)),
    ("memory", lambda record: replace(record, samples=record.samples[:20])),
]


@pytest.mark.parametrize(("name", "spoil"), DEFECTS)
def test_each_defect_fails_its_own_check(name: str, spoil: Callable[[SoakRecord], SoakRecord]) -> None:
    failed = [check.name for check in run_checks(spoil(good_record())) if not check.passed]
    assert failed
    assert any(name in each for each in failed)


def test_growth_within_the_limit_passes() -> None:
    assert all(check.passed for check in run_checks(grow(good_record(), "rss", 30e6)))


def test_the_start_of_a_process_is_no_growth() -> None:
    record = good_record()
    samples = deepcopy(list(record.samples))
    for each in samples:
        if each["at"] < SECONDS / 2 - 10:
            each["processes"]["9"] = each["processes"].pop("2")  # another engine process before
        elif each["at"] < SECONDS / 2 + 40:
            each["processes"]["2"]["rss"] = 1e6
    assert all(check.passed for check in run_checks(replace(record, samples=samples)))


def test_the_embedded_voice_is_not_checked_for_equal_audio() -> None:
    """A float32 stream may differ from the same stream in another batch."""
    assert all("equal audio" not in check.name for check in run_checks(with_run(good_record(), model="embedded")))


def test_a_counter_is_summed_over_restarts() -> None:
    values = [0, 3, 5, 1, 2, None, 4]
    rows = [{"metrics": {} if value is None else {"engine_underruns": value}} for value in values]
    assert total_of_counter(rows, "engine_underruns") == 5 + 4


def test_only_streams_of_idle_server_processes_count_as_left() -> None:
    assert count_streams_left("worker disconnected streams=5\n") is None
    stopped = "worker disconnected streams=5\nserver stopping\n"
    assert count_streams_left(stopped + "worker disconnected streams=0\nworker disconnected streams=2\n") == 2


def test_a_slope_is_that_of_the_line() -> None:
    assert fit_slope([(x, 3 * x + 1) for x in range(10)]) == pytest.approx(3)
    assert fit_slope([(1, 1)]) == fit_slope([]) == 0


def test_a_player_counts_only_gaps_longer_than_its_buffer() -> None:
    result = ClientResult("http", 0.0)
    player = Player(result, sent_at=1.0)
    second = bytes(2 * SAMPLE_RATE)
    player.push(second, now=2.0)  # plays until 3.1
    player.push(second, now=3.0 + PLAYER_SECONDS / 2)  # until 4.1
    assert result.underruns == 0
    player.push(second, now=5.0)
    assert (result.underruns, result.first_audio) == (1, 1.0)
    player.finish()
    assert result.audio_seconds == 3.0
    assert result.digest


def write_files(record: SoakRecord, folder: Path) -> None:
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(record.run))
    (folder / "server.log").write_text(
        "info worker disconnected streams=7\ninfo server stopping pid=1\ninfo worker disconnected streams=0\n"
    )
    for name, rows in (("samples", record.samples), ("clients", record.clients), ("events", record.events)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_report_has_a_plot_a_table_and_the_checks(tmp_path: Path) -> None:
    write_files(good_record(), tmp_path / "run")
    with (tmp_path / "run/clients.jsonl").open("a") as file:
        file.write('{"kind": "ht')  # the run is still writing
    record = SoakRecord.read(tmp_path / "run")
    checks = run_checks(record)
    assert all(check.passed for check in checks)
    assert "| http | 501 | 500 | 0 | 0 | 1 | 0 | 0 | 100 / 100 / 100 |" in markdown(record, checks)
    write_report(record, checks, tmp_path / "out")
    assert (tmp_path / "out/soak-made-up.png").read_bytes().startswith(b"\x89PNG")
    assert len(json.loads((tmp_path / "out/soak-made-up.json").read_text())["checks"]) == len(checks)


def test_the_report_command_fails_if_a_check_fails_and_updates_a_page(tmp_path: Path) -> None:
    write_files(with_run(good_record(), freed=False), tmp_path / "run")
    script, page = Path(__file__).parent / "soak/soak_report.py", tmp_path / "page.md"
    page.write_text("Before.\n<!-- soak: made-up -->\nold\n<!-- end -->\nAfter.\n")
    command = [sys.executable, str(script), "--report", str(tmp_path / "run"), "--out", str(tmp_path / "out/soak")]
    command += ["--page", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "FAILED  slots, pages and streams were free at the end" in done.stdout
    text = page.read_text()
    assert text.startswith("Before.\n<!-- soak: made-up -->\n")
    assert "(out/soak/soak-made-up.png)\n<!-- end -->\nAfter.\n" in text
    assert "old" not in text


def test_a_recorder_samples_the_processes_of_a_tree(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        tree = ProcessTree(os.getpid())
        assert child.pid in tree.pids()
        assert tree.of_role("main") == [os.getpid()]
        found = tree.sample()[str(os.getpid())]
        assert found["rss"] > 1e6
        assert found["descriptors"] > 2
        assert found["threads"] >= 1
        assert is_running(child.pid)
        child.kill()
    assert not is_running(child.pid)
    load = MixedLoad(0, 1, clones=True, on_result=lambda _: None)
    with Recorder(tmp_path) as recorder:
        recorder.add_result(ClientResult("http", 0.0, 1.0, "complete", first_audio=0.25))
        recorder.add_sample(10.0, tree.sample(), {"streams": 1.0}, load)
    line = json.loads((tmp_path / "samples.jsonl").read_text())
    assert line["clients"]["ttfa"] == [0.25, 0.25, 0.25]
    assert line["clients"]["outcomes"] == {"complete": 1}


def test_a_server_that_refuses_connections_is_recorded_and_does_not_stop_the_load() -> None:
    results: list[ClientResult] = []
    load = MixedLoad(1, 1, clones=True, on_result=results.append)  # nothing listens on port 1
    asyncio.run(load.run(40 * load.audio_per_client, 1.0))
    assert len(results) > 10
    assert {result.outcome for result in results} == {"interrupted"}
    assert sum(load.active.values()) == 0
    assert load.now >= 1.0
