# SPDX-License-Identifier: Apache-2.0
"""Conversations at once: sessions on a real server with a simulated GPU and a scripted LLM.

    python -m soak.chat_sessions --sessions 50 --turns 4 --rate 75

Each session asks, plays the answer as it arrives, pauses and asks again. Prints one line:

    first audio  from the LLM's first text to the first samples, both as the client receives them
    gaps         of a player that starts with the first samples
"""

import argparse
import asyncio
import base64
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from typer import echo

from polyvox.bench.summary import percentile
from polyvox.models.qwen3_tts.synthetic import write_tiny

ROOT = Path(__file__).parents[2]
PATHS = (ROOT / "src", ROOT / "tests", ROOT)
ANSWER = (
    "That is a good question. There are three things to know about it: first, it takes some time; second, it is "
    "cheaper than you think; and third, you can stop whenever you like. Shall we begin?"
)
BYTES_PER_SECOND = 2 * 24_000
MAX_PAUSE = 2.0  # seconds between the turns of a session
MAX_GAP = 0.02  # seconds that a player's own buffer hides
TURN_TIMEOUT = 120.0


@dataclass(slots=True)
class Results:
    first_audio: list[float] = field(default_factory=list)  # seconds
    gaps: list[float] = field(default_factory=list)  # seconds, of all players
    seconds: float = 0.0  # of audio
    failures: list[str] = field(default_factory=list)

    def describe(self) -> str:
        p50, p95 = (1000 * percentile(sorted(self.first_audio), share) for share in (50, 95))
        counts = f"{len(self.first_audio)} turns, {self.seconds:.0f} s of audio, {len(self.failures)} failures"
        return f"{counts}; first audio p50 {p50:.0f} ms, p95 {p95:.0f} ms; gaps {len(self.gaps)}"


async def run_sessions(url: str, num_sessions: int, num_turns: int) -> Results:
    results = Results()
    connector = aiohttp.TCPConnector(limit=num_sessions)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=TURN_TIMEOUT)) as client:
        sessions = [
            _run_session(client, url, num_turns, random.Random(index), results) for index in range(num_sessions)
        ]
        await asyncio.gather(*sessions)
    return results


async def _run_session(
    client: aiohttp.ClientSession, url: str, num_turns: int, rng: random.Random, results: Results
) -> None:
    messages: list[dict[str, str]] = []
    for _ in range(num_turns):
        await asyncio.sleep(rng.uniform(0, MAX_PAUSE))
        messages.append({"role": "user", "content": "And then?"})
        try:
            text = await _run_turn(client, url, messages, results)
        except (aiohttp.ClientError, TimeoutError, RuntimeError) as error:
            results.failures.append(repr(error))
            text = ""
        messages.append({"role": "assistant", "content": text})


async def _run_turn(client: aiohttp.ClientSession, url: str, messages: list[dict[str, str]], results: Results) -> str:
    """Plays one answer; returns its text."""
    body = {"messages": messages, "modalities": ["text", "audio"], "audio": {"max_new_tokens": 400}, "stream": True}
    text, first_text, first_audio, played_to = "", 0.0, 0.0, 0.0
    done = False
    async with client.post(f"{url}/v1/chat/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(await response.text())
        async for line in response.content:
            now = time.monotonic()
            if line == b"data: [DONE]\n":
                done = True
            elif line.startswith(b"data: "):
                chunk = json.loads(line[len(b"data: ") :])
                if "error" in chunk:
                    raise RuntimeError(str(chunk["error"]))
                for choice in chunk["choices"]:
                    text += choice["delta"].get("content") or ""
                    first_text = first_text or (now if text else 0.0)
                    if data := choice["delta"].get("audio", {}).get("data"):
                        seconds = len(base64.b64decode(data)) / BYTES_PER_SECOND
                        if not first_audio:
                            first_audio = played_to = now
                        elif now - played_to > MAX_GAP:
                            results.gaps.append(now - played_to)
                        played_to = max(played_to, now) + seconds
                        results.seconds += seconds
    if not done or not first_audio:
        raise RuntimeError("the answer is not complete")
    results.first_audio.append(first_audio - first_text)
    await asyncio.sleep(max(0.0, played_to - time.monotonic()))
    return text


RunSessions = Callable[[str, int, int], Coroutine[Any, Any, Results]]


@contextmanager
def running(command: list[str], pattern: str, stream: str) -> Iterator[str]:
    """Starts a process and waits for a line; yields the group of the pattern."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, PATHS)), "OMP_NUM_THREADS": "1"}
    pipe = {stream: subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipe) as process:  # type: ignore[call-overload]
        lines = getattr(process, stream)
        try:
            yield next(filter(None, (re.search(pattern, line) for line in lines)))[1]
        finally:
            process.terminate()
            process.wait(30)


def run(num_sessions: int, num_turns: int, rate: float, run_sessions: RunSessions = run_sessions) -> Results:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_tiny(Path(folder) / "checkpoint", "custom_voice")
        llm = [sys.executable, "-m", "server.scripted_llm", ANSWER, "--rate", str(rate)]
        with running(llm, r"(http://\S+)", "stdout") as llm_url:
            serve = [sys.executable, "-m", "soak.simulated_gpu_server", "serve", "--model", str(checkpoint)]
            options = [
                "--port",
                "0",
                "--device",
                "cpu",
                "--max-streams",
                "128",
                "--llm",
                llm_url,
                "--log-level",
                "error",
            ]
            with running([*serve, *options], r"Listening on (http://\S+)", "stderr") as url:
                return asyncio.run(run_sessions(url, num_sessions, num_turns))


def main(description: str | None = __doc__, run_sessions: RunSessions = run_sessions) -> None:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--rate", type=float, default=75.0, help="texts of the LLM per second")
    options = parser.parse_args()
    results = run(options.sessions, options.turns, options.rate, run_sessions)
    echo(results.describe())
    for failure in results.failures[:3]:
        echo(failure)


if __name__ == "__main__":
    main()
