# SPDX-License-Identifier: Apache-2.0
"""The environment has the pinned client packages, and Polyvox's dependencies in their usual versions."""

import re
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIFFERENT = {"protobuf", "soxr"}  # pipecat-ai requires older versions


def pins(file: Path) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)(?:\[.*\])?==(\S+)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[_.]", "-", name).lower(): pin for name, pin in found}


def test_every_package_has_its_pinned_version() -> None:
    for name, pin in pins(Path(__file__).with_name("requirements.txt")).items():
        assert version(name).split("+")[0] == pin, name


def test_shared_packages_have_the_versions_of_the_constraints() -> None:
    constraints, installed = pins(ROOT / "constraints.txt"), pins(Path(__file__).with_name("requirements.txt"))
    shared = constraints.keys() & installed.keys()
    assert len(shared) > 40
    assert {name for name in shared if constraints[name] != installed[name]} == DIFFERENT
