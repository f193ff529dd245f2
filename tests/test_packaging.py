# SPDX-License-Identifier: Apache-2.0
"""The wheel and its metadata: declared dependencies, bounds, type information, the command."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from pathlib import Path

import pytest

from polyvox.errors import how_to_install

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/polyvox"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Import names that differ from the distribution's name.
DISTRIBUTIONS = {"yaml": "pyyaml", "pil": "pillow", "opentelemetry": "opentelemetry-sdk"}
# Imported where present: torch installs triton on Linux with CUDA, and playback falls back to a command.
OPTIONAL_IMPORTS = {"triton", "sounddevice"}
# Declared because another package imports them at run time.
INDIRECT = {"websockets", "python-multipart", "uvloop", "httptools", "opentelemetry-exporter-otlp-proto-http"}
EXTRAS = ("bench", "zeroconf", "omni", "otel", "ray")  # that the package itself imports


def normalized(name: str) -> str:
    return name.lower().replace("_", "-")


def distribution(module: str) -> str:
    return DISTRIBUTIONS.get(module.lower(), normalized(module))


@cache
def requirements(group: str | None = None) -> dict[str, str]:
    """Distribution name to version specifiers."""
    lines = PROJECT["optional-dependencies"][group] if group else PROJECT["dependencies"]
    matches = [re.match(r"([\w.-]+)(?:\[.*\])?\s*([^;]*)", line) for line in lines]
    return {normalized(match[1]): match[2].strip() for match in matches if match}


def all_requirements(*groups: str | None) -> set[str]:
    return {name for group in groups for name in requirements(group)}


@cache
def imported() -> dict[str, str]:
    """Third-party top-level modules of the package, each with a file that imports it."""
    found: dict[str, str] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                modules = [node.module]
            for module in modules:
                found.setdefault(module.split(".")[0], str(path.relative_to(ROOT)))
    return {name: path for name, path in found.items() if name not in {*sys.stdlib_module_names, "polyvox"}}


def test_every_imported_package_is_declared() -> None:
    declared = all_requirements(None, *EXTRAS)
    for module, path in imported().items():
        if module not in OPTIONAL_IMPORTS:
            assert distribution(module) in declared, f"{path} imports {module}"


def test_every_declared_package_is_used() -> None:
    used = {distribution(module) for module in imported()} | INDIRECT
    assert all_requirements(None, *EXTRAS) <= used


@pytest.mark.parametrize("group", [None, *PROJECT["optional-dependencies"]])
def test_every_requirement_has_a_lower_bound(group: str | None) -> None:
    for name, bounds in requirements(group).items():
        assert re.search(r">=|==", bounds), name


def test_every_dependency_is_documented() -> None:
    page = (ROOT / "docs/dependencies.md").read_text().lower()
    for name in all_requirements(None, *EXTRAS):
        assert f"| {name}" in page, name


def test_every_dependency_is_pinned_in_the_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {normalized(line.split("==")[0]) for line in lines if "==" in line}
    assert all_requirements(None, *EXTRAS, "dev", "docs") <= pinned


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_contains_types_voice_playground_and_pronunciations(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"polyvox/py.typed", "polyvox/assets/voice/model.safetensors", "polyvox/server/web/index.html"} <= names
    assert {f"polyvox/text/phonemes/{name}" for name in ("lexicon.zlib", "spelling_model.npz", "NOTICE.txt")} <= names
    assert not any(name.startswith(("tests/", "training/", "tools/")) for name in names)


def test_the_wheel_contains_every_module_and_cuda_source(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {str(Path("polyvox") / path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.[pc][yu]")} <= names


def test_the_documentation_and_the_messages_install_extras_from_the_clone() -> None:
    """The package is on no index, so `pip install 'polyvox[…]'` cannot work."""
    assert all(how_to_install(extra) == f"run pip install '.[{extra}]' in the clone of Polyvox" for extra in EXTRAS)
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    files = [*PACKAGE.rglob("*.py"), *(page for page in pages if "notes" not in page.parts)]
    assert [path.name for path in files if re.search(r"pip install '?polyvox\[", path.read_text())] == []
