# SPDX-License-Identifier: Apache-2.0
"""Records a soak as JSON lines: processes, engine and clients over time, each client's result, and each kill."""

import asyncio
import json
import os
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from soak.mixed_load import ClientResult, MixedLoad

INTERVAL = 10.0  # seconds
METRICS_TIMEOUT = 5.0  # seconds
SAMPLES_FILE, CLIENTS_FILE, EVENTS_FILE, RUN_FILE = "samples.jsonl", "clients.jsonl", "events.jsonl", "run.json"
PAGE_BYTES, CLOCK_TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
# Columns of a sample by metric.
METRICS = {
    "polyvox_engine_streams": "streams",
    "polyvox_streams_admissible": "capacity",
    "polyvox_streams_active": "active",
    "polyvox_queue_depth": "queue",
    "polyvox_engine_slots": "slots",
    "polyvox_engine_slots_free": "slots_free",
    "polyvox_engine_kv_pages_free": "pages_free",
    "polyvox_engine_underruns_total": "engine_underruns",
    "polyvox_playback_underruns_total": "server_underruns",
    "polyvox_engine_last_step_seconds": "step_seconds",
    "polyvox_engine_step_streams": "step_streams",
    "polyvox_engine_min_lead_seconds": "min_lead",
    "polyvox_event_loop_lag_seconds": "event_loop_lag",
}
STATUS_PREFIX = 'polyvox_streams{replica="0",status="'


def read_metrics(port: int) -> dict[str, Any]:
    """The engine's and the server's metrics by column; empty if the server did not answer."""
    found: dict[str, Any] = {"status": {}}
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=METRICS_TIMEOUT) as response:
            lines = response.read().decode().splitlines()
    except (OSError, HTTPException):
        return {}
    for line in lines:
        name, _, value = line.replace('{replica="0"}', "").rpartition(" ")
        if name in METRICS:
            found[METRICS[name]] = float(value)
        elif name.startswith(STATUS_PREFIX):
            found["status"][name.removeprefix(STATUS_PREFIX).removesuffix('"}')] = float(value)
    return found


class ProcessTree:
    """The server's processes: main, engine, and the others by the order of their start."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._roles: dict[int, str] = {}

    def pids(self) -> list[int]:
        found = [self.pid]
        for pid in found:
            with suppress(OSError):
                # A process is a child of the thread that started it.
                for thread in os.listdir(f"/proc/{pid}/task"):
                    found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
        return found

    def role(self, pid: int) -> str:
        if pid == self.pid:
            return "main"
        if self._roles.get(pid) in ("engine", "tracker"):
            return self._roles[pid]
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"resource_tracker" in command:
            role = "tracker"
        elif b"spawn_main" not in command:
            role = "decoder"
        else:  # server processes do not import torch
            role = "engine" if "libtorch" in Path(f"/proc/{pid}/maps").read_text() else "server"
        self._roles[pid] = role
        return role

    def of_role(self, role: str) -> list[int]:
        """Processes of a role, the oldest first."""
        found = []
        for pid in self.pids():
            with suppress(OSError):
                if self.role(pid) == role:
                    found.append((_stat(pid)[19], pid))
        return [pid for _, pid in sorted(found)]

    def sample(self) -> dict[str, dict[str, Any]]:
        """Memory in bytes, descriptors, threads, CPU seconds and seconds of waiting for a CPU of each process."""
        found = {}
        for pid in self.pids():
            with suppress(OSError):
                fields = _stat(pid)
                found[str(pid)] = {
                    "role": self.role(pid),
                    "rss": int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES,
                    "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
                    "threads": fields[17],
                    "cpu": (fields[11] + fields[12]) / CLOCK_TICKS,
                    "started": fields[19] / CLOCK_TICKS,
                    "cpu_wait": _cpu_wait(pid),
                }
        return found


def _stat(pid: int) -> list[int]:
    """The numbers of /proc/PID/stat after the state."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return [0, *map(int, fields[1:])]


def is_running(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _cpu_wait(pid: int) -> float:
    """Seconds that the running threads of a process were ready to run, and another process ran."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError):
            total += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[1])
    return round(total / 1e9, 3)


class Recorder:
    """Writes the files of a run to a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._samples, self._clients, self._events = (
            (folder / name).open("w", buffering=1) for name in (SAMPLES_FILE, CLIENTS_FILE, EVENTS_FILE)
        )
        self._outcomes: Counter[str] = Counter()
        self._client_underruns = 0
        self._first_audio: list[float] = []  # since the last sample

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self._samples, self._clients, self._events):
            file.close()

    def describe(self, **values: Any) -> None:
        """The conditions of the run, and later its end."""
        path = self._folder / RUN_FILE
        known = json.loads(path.read_text()) if path.exists() and path.stat().st_size else {}
        path.write_text(json.dumps(known | values, indent=1))

    def add_result(self, result: ClientResult) -> None:
        self._clients.write(json.dumps(result.as_dict()) + "\n")
        self._outcomes[result.outcome] += 1
        self._client_underruns += result.underruns
        if result.first_audio is not None and result.kind in ("http", "sse", "long"):
            self._first_audio.append(result.first_audio)

    def add_event(self, at: float, kind: str, **values: Any) -> None:
        self._events.write(json.dumps({"at": round(at, 3), "event": kind, **values}) + "\n")

    def add_sample(self, at: float, processes: Mapping[str, Any], metrics: Mapping[str, Any], load: MixedLoad) -> None:
        first, self._first_audio = sorted(self._first_audio), []
        clients = {
            "active": dict(load.active),
            "outcomes": dict(self._outcomes),
            "underruns": self._client_underruns,
            "ttfa": [percentile(first, share) for share in (0.5, 0.95, 0.99)] if first else None,
        }
        line = {"at": round(at, 2), "processes": processes, "metrics": metrics, "clients": clients}
        self._samples.write(json.dumps(line) + "\n")


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def record(recorder: Recorder, tree: ProcessTree, port: int, load: MixedLoad) -> None:
    """Samples until it is cancelled."""
    due = time.monotonic()
    while True:
        metrics = await asyncio.to_thread(read_metrics, port)
        recorder.add_sample(load.now, tree.sample(), metrics, load)
        due += INTERVAL
        await asyncio.sleep(max(0.0, due - time.monotonic()))
