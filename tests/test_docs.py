# SPDX-License-Identifier: Apache-2.0
"""Every command and snippet of the documentation runs."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyvox.audio import read_audio
from polyvox.engine.memory import usage_table
from polyvox.server.settings import Settings
from polyvox.server.settings_sources import load_settings
from polyvox.tts import load
from tools.module_tables import missing, rendered

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
# By tests/voices/test_voice_command.py, tests/bench/test_bench_command.py, tests/server/test_conversation_docs.py and
# tests/test_deployment.py
RUN_ELSEWHERE = ("voices.md", "benchmark.md", "performance.md", "conversation.md", "deployment.md")
CLIENT_PAGES = "clients"  # a folder, by tests/conformance/test_client_pages.py
HUB_ID = "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice"


def blocks(language: str) -> list[tuple[str, str]]:
    """(page, text) of each fenced block of a language that is run here."""
    found = []
    for page in PAGES:
        if page.name in RUN_ELSEWHERE or page.parent.name == CLIENT_PAGES:
            continue
        for text in re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            found.append((page.name, text))
    return found


def commands(first_word: str) -> list[str]:
    lines = [line.split("  #")[0].strip() for _, text in blocks("sh") for line in text.splitlines()]
    return [line for line in lines if line.split(" ")[0] == first_word]


@pytest.fixture(scope="module")
def environment(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The command on the path, and a hub cache with a tiny checkpoint under the published name."""
    hub = tmp_path_factory.mktemp("hub")
    cache = hub / f"models--{HUB_ID.replace('/', '--')}"
    shutil.copytree(checkpoints / "custom_voice", cache / "snapshots" / ("0" * 40))
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text("0" * 40)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1"}


def test_every_command_of_a_block_is_run() -> None:
    shown = [line.strip() for _, text in blocks("sh") for line in text.splitlines()]
    words = {line.split(" ")[0] for line in shown if line and not line.startswith("#")}
    assert words == {"make", "curl", "polyvox", "pip", "uvx", "docker"}
    assert len(blocks("python")) >= 1


@pytest.mark.parametrize("command", commands("polyvox"))
def test_a_command_of_the_documentation_runs(command: str, environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "chapter.md").write_text("# One\n\nIt was late. All was quiet.\n")
    done = subprocess.run(shlex.split(command), cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if output := re.search(r"-o (\S+)", command):
        assert len(read_audio(tmp_path / output[1], 24_000)) > 0


@pytest.mark.parametrize("text", [pytest.param(text, id=page) for page, text in blocks("python")])
def test_a_snippet_of_the_documentation_runs(text: str, environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = re.search(r'"(\w+\.wav)"', text)
    assert written is None or (tmp_path / written[1]).exists()


@pytest.mark.parametrize("command", commands("make"))
def test_a_make_target_of_the_documentation_exists(command: str) -> None:
    subprocess.run([*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, check=True)


@pytest.mark.parametrize("command", commands("pip"))
def test_an_installation_of_the_documentation_builds_the_package(command: str) -> None:
    """Without the dependencies, and without a download: the build backend is installed."""
    offline = ["--dry-run", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    program, verb, *arguments = shlex.split(command)
    done = subprocess.run([sys.executable, "-m", program, verb, *offline, *arguments], cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"Would install polyvox" in done.stdout


@pytest.mark.parametrize("command", commands("uvx"))
def test_uvx_runs_a_command_of_the_package(command: str, environment: dict[str, str]) -> None:
    """uv is not installed here: what it would run is."""
    _, _, arguments = command.partition(" --from . ")
    assert "--torch-backend cpu" in command
    assert subprocess.run([*shlex.split(arguments), "--help"], env=environment, capture_output=True).returncode == 0


def test_the_container_starts_the_server_at_the_published_port(environment: dict[str, str]) -> None:
    """Docker is not needed here: the image's files exist, and its command is one of ours."""
    instructions = [line.split() for line in (ROOT / "Dockerfile").read_text().splitlines() if line[:1].isupper()]
    included = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        name for word, *names in instructions if word == "COPY" and "--from" not in names[0] for name in names[:-1]
    }
    assert copied == included
    assert all((ROOT / name).exists() for name in copied)
    (entry, command) = (json.loads(" ".join(rest)) for word, *rest in instructions if word in ("ENTRYPOINT", "CMD"))
    assert subprocess.run([*entry, *command, "--help"], env=environment, capture_output=True).returncode == 0
    (build, run) = commands("docker")
    assert build.split()[-1] == "."
    assert f":{Settings().port} " in run
    assert ["EXPOSE", str(Settings().port)] in instructions
    assert run.split()[-1] == build.split()[-2] == "polyvox"


@pytest.fixture(scope="module")
def address(environment: dict[str, str]) -> Iterator[str]:
    """A server as the documentation starts it, on any free port."""
    command = ["polyvox", "serve", "--port", "0"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            for line in server.stderr:
                if found := re.search(r"Listening on (http://[\d.]+:\d+)", line):  # the engine has started
                    yield found[1]
                    break
        finally:
            server.terminate()
            server.communicate(timeout=20)


def test_the_server_responds_as_documented(address: str, environment: dict[str, str], tmp_path: Path) -> None:
    for command in commands("curl"):
        assert "http://127.0.0.1:8000" in command
        request = [*shlex.split(command.replace("http://127.0.0.1:8000", address)), "--fail", "--silent"]
        done = subprocess.run(request, cwd=tmp_path, env=environment, check=True, capture_output=True)
        output = re.search(r"-o (\S+)", command)
        if output and output[1].endswith(".txt"):
            assert "speech.audio.done" in (tmp_path / output[1]).read_text()
        elif output:
            assert len(read_audio(tmp_path / output[1], 24_000)) > 10_000
        else:
            assert json.loads(done.stdout)


def test_a_websocket_client_of_the_documentation_receives_audio(
    address: str, environment: dict[str, str], tmp_path: Path
) -> None:
    ((_, text),) = blocks("py")
    program = text.replace("ws://127.0.0.1:8000", address.replace("http", "ws"))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(read_audio(tmp_path / "fox.wav", 24_000)) > 24_000


@pytest.mark.parametrize("text", [text for _, text in blocks("yaml")])
def test_a_configuration_of_the_documentation_is_valid(text: str, tmp_path: Path) -> None:
    (tmp_path / "polyvox.yaml").write_text(text)
    assert load_settings(file=tmp_path / "polyvox.yaml") != Settings()


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs/settings.md").read_text()
    for name, field in Settings.model_fields.items():
        assert re.search(rf"^\| `{name}` \|.*{re.escape(field.description or '')}", page, re.MULTILINE), name


def test_the_memory_table_is_the_one_of_the_server() -> None:
    with load(device="cpu", config=Settings().engine_config()) as tts:
        shown = usage_table(tts.engine._runner.memory())
    assert f"memory usage:\n{shown}\n" in (ROOT / "docs/operations.md").read_text()


def test_the_tests_that_the_documentation_names_exist() -> None:
    existing = {path.name for path in (ROOT / "tests").rglob("*.py")}
    for page in PAGES:
        if "notes" not in page.parts:
            assert set(re.findall(r"\btest_\w+\.py\b", page.read_text())) <= existing, page.name


def test_the_files_that_the_architecture_names_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    for name in re.findall(r"`([\w.]+/[\w./]+)`", page):
        assert (ROOT / "src/polyvox" / name).exists() or (ROOT / name).exists(), name


def test_the_functions_that_the_architecture_names_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    members = members_of_classes()
    for owner, name in re.findall(r"`([A-Z]\w+)\.(\w+)`", page):
        assert name in members.get(owner, ()), f"{owner}.{name}"


def members_of_classes() -> dict[str, set[str]]:
    """Methods, fields and attributes of all classes, by the name of the class."""
    classes = [
        node
        for path in (ROOT / "src/polyvox").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    members: dict[str, set[str]] = defaultdict(set)
    for one in classes:
        for node in one.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                members[one.name].add(node.name)
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            members[one.name] |= {target.id for target in targets if isinstance(target, ast.Name)}
        attributes = (
            node for node in ast.walk(one) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        )
        members[one.name] |= {node.attr for node in attributes if ast.unparse(node.value) == "self"}
    return members


def test_the_module_tables_are_up_to_date() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    assert rendered(page) == page, "run tools/module_tables.py"
    assert missing(page) == []


def test_links_lead_to_files() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
