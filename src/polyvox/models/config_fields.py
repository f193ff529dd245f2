# SPDX-License-Identifier: Apache-2.0
"""A JSON object of a config file, read field by field; every error names the file, the field and what is supported."""

import json
from pathlib import Path
from typing import Any, cast

from polyvox.errors import CheckpointError

MAX_NUMBER = 1e12  # of any field
MAX_SHOWN = 80  # characters of a value in an error


class ConfigFields:
    """One JSON object of a config file. The methods raise CheckpointError for a missing or unsupported field."""

    def __init__(self, file: str, values: object, path: str = "") -> None:
        self.file, self.path = file, path
        if not isinstance(values, dict):
            raise CheckpointError(f"{file}: {path.rstrip('.') or 'the file'} must be a JSON object")
        self.values = cast(dict[str, Any], values)

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def section(self, name: str) -> "ConfigFields":
        return ConfigFields(self.file, self._get(name, dict, "an object"), f"{self.path}{name}.")

    def id(self, name: str) -> int:
        return self.size(name, min_value=0)

    def size(self, name: str, min_value: int = 1, default: int | None = None, max_value: int = 2**31 - 1) -> int:
        if default is not None and not self.has(name):
            return default
        value = self._get(name, int, "an integer")
        if not min_value <= value <= max_value:
            raise self.unsupported(name, value, f"an integer from {min_value} to {max_value}")
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        if default is not None and not self.has(name):
            return default
        value = self._get(name, (int, float), "a number")
        if not 0 <= value <= MAX_NUMBER:  # false for NaN too
            raise self.unsupported(name, value, f"a number from 0 to {MAX_NUMBER:g}")
        return float(value)

    def text(self, name: str) -> str:
        return str(self._get(name, str, "a string"))

    def flag(self, name: str, default: bool) -> bool:
        return bool(self._get(name, bool, "true or false")) if self.has(name) else default

    def integers(self, name: str) -> tuple[int, ...]:
        values = self._get(name, list, "a list of integers")
        if not values or not all(type(value) is int and value > 0 for value in values):
            raise self.unsupported(name, values, "a list of positive integers")
        return tuple(values)

    def ids(self, name: str) -> dict[str, int]:
        values = self._get(name, dict, "an object of names and ids")
        for key, value in values.items():
            if type(value) is not int:
                raise self.unsupported(f"{name}.{key}", value, "an integer")
        return {key.lower(): value for key, value in values.items()}

    def expect(self, name: str, *allowed: object) -> None:
        """Raises for any value but these. An absent field has the first one."""
        value = self.values.get(name, allowed[0])
        if value not in allowed:
            raise self.unsupported(name, value, " or ".join(json.dumps(value) for value in allowed))

    def unsupported(self, name: str, value: object, supported: str) -> CheckpointError:
        shown = json.dumps(value)
        shown = shown if len(shown) <= MAX_SHOWN else shown[: MAX_SHOWN - 3] + "…"
        return CheckpointError(f"{self.file}: {self.path}{name} is {shown}; supported is {supported}")

    def _get(self, name: str, type_: type | tuple[type, ...], described: str) -> Any:
        if not self.has(name):
            raise CheckpointError(f"{self.file}: {self.path}{name} is missing; it must be {described}")
        value = self.values[name]
        if not isinstance(value, type_) or (isinstance(value, bool) and type_ is not bool):
            raise self.unsupported(name, value, described)
        return value


def read_json(folder: Path, name: str) -> object:
    """The content of a file of a checkpoint."""
    try:
        return json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder / name} is missing; a checkpoint must have it") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{folder / name} cannot be read as JSON: {error}") from None
