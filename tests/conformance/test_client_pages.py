# SPDX-License-Identifier: Apache-2.0
"""Every snippet of docs/clients runs with the package that it is for."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from conformance.client_runs import ENVIRONMENTS, NODE
from conformance.playground_page import ARGUMENTS, CHROMIUM
from conformance.server_process import TIMEOUT, ServerProcess

PAGES = Path(__file__).parents[2] / "docs/clients"
ADDRESS = "http://127.0.0.1:8000"
# The environment of a snippet, by a module that it imports; otherwise that of the tests.
BY_IMPORT = {"agents": "openai-agents", "litellm": "litellm"}
MIN_BYTES = 5000  # of the file that a snippet writes


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (page.stem, text)
        for page in sorted(PAGES.glob("*.md"))
        for text in re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    ]


def params(language: str, *excluded: str) -> list[object]:
    found = [(page, text) for page, text in blocks(language) if page not in excluded]
    return [pytest.param(text, id=f"{page}-{number}") for number, (page, text) in enumerate(found)]


def at(server: ServerProcess, text: str) -> str:
    return text.replace(ADDRESS, server.url).replace(ADDRESS.replace("http", "ws"), server.url.replace("http", "ws"))


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


@pytest.mark.parametrize("text", params("python"))
def test_a_python_snippet_runs(text: str, server: ServerProcess, tmp_path: Path) -> None:
    names = [BY_IMPORT[module] for module in re.findall(r"^(?:from|import) (\w+)", text, re.M) if module in BY_IMPORT]
    python = str(ENVIRONMENTS / names[0] / "bin/python") if names else sys.executable
    run([python, "-c", at(server, text)], tmp_path)
    if "speech." in text and "open(" in text:
        assert sum(file.stat().st_size for file in tmp_path.glob("speech.*")) > MIN_BYTES


@pytest.mark.parametrize("text", params("js", "browser"))
def test_a_node_snippet_runs(text: str, server: ServerProcess, tmp_path: Path) -> None:
    script = ENVIRONMENTS / NODE / "snippet.mjs"  # modules are found beside a script only
    script.write_text(at(server, text))
    run(["node", str(script)], tmp_path)
    assert (tmp_path / "speech.mp3").stat().st_size > MIN_BYTES


def test_the_browser_snippet_plays_speech(server: ServerProcess) -> None:
    ((_, text),) = [block for block in blocks("js") if block[0] == "browser"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*ARGUMENTS, "--autoplay-policy=no-user-gesture-required"]
        )
        page = browser.new_page()
        page.goto(f"{server.url}/livez")
        assert page.evaluate(f"async () => {{ {at(server, text)}; return audio.duration }}") > 1
        browser.close()


def test_the_commands_run(server: ServerProcess, tmp_path: Path) -> None:
    lines = [line for _, text in blocks("sh") for line in text.splitlines()]
    assert {line.split(" ")[0] for line in lines} == {"curl", "polyvox"}
    for line in lines:
        if line.startswith("curl"):
            run([*shlex.split(at(server, line)), "--fail", "--silent"], tmp_path)
            assert (tmp_path / "speech.mp3").stat().st_size > MIN_BYTES
        else:  # its options exist; test_clients.py starts a server with them
            shown = subprocess.run([sys.executable, "-m", "polyvox", "serve", "--help"], capture_output=True, text=True)
            for option in re.findall(r"--[\w-]+", line):
                assert option in shown.stdout, option
