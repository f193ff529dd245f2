# SPDX-License-Identifier: Apache-2.0
"""polyvox serve --ray: deploys on a Ray cluster and waits for a signal."""

import logging
import os
import signal
import threading

import ray
from ray import serve
from ray.serve.config import HTTPOptions, ProxyLocation

from polyvox.errors import PolyvoxError
from polyvox.ray import check_settings
from polyvox.ray.deployment import NAME, bind, create_deployment
from polyvox.server.settings import Settings

log = logging.getLogger(__name__)


def serve_on_ray(settings: Settings) -> None:
    """Deploys on the cluster at RAY_ADDRESS, or on one that is started on this machine, until a signal.

    Then the application is removed: its replicas finish their requests. Raises PolyvoxError if it cannot be deployed.
    """
    check_settings(settings)
    ray.init(include_dashboard=None if os.environ.get("RAY_ADDRESS") else False)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # Ray sets handlers too
        signal.signal(number, lambda *_: stop.set())
    try:
        serve.start(ProxyLocation.EveryNode, HTTPOptions(host=settings.host, port=settings.port))
        log.info("deployment starting", extra={"address": f"http://{settings.host}:{settings.port}"})
        try:
            serve.run(bind(create_deployment(settings), settings), name=NAME)
        except RuntimeError as error:  # the application failed; the log has the traceback of the replica
            raise PolyvoxError(f"The deployment failed: {error}") from None
        log.info("server listening", extra={"address": f"http://{settings.host}:{settings.port}"})
        stop.wait()
        log.info("server stopping")
        serve.delete(NAME)  # waits until the requests have ended
    finally:
        ray.shutdown()
