# SPDX-License-Identifier: Apache-2.0
"""Turns pydantic's validation errors into the messages of the product: field, requirement, value."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from polyvox.errors import NOT_SHOWN, invalid_value

_BOUNDS = {"greater_than_equal", "greater_than", "less_than_equal", "less_than"}
_NUMBERS = dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "an integer")
_NUMBERS |= dict.fromkeys(("float_parsing", "float_type"), "a number")
_OBJECTS = {"dict_type", "model_type", "model_attributes_type"}


@dataclass(frozen=True, slots=True)
class FieldError:
    """The first error of a validation: the field, what it must be, and its value (NOT_SHOWN for secrets)."""

    field: str
    missing: bool
    requirement: str
    value: object

    @property
    def message(self) -> str:
        if self.missing:
            return f"Missing required field '{self.field}'."
        return invalid_value(self.field, self.value, self.requirement)


def field_error(model: type[BaseModel], error: Mapping[str, Any], prefix: int = 0) -> FieldError:
    """Describes one entry of `ValidationError.errors()`. prefix: leading items of its location, such as "body"."""
    # Of the location only the names of objects: in a union the rest of it names the type that was tried.
    name = str(error["loc"][prefix])
    field = model.model_fields.get(name)
    for inner in error["loc"][prefix + 1 :]:
        if (nested := _model_of(field)) is None:
            break
        name, field = f"{name}.{inner}", nested.model_fields.get(str(inner))
    value = NOT_SHOWN if field is not None and field.repr is False else error["input"]
    return FieldError(name, error["type"] == "missing", _requirement(error, field), value)


def parameter_error(error: Mapping[str, Any]) -> FieldError:
    """Describes one entry of `ValidationError.errors()` about a parameter of the path, the query or a header."""
    return FieldError(str(error["loc"][1]), error["type"] == "missing", _requirement(error, None), error["input"])


def _model_of(field: FieldInfo | None) -> type[BaseModel] | None:
    """The type of a field whose value is an object of one type."""
    if field is None:
        return None
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not type(None)]
    found = kinds[0] if len(kinds) == 1 else None
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _requirement(error: Mapping[str, Any], field: FieldInfo | None) -> str:
    if field is not None and error["type"] in _BOUNDS and (limits := _range(field)):
        return limits
    if noun := _NUMBERS.get(error["type"]):
        limits = _range(field) if field is not None else None
        return f"must be {noun} {limits.removeprefix('must be ')}" if limits else f"must be {noun}"
    if error["type"] in _OBJECTS:
        return "must be an object"
    message: str = error["msg"].partition(" after validation")[0]
    for prefix in ("Input should ", "List should ", "String should ", "Value error, should ", "Value error, must "):
        if message.startswith(prefix):
            return "must " + message.removeprefix(prefix)
    return message[:1].lower() + message[1:]


def _range(field: FieldInfo) -> str | None:
    """ "must be between 0.25 and 4" where a field has a lower and an upper bound, both inclusive."""
    low = next((item.ge for item in field.metadata if isinstance(item, Ge)), None)
    high = next((item.le for item in field.metadata if isinstance(item, Le)), None)
    if any(isinstance(item, Gt | Lt) for item in field.metadata) or low is None or high is None:
        return None
    return f"must be between {low:g} and {high:g}"
