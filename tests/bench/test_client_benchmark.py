# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the client itself: packets that carry their send time."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.client import SAMPLES, delays

from polyvox.bench.metrics import RequestTrace

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def trace(arrivals: list[tuple[float, int]], sent: list[float]) -> RequestTrace:
    pcm = b"".join(struct.pack("<q", round(at * 1e9)) + bytes(2 * SAMPLES - 8) for at in sent)
    return RequestTrace(0, 0, 1, True, 0.0, arrivals=arrivals, pcm=bytearray(pcm))


def test_the_delay_of_a_packet_is_from_its_send_time_to_its_last_sample() -> None:
    whole = trace([(0.1, SAMPLES), (0.3, SAMPLES)], [1000.0, 1000.199])  # the run began at 999.9 s
    parts = trace([(0.5, SAMPLES // 2), (0.52, 2 * SAMPLES - SAMPLES // 2)], [1000.4, 1000.41])
    assert delays([whole, parts]) == pytest.approx([0.0, 0.001, 0.02, 0.01], abs=1e-6)


def test_the_client_benchmark_runs_and_counts_every_packet() -> None:
    options = ["--concurrency", "2", "--rate", "", "--seconds", "0.1"]
    command = [sys.executable, "benchmarks/client.py", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    headings, _, row = (line.strip("|").split("|") for line in done.stdout.splitlines())
    values = dict(zip((name.strip() for name in headings), (cell.strip() for cell in row), strict=True))
    assert values["load"] == "concurrency 2"
    assert values["failed"] == "0"
    assert int(values["packets"]) == 50 * int(values["requests"]) > 0
