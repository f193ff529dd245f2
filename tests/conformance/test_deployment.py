# SPDX-License-Identifier: Apache-2.0
"""The files of deploy/ and the Dockerfile, checked by the programs that read them.

hadolint, Helm and kubernetes-validate are installed by `make conformance`; promtool and systemd-analyze come from
Debian (packages prometheus and systemd), and their tests are skipped without them.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from playwright.sync_api import Browser

from conformance.dashboard_page import DASHBOARD, expanded, render
from conformance.server_process import ServerProcess, run_server
from conformance.test_proxies import free_port
from ipc.engine_processes import eventually
from polyvox.server.settings_sources import load_settings
from server.certificates import create_certificate

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROGRAMS = ROOT / ".conformance/clients/deployment/bin"
CHART = DEPLOY / "helm/polyvox"
TIMEOUT = 120.0
MAX_EXPOSURE = "20"  # of systemd-analyze security, in tenths
EVERYTHING = {
    "gpus": 1,
    "apiKeys": ["one", "two"],
    "ingress": {"enabled": True, "tlsSecret": "tls", "className": "nginx"},
    "serviceMonitor": {"enabled": True},
}


def run(program: str, *arguments: str, cwd: Path = ROOT, check: bool = True) -> str:
    found = PROGRAMS / program if (PROGRAMS / program).exists() else shutil.which(program)
    if found is None:
        pytest.skip(f"needs {program}")
    done = subprocess.run([str(found), *arguments], cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done.stdout + done.stderr


def rendered(values: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    text = run("helm", "template", "test", str(CHART), "--values", str(file))
    return [document for document in yaml.safe_load_all(text) if document]


def only(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [document for document in documents if document["kind"] == kind]
    return found


def test_the_dockerfile_has_no_warnings() -> None:
    assert run("hadolint", "Dockerfile") == ""


def test_the_chart_has_no_warnings() -> None:
    assert "0 chart(s) failed" in run("helm", "lint", "--strict", str(CHART))


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
@pytest.mark.parametrize("version", ["1.27", "1.37"])
def test_the_manifests_are_valid(values: dict[str, Any], version: str, tmp_path: Path) -> None:
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all(rendered(values, tmp_path)))
    output = run("kubernetes-validate", "--strict", "--kubernetes-version", version, str(file))
    unchecked = [line for line in output.splitlines() if line.startswith("WARN")]
    assert all("ServiceMonitor" in line for line in unchecked)  # a custom resource


def test_a_pod_is_restricted_and_has_time_to_drain(tmp_path: Path) -> None:
    documents = rendered(EVERYTHING, tmp_path)
    pod = only(documents, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    settings = yaml.safe_load(only(documents, "ConfigMap")["data"]["polyvox.yaml"])
    pre_stop = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= pre_stop + settings["drain_timeout"] + 10
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/data", "/cache", "/tmp"}
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert only(documents, "Secret")["stringData"] == {"POLYVOX_API_KEYS": "one,two"}
    assert "one" not in json.dumps(pod)


def test_the_settings_of_the_chart_are_settings_of_the_server(tmp_path: Path) -> None:
    file = tmp_path / "polyvox.yaml"
    file.write_text(only(rendered(EVERYTHING, tmp_path), "ConfigMap")["data"]["polyvox.yaml"])
    settings = load_settings({}, file)
    assert settings.host == "0.0.0.0"
    assert settings.allowed_hosts == ["tts.example.com"]


def test_several_replicas_need_a_shared_voice_library(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("replicas: 2\n")
    assert "shared voice library" in run("helm", "template", "test", str(CHART), "--values", str(file), check=False)
    shared = {"replicas": 2, "persistence": {"accessModes": ["ReadWriteMany"]}}
    assert only(rendered(shared, tmp_path), "Deployment")["spec"]["replicas"] == 2


def test_prometheus_accepts_its_configuration_and_the_alert_rules() -> None:
    folder = DEPLOY / "prometheus"
    run("promtool", "check", "config", "prometheus.yaml", cwd=folder)
    assert "SUCCESS" in run("promtool", "test", "rules", "alerts_test.yaml", cwd=folder)


def test_the_metrics_have_no_warnings(server: ServerProcess) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool: apt install prometheus")
    with server.client() as client:
        text = client.get("/metrics").content
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_systemd_unit_is_valid_and_restricted(tmp_path: Path) -> None:
    unit = tmp_path / "polyvox.service"
    text = (DEPLOY / "systemd/polyvox.service").read_text()
    assert "/opt/polyvox/bin/polyvox serve" in text
    unit.write_text(text.replace("/opt/polyvox/bin/polyvox", sys.executable))
    assert "polyvox.service" not in run("systemd-analyze", "verify", "--man=no", str(unit))
    run("systemd-analyze", "security", "--offline=true", f"--threshold={MAX_EXPOSURE}", "--no-pager", str(unit))


def test_the_health_check_of_the_image_follows_the_server(tmp_path: Path) -> None:
    certificate = create_certificate(tmp_path)
    script = [sys.executable, str(DEPLOY / "docker/healthcheck.py")]
    tls = ("--tls-cert", str(certificate.cert), "--tls-key", str(certificate.key), "--workers", "2")
    with run_server(tmp_path / "voices", *tls, verify=certificate.client_context()) as running:
        environment = {"POLYVOX_PORT": str(running.port), "POLYVOX_TLS_CERT": str(certificate.cert)}
        assert subprocess.run(script, env=environment, timeout=TIMEOUT).returncode == 0
        with running.client() as client:  # HTTPS with several server processes
            assert client.post("/v1/audio/speech", json={"input": "Hi."}).status_code == 200
        plain = subprocess.run(script, env={"POLYVOX_PORT": str(running.port)}, capture_output=True, timeout=TIMEOUT)
        assert plain.returncode == 1
    stopped = subprocess.run(script, env=environment, capture_output=True, timeout=TIMEOUT)
    assert stopped.returncode == 1


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[httpx.Client]:
    """A Prometheus that scrapes a server every second, with the configuration of compose.yaml."""
    if shutil.which("prometheus") is None:
        pytest.skip("needs prometheus: apt install prometheus")
    text = (DEPLOY / "prometheus/prometheus.yaml").read_text()
    for old, new in {
        "polyvox:8000": target,
        "scrape_interval: 5s": "scrape_interval: 1s",
        "timeout: 4s": "timeout: 1s",
    }.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "prometheus.yaml").write_text(text)
    shutil.copy(DEPLOY / "prometheus/alerts.yaml", folder)
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log) as process,
        httpx.Client(base_url=f"http://{address}", timeout=TIMEOUT, trust_env=False) as client,
    ):
        try:
            eventually(lambda: is_scraped(client) or threading.Event().wait(0.1))
            yield client
        finally:
            process.terminate()
            process.wait(TIMEOUT)


def is_scraped(client: httpx.Client) -> bool:
    try:
        found = client.get("/api/v1/query", params={"query": "count_over_time(polyvox_ready[1m])"}).json()
    except (httpx.TransportError, ValueError):
        return False
    return bool(found.get("data", {}).get("result")) and float(found["data"]["result"][0]["value"][1]) >= 3


def test_every_query_of_the_dashboard_has_data_and_its_panels_are_drawn(
    server: ServerProcess, browser: Browser, tmp_path: Path
) -> None:
    """DASHBOARD_SCREENSHOT=FILE keeps the picture. Grafana itself is not installed here."""
    targets = [target["expr"] for panel in panels() for target in panel["targets"]]
    start = time.time()
    with prometheus(tmp_path, urllib.parse.urlsplit(server.url).netloc) as client:
        with server.client() as speaker:
            for _ in range(5):
                speaker.post("/v1/audio/speech", json={"input": "Good morning. It is late.", "response_format": "pcm"})

        eventually(lambda: all(has_data(client, each) for each in targets) or threading.Event().wait(0.5))
        page = browser.new_page(viewport={"width": 1260, "height": 900})
        page.set_content(render(client, start, time.time()))
        file = os.environ.get("DASHBOARD_SCREENSHOT", str(tmp_path / "dashboard.png"))
        page.screenshot(path=file, full_page=True)
        assert page.locator(".panel").count() == sum("custom" in each["fieldConfig"]["defaults"] for each in panels())
        assert page.locator("polyline").count() > len(targets) // 2


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def has_data(client: httpx.Client, expression: str) -> bool:
    answer = client.get("/api/v1/query", params={"query": expanded(expression)}).json()
    assert answer["status"] == "success", answer
    # The smallest lead exists while a stream is running only.
    return bool(answer["data"]["result"]) or "min_lead" in expression
