"""The clients are those that were asked for, and Polyvox runs on what it is tested with."""

import re
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
OTHERS = {"soxr"}  # pipecat-ai takes no newer one


def pins(file: Path) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)(?:\[.*\])?==(\S+)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[_.]", "-", name).lower(): pin for name, pin in found}


def test_every_package_is_there_in_its_version() -> None:
    for name, pin in pins(Path(__file__).with_name("requirements.txt")).items():
        assert version(name).split("+")[0] == pin, name


def test_polyvox_has_the_versions_of_its_own_environment() -> None:
    own, here = pins(ROOT / "constraints.txt"), pins(Path(__file__).with_name("requirements.txt"))
    shared = own.keys() & here.keys()
    assert len(shared) > 40
    assert {name for name in shared if own[name] != here[name]} == OTHERS
