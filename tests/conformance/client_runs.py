# SPDX-License-Identifier: Apache-2.0
"""Stock clients against a server: runs the scripts of clients/ and node/ in their environments, and prints a table.

`python -m conformance.client_runs` writes the table into docs/clients/index.md.
"""

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from conformance.server_process import TIMEOUT, ServerProcess, run_server

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENTS = ROOT / ".conformance/clients"
PAGE = ROOT / "docs/clients/index.md"
NODE = "node"
TABLE = re.compile(r"(<!-- clients -->\n).*(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ClientRun:
    """environment: its folder in .conformance/clients; empty for that of the tests. streams: audio comes early."""

    client: str
    script: str
    environment: str = ""
    streams: bool = True

    @property
    def label(self) -> str:
        return f"{self.script}-{self.environment or 'current'}"


RUNS = (
    ClientRun("OpenAI Python", "openai_python.py"),
    ClientRun("OpenAI Python", "openai_python.py", "sdks-old"),
    ClientRun("OpenAI Node", "openai_node.mjs", NODE),
    ClientRun("OpenAI Agents SDK", "openai_agents.py", "openai-agents"),
    ClientRun("AI SDK", "ai_sdk.mjs", NODE, streams=False),
    ClientRun("LiteLLM", "litellm_python.py", "litellm", streams=False),
    ClientRun("ElevenLabs Python", "elevenlabs_python.py"),
    ClientRun("ElevenLabs Python", "elevenlabs_python.py", "sdks-old"),
    ClientRun("ElevenLabs Node", "elevenlabs_node.mjs", NODE),
    ClientRun("LiveKit, ElevenLabs plugin", "livekit_elevenlabs.py"),
    ClientRun("LiveKit, ElevenLabs plugin", "livekit_elevenlabs.py", "livekit-old"),
    ClientRun("LiveKit, OpenAI plugin", "livekit_openai.py"),
    ClientRun("LiveKit, OpenAI plugin", "livekit_openai.py", "livekit-old"),
    ClientRun("LiveKit, Cartesia plugin", "livekit_cartesia.py", "livekit-others"),
    ClientRun("LiveKit, Deepgram plugin", "livekit_deepgram.py", "livekit-others"),
    ClientRun("Pipecat, ElevenLabs service", "pipecat_elevenlabs.py"),
    ClientRun("Pipecat, ElevenLabs service", "pipecat_elevenlabs.py", "pipecat-old"),
    ClientRun("Wyoming (Home Assistant)", "wyoming_python.py", "wyoming"),
    ClientRun("Wyoming (Home Assistant)", "wyoming_python.py", "wyoming-old"),
    ClientRun("RealtimeTTS", "realtimetts_python.py", "realtimetts"),
)


@contextmanager
def run_server_with_wyoming(voices: Path) -> Iterator[tuple[ServerProcess, str]]:
    """A server on the embedded voice, and its Wyoming address."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    with run_server(voices, "--wyoming", address) as server:
        yield server, address


def run_client(run: ClientRun, server: ServerProcess, wyoming: str) -> dict[str, Any]:
    """Version, seconds to the first audio and to the end, and notes. Raises AssertionError with the client's output."""
    folder = ENVIRONMENTS / run.environment
    variables = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    if run.environment == NODE:  # modules are found beside a script only
        for file in (HERE / NODE).glob("*.mjs"):
            shutil.copy(file, folder)
        command = ["node", str(folder / run.script), server.url]
        variables["NODE_MODULES"] = str(folder / "node_modules")
    else:
        python = str(folder / "bin/python") if run.environment else sys.executable
        command = [python, str(HERE / "clients" / run.script), server.url, wyoming]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def table(server: ServerProcess, wyoming: str) -> str:
    """A Markdown table of all runs."""
    lines = ["| client | version | works | first audio | end | notes |", "|---|---|---|---|---|---|"]
    for run in RUNS:
        try:
            found = run_client(run, server, wyoming)
            times = f"{found['first']:.2f} s | {found['end']:.1f} s"
            lines.append(f"| {run.client} | {found['version']} | yes | {times} | {found['notes']} |")
        except (AssertionError, subprocess.TimeoutExpired) as error:
            sys.stderr.write(f"{run.label}: {error}\n")
            lines.append(f"| {run.client} | {run.environment or 'current'} | no | | | |")
        sys.stderr.write(f"{lines[-1]}\n")
    return "\n".join(lines)


def main() -> None:
    with tempfile.TemporaryDirectory() as voices, run_server_with_wyoming(Path(voices)) as (server, wyoming):
        rows = table(server, wyoming)
    date, machine = datetime.now(UTC).date().isoformat(), f"{platform.machine()}, {os.cpu_count()} cores"
    load = f"load average {os.getloadavg()[2]:.0f}"
    conditions = f"Measured on {date} with the embedded voice on a CPU ({machine}, {load})."
    page = PAGE.read_text()
    PAGE.write_text(TABLE.sub(lambda match: f"{match[1]}{conditions}\n\n{rows}\n{match[2]}", page))


if __name__ == "__main__":
    main()
