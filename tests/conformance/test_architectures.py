# SPDX-License-Identifier: Apache-2.0
"""Every kernel launch of every published model compiles for each GPU architecture, and fits it; no GPU is needed.

All calls of an engine with MAX_STREAMS slots, with each type of the KV cache and of the weights, also deterministic.
Triton's cache keeps the launches whose kernel does not change.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from polyvox.kernels.gpu import GPUS
from polyvox.models.registry import published_sizes

TESTS = Path(__file__).parents[1]
MAX_STREAMS = 2048  # the default on a large GPU
TIMEOUT = 3600.0  # seconds for an architecture: about 6 minutes of one core


def compile_launches(architecture: int) -> "subprocess.CompletedProcess[str]":
    command = [
        sys.executable,
        "-m",
        "kernels.compiling",
        "--gpu",
        str(architecture),
        "--model",
        ",".join(published_sizes()),
        "--streams",
        str(MAX_STREAMS),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True, timeout=TIMEOUT)


@pytest.fixture(scope="module")
def compiled() -> dict[int, "subprocess.CompletedProcess[str]"]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(GPUS, pool.map(compile_launches, GPUS), strict=True))


@pytest.mark.parametrize("architecture", GPUS)
def test_every_launch_compiles_and_fits(
    architecture: int, compiled: dict[int, "subprocess.CompletedProcess[str]"]
) -> None:
    result = compiled[architecture]
    assert result.returncode == 0, result.stderr[-4000:]
    kernels = {line["kernel"]: line for line in map(json.loads, result.stdout.splitlines())}
    assert len(kernels) >= 14
    assert all(line["shared"] <= GPUS[architecture].shared for line in kernels.values())
    sys.stdout.write(result.stdout)
