# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster on this machine with the deployment under test, controlled by JSON lines on stdin.

Runs in the environment of Ray. Commands: {"deploy": {…}}, {"replicas": N}, {"status": true}; each has one line of JSON
as its reply. Settings of "deploy": port, engine (embedded or paced), min, max (replicas), settings (of
the server), options (of the deployment).
"""

import json
import logging
import sys
from typing import Any

import ray
from ray import serve
from ray.serve.config import HTTPOptions, ProxyLocation

from conformance.ray_engines import build_paced_engine
from polyvox.ray.deployment import NAME, bind, capacity_autoscaling, create_deployment
from polyvox.server.engine_builder import build_engine
from polyvox.server.settings_sources import load_settings


class Deployed:
    def __init__(self) -> None:
        self.command: dict[str, Any] = {}

    def deploy(self, command: dict[str, Any]) -> None:
        self.command = command
        settings = load_settings({"device": "cpu", **command.get("settings", {})})
        deployment = create_deployment(settings)
        low, high = command.get("min", 1), command.get("max", 1)
        if low == high:
            deployment = deployment.options(autoscaling_config=None, num_replicas=low)
        else:
            autoscaling = capacity_autoscaling(low, high, upscale_seconds=1, downscale_seconds=3)
            autoscaling.look_back_period_s = 3
            deployment = deployment.options(autoscaling_config=autoscaling)
        deployment = deployment.options(**command.get("options", {}))
        build = build_paced_engine if command.get("engine") == "paced" else build_engine
        serve.run(bind(deployment, settings, build), name=NAME)


def main() -> None:
    port = int(sys.argv[1])
    replies = sys.stdout
    sys.stdout = sys.stderr
    ray.init(num_cpus=16, include_dashboard=False, object_store_memory=200 << 20, logging_level=logging.WARNING)
    serve.start(ProxyLocation.HeadOnly, HTTPOptions(host="127.0.0.1", port=port))
    deployed = Deployed()
    for line in sys.stdin:
        command = json.loads(line)
        if "deploy" in command:
            deployed.deploy(command["deploy"])
        found = serve.status().applications.get(NAME)
        states = {} if found is None else found.deployments[NAME].replica_states
        reply = {"status": None if found is None else found.status, "replicas": states}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
