# SPDX-License-Identifier: Apache-2.0
"""Types of settings that are written as text: lists, pairs, addresses and the number of server processes."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_settings import NoDecode

# A server process sends PCM to more than a thousand real-time listeners with one core; encoding takes more.
CORES_PER_WORKER, MAX_AUTO_WORKERS = 4, 16
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # microseconds of CPU time, or max, per microseconds


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


def _resolve_workers(value: Any) -> Any:
    """auto is one for every CORES_PER_WORKER cores: the engine's process and encoder threads need the others."""
    if value != "auto":
        return value
    return int(max(1, min(_num_cores() // CORES_PER_WORKER, MAX_AUTO_WORKERS)))


def _num_cores() -> float:
    """The cores that this process may use; a container may have a quota of CPU time (cgroup v2)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = CPU_QUOTA.read_text().split()
        return cores if quota == "max" else min(cores, int(quota) / int(period))
    except (OSError, ValueError):  # no such file
        return cores


CommaSeparated = (NoDecode, BeforeValidator(_split_list))
Names = Annotated[list[str], *CommaSeparated]
Aliases = Annotated[dict[str, str], NoDecode, BeforeValidator(_split_pairs)]
Workers = Annotated[int, BeforeValidator(_resolve_workers)]
