# SPDX-License-Identifier: Apache-2.0
"""Settings: sources and their precedence, error messages, and no setting without effect."""

import ast
import os
import socket
from dataclasses import fields
from pathlib import Path
from typing import Literal

import pytest
import yaml
from typer.testing import CliRunner

from polyvox.cli.main import build_app
from polyvox.cli.serve import _parameter, _print_summary
from polyvox.engine.config import EngineConfig
from polyvox.errors import InvalidRequest
from polyvox.server import setting_types
from polyvox.server.settings import SECTIONS, Settings, section_of
from polyvox.server.settings_sources import load_settings
from server.fakes import PausableEngine

SOURCE = Path(__file__).parents[2] / "src/polyvox"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("POLYVOX_"):
            monkeypatch.delenv(name)


def test_flags_override_the_environment_which_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "polyvox.yaml"
    file.write_text("port: 1\nmax_queue_seconds: 2\nmax_queue: 3\nvoice_aliases: {alloy: heart}\npublic: [voices]\n")
    for name, value in {"MAX_QUEUE_SECONDS": "4", "MAX_QUEUE": "5", "HOME": "elsewhere"}.items():
        monkeypatch.setenv(f"POLYVOX_{name}", value)
    found = load_settings({"max_queue": 6, "host": None}, file)
    assert (found.port, found.max_queue_seconds, found.max_queue, found.host) == (1, 4.0, 6, "127.0.0.1")
    assert found.voice_aliases == {"alloy": "heart"}
    monkeypatch.setenv("POLYVOX_CONFIG", str(file))
    assert load_settings().port == 1


def test_the_environment_can_set_lists_and_aliases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYVOX_API_KEYS", "a, b,")
    monkeypatch.setenv("POLYVOX_VOICE_ALIASES", "alloy=heart,echo=michael")
    monkeypatch.setenv("POLYVOX_PUBLIC", "")
    found = load_settings()
    assert found.api_keys == ["a", "b"]
    assert found.voice_aliases == {"alloy": "heart", "echo": "michael"}
    assert found.public == []


@pytest.mark.parametrize(
    ("cores", "quota", "expected"),
    [
        (1, "max 100000", 1),
        (7, "max 100000", 1),
        (8, "max 100000", 2),
        (16, "", 4),
        (64, "max 100000", 16),
        (256, "max 100000", 16),
        (64, "200000 100000", 1),
        (64, "850000 100000", 2),
        (16, "50000 100000", 1),
    ],
)
def test_the_number_of_server_processes_follows_the_cores_and_the_quota(
    cores: int, quota: str, expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setattr(setting_types, "CPU_QUOTA", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text(quota)
    assert Settings().workers == expected
    assert load_settings({"workers": "auto"}).workers == expected
    assert Settings(workers=3).workers == 3


def test_flags_are_strings_as_in_the_environment() -> None:
    found = load_settings({"port": "81", "memory_gb": "2.5", "api_keys": "a,b", "cuda_graphs": False})
    assert (found.port, found.memory_gb, found.api_keys, found.cuda_graphs) == (81, 2.5, ["a", "b"], False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot: 1", r"'prot' is unknown\. Source: .*polyvox.yaml\. Did you mean port\? polyvox serve --help lists all"),
        ("colour: red", r"'colour' is unknown\. Source: .*polyvox.yaml\. polyvox serve --help lists all settings\."),
        ("port: 99999", r"'port': must be between 0 and 65535 \(got 99999\)\. Source: .*polyvox.yaml"),
        ("port: x", "'port': must be an integer between 0 and 65535 .*got 'x'"),
        ("public: [everything]", "'public': must be 'voices', 'models', 'metrics' or 'docs'"),
        ("max_queue_seconds: .nan", "'max_queue_seconds': must be a finite number"),
        ("- 1", "lines such as"),
        ("7", "lines such as"),
        ("1: 2", "lines such as"),
        ("a: [", "a readable YAML file"),
        ("api_keys: ['']", "'api_keys': must not have an empty key. Source"),
        ("api_keys: [7]", "'api_keys'.*valid string. Source"),
    ],
)
def test_an_invalid_file_is_rejected_with_key_value_and_source(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "polyvox.yaml"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=message):
        load_settings(file=file)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("POLYVOX_PROT", "1", r"'POLYVOX_PROT' is unknown\. Source: environment\. Did you mean POLYVOX_PORT\?"),
        ("POLYVOX_PORT", "x", r"'port': .* \(got 'x'\)\. Source: environment\."),
        ("POLYVOX_VOICE_ALIASES", "alloy", "'voice_aliases': must be name=name pairs"),
        ("POLYVOX_API_KEYS", "", "'api_keys': must not be empty.*without keys.* Source: environment"),
        ("POLYVOX_API_KEYS", " , ", "'api_keys': must not be empty"),
    ],
)
def test_an_invalid_environment_is_rejected(
    name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest, match=message):
        load_settings()


def test_a_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"none\.yaml"):
        load_settings(file=tmp_path / "none.yaml")


def test_printed_settings_can_be_loaded_again_and_contain_no_key(tmp_path: Path) -> None:
    settings = Settings(api_keys=["secret"], port=1, media_root=tmp_path)
    text = settings.to_yaml()
    assert "secret" not in text
    file = tmp_path / "polyvox.yaml"
    file.write_text(text)
    assert load_settings({"api_keys": ["secret"]}, file) == settings
    assert list(yaml.safe_load(text)) == list(Settings.model_fields)


@pytest.mark.parametrize(
    "url", ["localhost:11434", "ftp://example.com", "http://", "http://user:secret@example.com/v1", "http://user@a/v1"]
)
def test_an_llm_must_be_a_url_without_a_password(url: str) -> None:
    with pytest.raises(InvalidRequest, match="'llm'"):
        load_settings({"llm": url})


def test_the_key_of_the_llm_must_fit_into_a_header() -> None:
    assert load_settings({"llm_key": " secret\n"}).llm_key == "secret"
    for key in ("sec\nret", "sécret"):
        with pytest.raises(InvalidRequest, match="printable ASCII") as error:
            load_settings({"llm_key": key})
        assert key not in str(error.value)


def test_the_key_of_the_llm_is_not_printed() -> None:
    settings = Settings(llm="http://localhost:11434/v1", llm_key="secret")
    assert "secret" not in settings.to_yaml()
    assert settings.shown_values()["llm_key"] == "(hidden)"


def test_the_password_in_the_url_of_the_voice_library_is_not_printed() -> None:
    settings = Settings(voices_dir="s3://key:secret@bucket/voices?token=secret")
    assert "secret" not in settings.to_yaml()
    assert settings.shown_values()["voices_dir"] == "s3://bucket/voices"


def attributes_read(owners: set[str], *paths: Path) -> set[str]:
    """Attributes that the code of some files reads from variables with one of these names."""
    found = set()
    for node in [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
            found |= {node.attr} if name in owners else set()
    return found


def test_every_setting_is_read() -> None:
    code = [path for folder in ("server", "cli") for path in (SOURCE / folder).rglob("*.py")]
    used = attributes_read({"settings", "_settings"}, *code)
    own = [SOURCE / "server/settings.py", *(SOURCE / "server/setting_sections").glob("*.py")]
    assert set(Settings.model_fields) <= used | attributes_read({"self"}, *own)


def test_every_field_of_the_engine_configuration_is_read() -> None:
    used = attributes_read({"config"}, *(SOURCE / "engine").glob("*.py"))
    derived = {"context": "pages", "max_queue": "queue_length"}  # properties that are computed from a field
    assert {field.name for field in fields(EngineConfig)} <= used | set(derived)
    assert set(derived.values()) <= used
    assert set(derived) <= attributes_read({"self"}, SOURCE / "engine/config.py")


def test_every_setting_has_a_description_in_the_help_of_serve() -> None:
    text = CliRunner().invoke(build_app(), ["serve", "--help"], env={"COLUMNS": "500", "TERM": "dumb"}).stdout
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert field.description is not None
        assert field.description in text
        assert field.description.endswith(".")


@pytest.mark.parametrize(
    ("name", "metavar", "default"),
    [
        ("log_level", "debug|info|warning|error", " Default: info."),
        ("chat_format", "openai|vllm-omni", " Default: openai."),
        ("trusted_proxies", "TEXT,…", " Default: 127.0.0.1,::1."),
        ("voice_aliases", "NAME=NAME,…", ""),
        ("drain_timeout", "NUMBER", " Default: 30."),
        ("max_body_bytes", "INTEGER", " Default: 16000000."),
        ("ray", None, ""),
    ],
)
def test_the_help_of_serve_shows_the_form_of_the_values_and_the_default(
    name: str, metavar: str | None, default: str
) -> None:
    field = Settings.model_fields[name]
    (option,) = _parameter(name, field).annotation.__metadata__
    assert option.metavar == metavar
    assert option.help == f"{field.description}{default}"


def test_the_help_and_the_printed_file_have_the_settings_in_the_order_of_the_sections() -> None:
    expected = [name for section in SECTIONS for name in section.model_fields]
    assert list(Settings.model_fields) == expected
    assert list(yaml.safe_load(Settings().to_yaml())) == expected
    assert [section_of(name) for name in ("host", "model", "otel")] == ["Network", "Engine", "Logging"]


@pytest.mark.parametrize(
    ("host", "keys", "warned"), [("127.0.0.1", [], False), ("0.0.0.0", [], True), ("0.0.0.0", ["k"], False)]
)
def test_a_public_address_without_keys_prints_a_warning(
    host: str, keys: list[str], warned: bool, engine: PausableEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server((host, 0)) as listener:
        _print_summary(Settings(host=host, api_keys=keys), listener, engine.info(), engine.stats(), {"total": 0.0})
    printed = capsys.readouterr().err
    assert ("without authentication" in printed) == warned
    assert ("Bearer YOUR_API_KEY" in printed) == bool(keys)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_an_alias_of_an_unknown_voice_is_a_warning_when_the_engine_is_ready(
    log_format: Literal["text", "json"],
    engine: PausableEngine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    aliases = {"alloy": engine.info().voices[0], "Echo": "nobody"}
    settings = Settings(voice_aliases=aliases, voices_dir=str(tmp_path), log_format=log_format)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _print_summary(settings, listener, engine.info(), engine.stats(), {"total": 0.0})
    warned = [record.__dict__["aliases"] for record in caplog.records if "voice_aliases" in record.message]
    assert warned == ([["echo=nobody"]] if log_format == "json" else [])
    assert ("no such voice in voice_aliases: echo=nobody.\n" in capsys.readouterr().err) == (log_format == "text")
