# SPDX-License-Identifier: Apache-2.0
"""How long a server takes to start: with an empty cache folder, and again with the one that the first start filled.

    python benchmarks/startup.py --size 1.7B --max-streams 256 --starts 3
    python benchmarks/startup.py --size 1.7B --checkpoint /tmp/random-1.7B
    python benchmarks/startup.py --model embedded

Starts the server, polls /livez and /readyz until a trial utterance has succeeded, stops it, and starts it again. The
first start compiles all kernels; the page cache of the operating system is as it was. Prints a line for each start and
a JSON object at the end: seconds from the start of the command to the first answer (live), to the end of the engine's
start (engine) and to readiness (ready); the stages of the engine's start; and when /readyz first showed each stage.
"""

import argparse
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

RANDOM_SERVER = Path(__file__).with_name("random_server.py")
START_TIMEOUT, STOP_TIMEOUT, REQUEST_TIMEOUT = 300.0, 60.0, 10.0  # seconds
POLL_INTERVAL = 0.02  # seconds


class StartedServer:
    """A server process and its log."""

    def __init__(self, command: list[str], cache: Path, port: int) -> None:
        environment = {**os.environ, "POLYVOX_CACHE_DIR": str(cache), "POLYVOX_LOG_FORMAT": "json"}
        environment.pop("TRITON_CACHE_DIR", None)
        self._port, self.began = port, time.monotonic()
        self._process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def get(self, path: str) -> tuple[int, bytes] | None:
        """Status and body, on a connection of its own; None if nothing listens yet."""
        if self._process.poll() is not None:
            raise SystemExit("The server ended:\n" + "".join(self.lines))
        if self.seconds() > START_TIMEOUT:
            raise SystemExit(f"The server did not start within {START_TIMEOUT:g} s:\n" + "".join(self.lines))
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=REQUEST_TIMEOUT)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except OSError:
            return None
        finally:
            connection.close()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(STOP_TIMEOUT)
        self._reader.join(STOP_TIMEOUT)

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line)


def measure(command: list[str], cache: Path, port: int) -> dict[str, Any]:
    """One start, from the command to readiness."""
    server = StartedServer(command, cache, port)
    result: dict[str, Any] = {}
    seen: dict[str, float] = {}
    slowest = 0.0
    try:
        while True:
            asked = time.monotonic()
            live, ready = server.get("/livez"), server.get("/readyz")
            if live is not None and live[0] == 200:
                result.setdefault("live", round(server.seconds(), 2))
                slowest = max(slowest, time.monotonic() - asked)
            if ready is not None:
                body = json.loads(ready[1])
                seen.setdefault(body.get("stage") or body["status"], round(server.seconds(), 2))
                if ready[0] == 200:
                    break
            time.sleep(POLL_INTERVAL)
        result["ready"] = round(server.seconds(), 2)
    finally:
        server.stop()
    for line in server.lines:
        if '"engine ready"' in line:
            fields = json.loads(line)
            known = ("time", "level", "logger", "message", "seconds", "pid")
            result["engine"] = fields["seconds"]
            result["stages"] = {name: value for name, value in fields.items() if name not in known}
    return result | {"first_seen": seen, "slowest_health_answer": round(slowest, 3)}


def kernels(cache: Path) -> int:
    """The number of compiled kernels in the cache folder."""
    return sum(1 for _ in cache.rglob("*.cubin"))


def write_checkpoint(folder: Path, size: str) -> None:
    """Writes random weights of a published size; in a process of its own, which leaves nothing on the GPU."""
    if folder.is_dir():
        return
    code = (
        "import sys, torch; from pathlib import Path; from polyvox.models.qwen3_tts.synthetic import write_random; "
        "write_random(Path(sys.argv[1]), sys.argv[2], torch.device('cuda' if torch.cuda.is_available() else 'cpu'))"
    )
    subprocess.run([sys.executable, "-c", code, str(folder), size], check=True, timeout=START_TIMEOUT)


def conditions() -> dict[str, Any]:
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    try:
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        gpu = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        gpu = None
    return {"gpu": gpu, "cpu": cpu[1] if cpu else None, "cores": os.cpu_count()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1.7B", choices=["0.6B", "1.7B"], help="random weights of this size")
    parser.add_argument("--model", help="a checkpoint instead of random weights; 'embedded' for the embedded voice")
    parser.add_argument(
        "--checkpoint", type=Path, help="load the random weights from this folder; they are written if it is missing"
    )
    parser.add_argument("--max-streams", type=int, default=256)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--cache-dir", type=Path, help="by default a new folder, which is removed at the end")
    given = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--max-streams", str(given.max_streams), "--workers", str(given.workers), "--port", str(port)]
    if given.checkpoint is not None:
        write_checkpoint(given.checkpoint, given.size)
        given.model = str(given.checkpoint)
    if given.model is None:
        command = [sys.executable, str(RANDOM_SERVER), "--size", given.size, *options]
    else:
        model = [] if given.model == "embedded" else ["--model", given.model]
        command = [sys.executable, "-m", "polyvox", "serve", *model, *options]
    starts = []
    with tempfile.TemporaryDirectory() as folder:
        cache = given.cache_dir or Path(folder)
        for number in range(given.starts):
            before = kernels(cache)
            starts.append(measure(command, cache, port) | {"kernels_compiled": kernels(cache) - before})
            sys.stdout.write(f"start {number + 1}: {json.dumps(starts[-1])}\n")
            sys.stdout.flush()
    name = given.model or f"random weights, {given.size}"
    settings = {"model": name, "max_streams": given.max_streams, "workers": given.workers}
    sys.stdout.write(json.dumps({**conditions(), **settings, "starts": starts}, indent=2) + "\n")


if __name__ == "__main__":
    main()
