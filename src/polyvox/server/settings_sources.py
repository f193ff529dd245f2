# SPDX-License-Identifier: Apache-2.0
"""Reads the server's settings. Precedence: command-line flags, environment (POLYVOX_…), YAML file, defaults."""

import os
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource, YamlConfigSettingsSource

from polyvox.errors import NOT_SHOWN, InvalidRequest
from polyvox.server.settings import ENV_PREFIX, SECRETS, Settings
from polyvox.server.validation import field_error

# Variables with the prefix that are not settings of the server.
OTHER_VARIABLES = {
    "POLYVOX_HOME",
    "POLYVOX_CONFIG",
    "POLYVOX_TEST_DEVICE",
    "POLYVOX_BENCH_KEY",
    "POLYVOX_SERVER_KEY",
}


def load_settings(flags: Mapping[str, Any] | None = None, file: Path | None = None) -> Settings:
    """Reads the settings from flags, the environment and a YAML file. Flags that are None are not set.

    Raises InvalidRequest with the key, its value, what is allowed and the source of the value.
    """
    if file is None and (configured := os.environ.get(ENV_PREFIX + "CONFIG")):
        file = Path(configured)
    sources: dict[str, Mapping[str, Any]] = {} if file is None else {str(file): _read_file(file)}
    sources["environment"] = _read_environment()
    sources["flags"] = {key: value for key, value in (flags or {}).items() if value is not None}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, given in sources.items():  # later sources override earlier ones
        for key, value in given.items():
            if key not in Settings.model_fields:
                raise _unknown_setting(key, key, origin)
            values[key], origins[key] = value, origin
    try:
        return Settings(**values)
    except ValidationError as error:
        found = field_error(Settings, error.errors()[0])
        shown = NOT_SHOWN if found.field in SECRETS else values.get(found.field)
        raise InvalidRequest(
            found.field, shown, found.requirement, f"Source: {origins.get(found.field, 'default')}."
        ) from None


def find_log_format(flags: Mapping[str, Any], file: Path | None) -> str:
    """The log format that the sources name, also if other settings are invalid."""
    path = file or os.environ.get(ENV_PREFIX + "CONFIG")
    in_file = None
    if path:
        with suppress(InvalidRequest):
            in_file = _read_file(Path(path)).get("log_format")
    return str(flags.get("log_format") or os.environ.get(ENV_PREFIX + "LOG_FORMAT") or in_file or "text")


def _read_file(file: Path) -> Mapping[str, Any]:
    try:
        file.stat()  # the source skips files that do not exist
        return YamlConfigSettingsSource(Settings, yaml_file=file)()
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidRequest("config", str(file), f"must be a readable YAML file: {error}") from None
    except (TypeError, ValueError, AttributeError):
        raise InvalidRequest("config", str(file), "must be a mapping with lines such as `port: 8000`") from None


def _read_environment() -> Mapping[str, Any]:
    """Lists are separated by commas: POLYVOX_PUBLIC=voices,docs, POLYVOX_VOICE_ALIASES=alloy=heart,echo=michael."""
    for name in os.environ:
        key = name.removeprefix(ENV_PREFIX).lower()
        if name.startswith(ENV_PREFIX) and name not in OTHER_VARIABLES and key not in Settings.model_fields:
            raise _unknown_setting(name, key, "environment")
    return EnvSettingsSource(Settings)()


def _unknown_setting(name: str, key: str, origin: str) -> InvalidRequest:
    """name: as the source has it; key: without the prefix of variables."""
    prefix = name[: len(name) - len(key)]
    similar = get_close_matches(key, Settings.model_fields, 1)
    meant = prefix + (similar[0].upper() if prefix else similar[0]) if similar else ""
    suggestion = f" Did you mean {meant}?" if meant else ""
    hint = f"Source: {origin}.{suggestion} polyvox serve --help lists all settings."
    return InvalidRequest("settings", NOT_SHOWN, f"{name!r} is unknown", hint)
