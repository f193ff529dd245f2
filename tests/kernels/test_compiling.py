# SPDX-License-Identifier: Apache-2.0
"""The compiler accepts the kernels for a GPU that is absent, in several processes, as when an engine starts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.rounded_products import QUANTIZING
from kernels.test_inventory import REFERENCES

TESTS = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


def test_kernels_compile_for_hopper_without_one(tmp_path: Path) -> None:
    """`make conformance` compiles all launches of all models for all architectures."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    program = [sys.executable, "-m", "kernels.compiling", "--gpu", "90", "--streams", "32"]
    program += ["--first", "--processes=2"]
    made = subprocess.run(program, cwd=TESTS, env=environment, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr[-4000:]
    compiled = {json.loads(line)["kernel"] for line in made.stdout.splitlines()}
    assert compiled >= set(QUANTIZING)
    assert compiled == {name.split(".")[1] for name in REFERENCES}
