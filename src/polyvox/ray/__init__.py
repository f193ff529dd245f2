# SPDX-License-Identifier: Apache-2.0
"""Polyvox on Ray Serve: `serve run polyvox.ray:app`, or `polyvox serve --ray`. Needs polyvox[ray]."""

from typing import TYPE_CHECKING, Any

from polyvox.errors import InvalidRequest

if TYPE_CHECKING:
    from ray.serve import Application

    from polyvox.server.settings import Settings

# Settings of listeners that Ray Serve's proxies do not have.
UNSUPPORTED = ("wyoming", "zeroconf", "root_path", "tls_cert")


def app(args: dict[str, Any]) -> "Application":
    """Builds the application, for `serve run polyvox.ray:app` and for configuration files of Ray Serve.

    args: settings of the server; they override the environment (POLYVOX_…) of the machine that deploys.
    """
    from polyvox.server.settings_sources import load_settings

    settings = load_settings(args)
    check_settings(settings)
    from polyvox.ray.deployment import bind, create_deployment

    return bind(create_deployment(settings), settings)


def check_settings(settings: "Settings") -> None:
    """Raises InvalidRequest for a setting that has no effect on Ray."""
    for name, value in settings.model_dump(include=set(UNSUPPORTED)).items():
        if value:
            raise InvalidRequest(name, str(value), "is not supported with ray")
