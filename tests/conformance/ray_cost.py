# SPDX-License-Identifier: Apache-2.0
"""The cost of the path through Ray Serve against a server of its own, in one run: time to the first byte and CPU time.

`python -m conformance.ray_cost [--requests 40]` prints a table. Both have one engine that only sleeps (paced_engine),
and requests alternate between them, so that other programs on the machine slow both down.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

from conformance.client_runs import ROOT
from conformance.ray_cluster import TEXT, RayCluster, StreamOutcome, run_cluster, stream

SERVER = """
import socket, sys
from functools import partial
from conformance.ray_engines import build_paced_engine
from polyvox.cli.serve import serve_with_engine_processes
from polyvox.server.settings_sources import load_settings

if __name__ == "__main__":
    settings = load_settings({"port": sys.argv[1]})
    listener = socket.create_server(("127.0.0.1", settings.port))
    serve_with_engine_processes(settings, listener, [partial(build_paced_engine, settings)])
"""
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def proxy_pids(cluster: RayCluster) -> list[int]:
    return cluster.find_processes("ray::ProxyActor")


def report(name: str, outcomes: list[StreamOutcome], seconds: float) -> str:
    first = statistics.median(outcome.first_byte for outcome in outcomes)
    chunks = sum(outcome.num_chunks for outcome in outcomes)
    per_chunk = 1000 * seconds / chunks
    return f"| {name} | {1000 * first:.0f} ms | {chunks / len(outcomes):.0f} | {per_chunk:.2f} ms |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, run_cluster(Path(name)) as cluster:
        folder = Path(name)
        cluster.deploy(min=1, max=1, engine="paced")
        script = folder / "bare_server.py"
        script.write_text(SERVER)
        port = int(cluster.url.rsplit(":", 1)[1]) + 1
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests", ROOT)))}
        server = subprocess.Popen([sys.executable, str(script), str(port)], env=environment)
        url = f"http://127.0.0.1:{port}"
        try:
            while server.poll() is None:
                try:
                    if httpx.get(f"{url}/readyz", trust_env=False).status_code == 200:
                        break
                except httpx.HTTPError:
                    pass
            pids = {"server": [server.pid], "proxy": proxy_pids(cluster), "replica": cluster.replica_pids()}
            for target in (url, cluster.url):
                stream(target, TEXT)  # warm-up
            before = {key: cpu_seconds(value) for key, value in pids.items()}
            bare, routed = [], []
            for _ in range(options.requests):
                bare.append(stream(url, TEXT))
                routed.append(stream(cluster.url, TEXT))
            used = {key: cpu_seconds(value) - before[key] for key, value in pids.items()}
        finally:
            server.terminate()
            server.wait(60)
    sys.stdout.write("| path | first byte, median | chunks of a response | CPU time per chunk |\n|---|---|---|---|\n")
    sys.stdout.write(report("polyvox serve", bare, used["server"]) + "\n")
    sys.stdout.write(report("Ray Serve: proxy and replica", routed, used["proxy"] + used["replica"]) + "\n")
    sys.stdout.write(report("of which the proxy", routed, used["proxy"]) + "\n")


if __name__ == "__main__":
    main()
