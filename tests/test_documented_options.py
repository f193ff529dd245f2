# SPDX-License-Identifier: Apache-2.0
"""The documentation names every option and every endpoint, and no others."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import typer
from starlette.routing import Route, WebSocketRoute
from typer.core import TyperCommand, TyperGroup, TyperOption

from polyvox.cli.main import build_app
from polyvox.server.app import ROUTERS
from polyvox.server.settings import Settings

ROOT = Path(__file__).parents[1]
SCRIPTS = ("benchmarks", "tools", "training", "tests/reference", "tests/soak", "tests/conformance")
# Options of docker, helm, openssl, pip, systemctl, uv and others.
FOREIGN = {
    *("--cap-drop", "--constraint", "--detach", "--env", "--from", "--mode", "--now", "--publish", "--read-only"),
    *("--security-opt", "--set", "--tag", "--target", "--time", "--tmpfs", "--torch-backend", "--volume"),
}
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")


@cache
def documentation() -> str:
    pages = [*ROOT.glob("*.md"), *(ROOT / "examples").glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    texts = {page: page.read_text() for page in pages if "notes" not in page.parts and page.name != "CHANGELOG.md"}
    page = ROOT / "docs/migrate.md"  # its second column has options of other servers
    texts[page] = re.sub(r"^(\|[^|]*)\|[^|]*\|", r"\1|", texts[page], flags=re.MULTILINE)
    return "\n".join(texts.values())


def visible_options(command: TyperCommand | TyperGroup) -> Iterator[TyperOption]:
    """The options of a command and of its subcommands."""
    yield from (one for one in command.params if isinstance(one, TyperOption) and not one.hidden)
    for inner in command.commands.values() if isinstance(command, TyperGroup) else ():
        assert isinstance(inner, TyperCommand | TyperGroup)
        yield from visible_options(inner)


@cache
def options() -> list[TyperOption]:
    command = typer.main.get_command(build_app())
    assert isinstance(command, TyperGroup)
    return list(visible_options(command))


def test_every_option_of_a_command_is_documented() -> None:
    named = set(OPTION.findall(documentation()))
    settings = set(Settings.model_fields)  # test_docs.py: each has a row in the table of settings
    undocumented = [
        one for one in options() if one.name not in settings and not named & {*one.opts, *one.secondary_opts}
    ]
    assert [one.opts for one in undocumented] == []


def test_every_option_that_the_documentation_names_exists() -> None:
    known = {name for one in options() for name in (*one.opts, *one.secondary_opts)} | FOREIGN | {"--help"}
    for folder in SCRIPTS:
        for script in (ROOT / folder).rglob("*.py"):
            known |= set(re.findall(r'"(--[a-z][a-z0-9-]*)"', script.read_text()))
    named = {name for name in OPTION.findall(documentation()) if name.startswith("--")}
    assert named - known == set()


def test_benchmarks_that_share_code_run_as_scripts(tmp_path: Path) -> None:
    """From any folder, without the repository on Python's path."""
    sharing = [path for path in (ROOT / "benchmarks").glob("*.py") if "from benchmarks." in path.read_text()]
    code = """if True:
        import runpy, sys
        paths, search_path = sys.argv[1:], sys.path[1:]
        for path in paths:
            sys.argv, sys.path[:] = [path, "--help"], search_path
            for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
                del sys.modules[name]
            try:
                runpy.run_path(path, run_name="__main__")
            except SystemExit as stopped:
                assert not stopped.code
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", code, *map(str, sharing)]
    ran = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stdout.count("usage:")) == (0, len(sharing)), ran.stderr
    assert len(sharing) > 3


def test_the_table_of_endpoints_is_complete() -> None:
    section = (ROOT / "docs/server.md").read_text().partition("## Endpoints")[2].partition("\n## ")[0]
    documented = sorted(re.findall(r"`([A-Z]+ /[^`]*)`", section))
    existing = [
        f"{method} {route.path.replace(':path', '')}"
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, Route | WebSocketRoute) and getattr(route, "include_in_schema", True)
        for method in getattr(route, "methods", ("WS",))
    ]
    assert documented == sorted(existing)
