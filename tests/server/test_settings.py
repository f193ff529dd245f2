# SPDX-License-Identifier: Apache-2.0
"""One configuration: where it comes from, what goes first, what is refused; and no key that nothing reads."""

import ast
import socket
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from polyvox.cli.serve import _print_summary
from polyvox.engine.config import EngineConfig
from polyvox.errors import InvalidRequest
from polyvox.server.settings import Settings, read_settings
from server.fakes import HeldEngine

SOURCE = Path(__file__).parents[2] / "src/polyvox"


def test_flags_go_before_the_environment_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "polyvox.yaml"
    file.write_text("port: 1\nslo: 2\nqueue: 3\naliases: {alloy: heart}\npublic: [voices]\n")
    environment = {"POLYVOX_SLO": "4", "POLYVOX_QUEUE": "5", "POLYVOX_HOME": "elsewhere", "HOME": "here"}
    found = read_settings({"queue": 6, "host": None}, file, environment)
    assert (found.port, found.slo, found.queue, found.host) == (1, 4.0, 6, "127.0.0.1")
    assert found.aliases == {"alloy": "heart"}
    assert read_settings(environment={"POLYVOX_CONFIG": str(file)}).port == 1


def test_the_environment_can_say_lists_and_aliases() -> None:
    environment = {"POLYVOX_API_KEYS": "a, b,", "POLYVOX_ALIASES": "alloy=heart,echo=michael", "POLYVOX_PUBLIC": ""}
    found = read_settings(environment=environment)
    assert found.api_keys == ["a", "b"]
    assert found.aliases == {"alloy": "heart", "echo": "michael"}
    assert found.public == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prot: 1", r"must be one of host, port.* \(got 'prot'\)\. Source: .*polyvox.yaml"),
        ("port: 99999", r"'port': must be less than or equal to 65535 \(got 99999\)\. Source: .*polyvox.yaml"),
        ("port: x", "'port': must be a valid integer.*got 'x'"),
        ("public: [everything]", "'public'"),
        ("slo: .nan", "'slo'"),
        ("- 1", "lines such as"),
        ("a: [", "a readable YAML file"),
        ("api_keys: [7]", "'api_keys'.*valid string. Source"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "polyvox.yaml"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=told):
        read_settings(file=file, environment={})


@pytest.mark.parametrize("environment", [{"POLYVOX_PROT": "1"}, {"POLYVOX_PORT": "x"}, {"POLYVOX_ALIASES": "alloy"}])
def test_what_is_wrong_in_the_environment_is_named(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        read_settings(environment=environment)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"none\.yaml"):
        read_settings(file=tmp_path / "none.yaml", environment={})


def test_what_is_shown_gives_the_same_again_and_no_key(tmp_path: Path) -> None:
    settings = Settings(api_keys=["secret"], port=1, media_root=tmp_path)
    shown = settings.shown()
    assert "secret" not in shown
    file = tmp_path / "polyvox.yaml"
    file.write_text(shown)
    assert read_settings({"api_keys": ["secret"]}, file, {}) == settings
    assert list(yaml.safe_load(shown)) == list(Settings.model_fields)


def read_of(owners: set[str], *paths: Path) -> set[str]:
    """Attributes that the code of some files reads of what has one of these names."""
    found = set()
    for node in [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
            found |= {node.attr} if name in owners else set()
    return found


def test_no_key_is_unread() -> None:
    code = [path for folder in ("server", "cli") for path in (SOURCE / folder).rglob("*.py")]
    asked = read_of({"settings", "_settings"}, *code)
    assert set(Settings.model_fields) <= asked | read_of({"self"}, SOURCE / "server/settings.py")


def test_no_key_of_the_engine_is_unread() -> None:
    asked = read_of({"config"}, *(SOURCE / "engine").glob("*.py"))
    assert {field.name for field in fields(EngineConfig)} <= asked | {"context"}  # which pages are made of
    assert "context" in read_of({"self"}, SOURCE / "engine/config.py")


def test_every_key_says_what_it_is() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


@pytest.mark.parametrize(
    ("host", "keys", "warned"), [("127.0.0.1", [], False), ("0.0.0.0", [], True), ("0.0.0.0", ["k"], False)]
)
def test_who_may_call_is_told_at_the_start(
    host: str, keys: list[str], warned: bool, engine: HeldEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server((host, 0)) as listener:
        _print_summary(Settings(host=host, api_keys=keys), listener, engine, 0.0)
    told = capsys.readouterr().err
    assert ("without authentication" in told) == warned
    assert ("Bearer YOUR_API_KEY" in told) == bool(keys)
