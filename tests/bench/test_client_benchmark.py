"""The benchmark of the benchmark's client: packets that say when they were sent."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.client import SAMPLES, delays

from polyvox.bench.metrics import Trace

ROOT = Path(__file__).parents[2]


def trace(arrivals: list[tuple[float, int]], sent: list[float]) -> Trace:
    sound = b"".join(struct.pack("<q", round(at * 1e9)) + bytes(2 * SAMPLES - 8) for at in sent)
    return Trace(0, 0, 1, True, 0.0, arrivals=arrivals, sound=bytearray(sound))


def test_a_packet_is_late_from_its_sending_to_its_last_sample() -> None:
    whole = trace([(0.1, SAMPLES), (0.3, SAMPLES)], [1000.0, 1000.199])  # begun 1000 s and 100 ms before
    parts = trace([(0.5, SAMPLES // 2), (0.52, 2 * SAMPLES - SAMPLES // 2)], [1000.4, 1000.41])
    assert delays([whole, parts]) == pytest.approx([0.0, 0.001, 0.02, 0.01], abs=1e-6)


def test_it_runs_as_documented_and_tells_of_every_packet() -> None:
    options = ["--concurrency", "2", "--rate", "", "--seconds", "0.1"]
    command = [sys.executable, "benchmarks/client.py", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    headings, _, row = (line.strip("|").split("|") for line in done.stdout.splitlines())
    told = dict(zip((name.strip() for name in headings), (cell.strip() for cell in row), strict=True))
    assert told["load"] == "2 at once"
    assert told["failed"] == "0"
    assert int(told["packets"]) == 50 * int(told["requests"]) > 0
