# SPDX-License-Identifier: Apache-2.0
"""The files of deploy/ and docs/deployment.md name settings, files, targets and options that exist.

tests/conformance/test_deployment.py runs the programs that read them.
"""

import itertools
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from polyvox.server.settings import ENV_PREFIX, Settings
from polyvox.server.settings_sources import OTHER_VARIABLES
from polyvox.server.workers import KILL_TIMEOUT

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs/deployment.md").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line
]
DRAIN = Settings().drain_timeout + KILL_TIMEOUT  # seconds from SIGTERM to the end


def commands(program: str) -> list[list[str]]:
    return [words for line in COMMANDS if program in (words := shlex.split(line))]


def read_yaml(path: str) -> dict[str, Any]:
    found = yaml.safe_load((ROOT / path).read_text())
    assert isinstance(found, dict)
    return found


def is_setting(variable: str) -> bool:
    return variable in OTHER_VARIABLES or variable.removeprefix(ENV_PREFIX).lower() in Settings.model_fields


def test_every_program_of_the_page_is_checked_here() -> None:
    programs = {next(word for word in shlex.split(line) if "=" not in word) for line in COMMANDS}
    assert programs == {
        "docker",
        "helm",
        "python3",
        "/opt/polyvox/bin/pip",
        "install",
        "systemctl",
        "polyvox",
        "pip",
    }


def test_every_variable_of_the_files_is_a_setting() -> None:
    files = ["Dockerfile", "compose.yaml", "deploy/docker/compose.gpu.yaml", "deploy/docker/healthcheck.py"]
    for file in (*files, "deploy/systemd/polyvox.service", "docs/deployment.md"):
        names = set(re.findall(r"\bPOLYVOX_[A-Z_]+\b", (ROOT / file).read_text()))
        assert names, file
        assert {name for name in names if not is_setting(name)} == set(), file


def test_every_option_of_the_server_exists() -> None:
    options = [word for words in commands("serve") for word in words if word.startswith("--")]
    assert {"--tls-cert", "--tls-key", "--otel"} <= set(options)
    for words in commands("serve"):
        for option in [word for word in words if word.startswith("--")]:
            assert option.removeprefix("--").replace("-", "_") in Settings.model_fields, option


def test_docker_commands_use_targets_files_and_the_port_of_the_image() -> None:
    targets = re.findall(r"^FROM .* AS (\S+)$", DOCKERFILE, re.MULTILINE)
    assert targets[-1] == "cpu"  # the default
    for words in commands("docker"):
        for option, value in itertools.pairwise(words):
            if option == "--target":
                assert value in targets
            if option == "--file":
                assert (ROOT / value).exists()
            if option == "--publish":
                assert value.endswith(f":{Settings().port}")
    assert f"EXPOSE {Settings().port}" in DOCKERFILE


def test_the_image_runs_as_a_user_and_writes_to_volumes_only() -> None:
    for target in ("cpu", "cuda"):
        stage = DOCKERFILE.partition(f" AS {target}\n")[2].partition("\nFROM ")[0]
        assert re.search(r"^USER 10001$", stage, re.MULTILINE), target
    (volumes,) = re.findall(r"^VOLUME (.*)$", DOCKERFILE, re.MULTILINE)
    for name in ("POLYVOX_HOME", "POLYVOX_CACHE_DIR", "HF_HOME"):
        (folder,) = re.findall(rf"{name}=(\S+)", DOCKERFILE)
        assert any(folder.startswith(volume) for volume in json.loads(volumes)), name


def test_the_compose_file_sets_no_empty_keys() -> None:
    assert read_yaml("compose.yaml")["services"]["polyvox"]["environment"]["POLYVOX_API_KEYS"] is None


def test_the_services_of_the_compose_file_mount_files_that_exist() -> None:
    services = read_yaml("compose.yaml")["services"]
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith("./") or (ROOT / source).exists(), source
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    server = services["polyvox"]
    assert server["read_only"]
    assert server["build"]["target"] in DOCKERFILE
    assert int(server["stop_grace_period"].removesuffix("s")) > DRAIN
    (job,) = read_yaml("deploy/prometheus/prometheus.yaml")["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [f"polyvox:{Settings().port}"]
    (source,) = read_yaml("deploy/grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    provider = read_yaml("deploy/grafana/provisioning/dashboards/polyvox.yaml")["providers"][0]
    mounted = [volume.split(":")[1] for volume in services["grafana"]["volumes"]]
    assert provider["options"]["path"] in mounted
    assert read_yaml("deploy/docker/compose.gpu.yaml")["services"]["polyvox"]["build"]["target"] == "cuda"


def test_the_systemd_unit_lets_the_server_drain() -> None:
    unit = (DEPLOY / "systemd/polyvox.service").read_text()
    (timeout,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert int(timeout) > DRAIN
    (copy,) = [words for words in commands("install") if words[0] == "install"]
    assert (ROOT / copy[-2]).exists()
    assert "/opt/polyvox/bin/polyvox serve" in unit


def test_helm_commands_set_values_of_the_chart() -> None:
    values = read_yaml("deploy/helm/polyvox/values.yaml")
    assert commands("helm")
    for words in commands("helm"):
        assert (ROOT / words[3] / "Chart.yaml").exists()
        for option, value in itertools.pairwise(words):
            if option == "--set":
                section, _, name = value.partition("=")[0].partition(".")
                assert section in values
                known = Settings.model_fields if section == "settings" else values[section]
                assert not name or name in known, value


def test_the_settings_of_the_chart_exist() -> None:
    assert set(read_yaml("deploy/helm/polyvox/values.yaml")["settings"]) <= set(Settings.model_fields)


def test_the_extra_of_the_page_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"polyvox\[(\w+)\]", PAGE)) <= set(extras)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(deploy/[\w./-]+)`", PAGE))))
def test_every_file_of_the_page_exists(path: str) -> None:
    assert (ROOT / path).exists()
