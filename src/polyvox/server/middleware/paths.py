# SPDX-License-Identifier: Apache-2.0
"""Paths of requests without root_path, and the health paths among them."""

from starlette.types import Scope

HEALTH_PATHS = ("/livez", "/readyz", "/health")
PROBE_PATHS = (*HEALTH_PATHS, "/metrics")  # a supervisor, a load balancer or Prometheus requests them every few seconds


def path_with_root(scope: Scope) -> str:
    """The path with root_path once: uvicorn adds it, whether the proxy removed it or not."""
    root, path = _root(scope), str(scope["path"])
    return path.removeprefix(root) if root and f"{path}/".startswith(f"{root}{root}/") else path


def path_of(scope: Scope) -> str:
    """The path without root_path."""
    return path_with_root(scope).removeprefix(_root(scope)) or "/"


def health_path(scope: Scope) -> str | None:
    """The path of a health request; None for other requests."""
    path = path_of(scope)
    return path if scope.get("method") in ("GET", "HEAD") and path in HEALTH_PATHS else None


def _root(scope: Scope) -> str:
    return str(scope.get("root_path", "")).rstrip("/")
