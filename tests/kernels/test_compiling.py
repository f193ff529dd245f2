# SPDX-License-Identifier: Apache-2.0
"""The compiler accepts the kernels for a GPU that is absent, in several processes, as when an engine starts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.loop_shuffles import ARCHITECTURES, TYPES
from kernels.rounded_products import QUANTIZING
from kernels.test_inventory import REFERENCES

TESTS = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


def run(folder: Path, *program: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder)
    command = [sys.executable, "-m", *program]
    return subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True, timeout=300)


def test_kernels_compile_for_hopper_without_one(tmp_path: Path) -> None:
    """`make conformance` compiles all launches of all models for all architectures."""
    made = run(tmp_path, "kernels.compiling", "--gpu", "90", "--streams", "32", "--first", "--processes=2")
    assert made.returncode == 0, made.stderr[-4000:]
    compiled = {json.loads(line)["kernel"] for line in made.stdout.splitlines()}
    assert compiled >= set(QUANTIZING)
    assert compiled == {name.split(".")[1] for name in REFERENCES}


def test_attention_of_large_batches_exchanges_only_parts_of_scores(tmp_path: Path) -> None:
    """In its loop; `make conformance` checks the launches of all models."""
    made = run(tmp_path, "kernels.loop_shuffles")
    assert made.returncode == 0, made.stderr[-4000:]
    found = {(line["gpu"], line["cache"]): line["shuffles"] for line in map(json.loads, made.stdout.splitlines())}
    assert found.keys() == {(architecture, str(dtype)) for architecture in ARCHITECTURES for dtype in TYPES}
    assert all(found.values())
