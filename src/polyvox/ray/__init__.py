# SPDX-License-Identifier: Apache-2.0
"""Polyvox on Ray Serve: `serve run polyvox.ray:app`, or `polyvox serve --ray`. Needs polyvox[ray]."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application


def app(args: dict[str, Any]) -> "Application":
    """Builds the application, for `serve run polyvox.ray:app` and for configuration files of Ray Serve.

    args: settings of the server; they override the environment (POLYVOX_…) of the machine that deploys.
    """
    from polyvox.ray.deployment import bind, create_deployment
    from polyvox.server.settings_sources import load_settings

    settings = load_settings(args)
    return bind(create_deployment(settings), settings)
