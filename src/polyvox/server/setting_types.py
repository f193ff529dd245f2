# SPDX-License-Identifier: Apache-2.0
"""Types of settings that are written as text: lists, pairs and addresses."""

from importlib.util import find_spec
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_settings import NoDecode


def _split_list(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _split_pairs(value: Any) -> Any:
    parts = _split_list(value)
    if not isinstance(parts, list):
        return parts
    if not all(isinstance(part, str) and "=" in part for part in parts):
        raise ValueError("must be name=name pairs, separated by commas")
    return dict(part.split("=", 1) for part in parts)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of tcp://host:port."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ValueError("must be an address such as tcp://0.0.0.0:10200")
    return host.strip("[]"), int(port)


def has_opentelemetry() -> bool:
    """Whether the packages of polyvox[otel] are installed."""
    try:
        return all(find_spec(name) for name in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"))
    except ModuleNotFoundError:  # a parent package is missing
        return False


CommaSeparated = (NoDecode, BeforeValidator(_split_list))
Names = Annotated[list[str], *CommaSeparated]
Aliases = Annotated[dict[str, str], NoDecode, BeforeValidator(_split_pairs)]
