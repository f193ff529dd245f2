# SPDX-License-Identifier: Apache-2.0
"""Runs the mixed soak: a real server, clients of all kinds at 90 % of its capacity, and kills in the first half."""

import asyncio
import contextlib
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from polyvox.models.qwen3_tts.synthetic import tiny_files, write_tiny
from soak.mixed_load import MixedLoad, add_voice
from soak.recorder import ProcessTree, Recorder, is_running, read_metrics, record

SHARE = 0.9  # of the capacity
START_TIMEOUT, RESTART_TIMEOUT, IDLE_TIMEOUT, STOP_TIMEOUT = 180.0, 60.0, 120.0, 60.0  # seconds
POLL_SECONDS = 0.5
NOTICE_SECONDS = 2.0  # after a kill; /readyz follows the engine's state once a second
READER_TIMEOUT = 10.0  # seconds
MAX_SLOW_SECONDS = 30.0  # that a client may read slower than real time
NICE = -10  # of server and clients, if permitted: other work on the machine must not cause underruns
SERVER_FLAGS = ("--workers", "2", "--reader-timeout", f"{READER_TIMEOUT:g}", "--log-level", "info")
SIMULATED_CAPACITY = 31  # streams in real time by the simulated device's times; a busy machine measures fewer
SIMULATED_FLAGS = ("--max-streams", "40", "--context", "512", "--max-queue", "64")


@dataclass(frozen=True, slots=True)
class SoakProfile:
    """How long a soak runs, and how often a process is killed in its first half: the engine twice, a server once."""

    name: str
    seconds: float
    kill_interval: float


PROFILES = {
    "try": SoakProfile("try", 180, 40),
    "short": SoakProfile("short", 600, 75),
    "long": SoakProfile("long", 7200, 120),
}


class SoakServer:
    """`polyvox serve` in processes of its own."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process, self.port, self.tree = process, port, ProcessTree(process.pid)

    async def ready(self) -> bool:
        """Whether a few connections in a row are answered, whichever process accepts them."""
        try:
            async with aiohttp.ClientSession(
                f"http://127.0.0.1:{self.port}", connector=aiohttp.TCPConnector(force_close=True)
            ) as session:
                for _ in range(8):
                    async with session.get("/readyz", timeout=aiohttp.ClientTimeout(total=2)) as response:
                        if response.status != 200:
                            return False
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False
        return True

    async def model_name(self) -> str:
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{self.port}") as session,
            session.get("/v1/models", timeout=aiohttp.ClientTimeout(total=5)) as response,
        ):
            return str((await response.json())["data"][0]["id"])

    async def wait_until_ready(self, timeout: float) -> float:
        """Seconds until it is ready; raises TimeoutError."""
        began = time.monotonic()
        async with asyncio.timeout(timeout):
            while not await self.ready():
                if self.process.poll() is not None:
                    raise RuntimeError(f"The server ended with code {self.process.returncode}.")
                await asyncio.sleep(POLL_SECONDS)
        return time.monotonic() - began

    async def wait_until_idle(self, pages: float) -> bool:
        """Whether all streams end and all slots and pages are free in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(IDLE_TIMEOUT):
                while True:
                    found = await asyncio.to_thread(read_metrics, self.port)
                    free = found and (found["slots_free"], found["pages_free"]) == (found["slots"], pages)
                    if free and not any((found["streams"], found["queue"], found["active"])):
                        return True
                    await asyncio.sleep(1.0)
        return False


@contextlib.contextmanager
def running_server(folder: Path, model: str) -> Iterator[SoakServer]:
    """model: simulated or embedded. The log goes to server.log in the folder."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "polyvox", "serve"]
    if model == "simulated":
        checkpoint = write_tiny(folder / "checkpoint", "base")
        command = [sys.executable, "-m", "soak.simulated_server", "serve", "--model", str(checkpoint), *SIMULATED_FLAGS]
    command += ["--port", str(port), "--voices-dir", str(folder / "voices"), *SERVER_FLAGS]
    root = Path(__file__).parents[2]
    paths = [str(root / "src"), str(root / "tests"), str(root)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=environment)
    server = SoakServer(process, port)
    try:
        yield server
    finally:
        process.terminate()
        if _wait(process) is None:
            process.kill()
            process.wait()


async def kill_processes(server: SoakServer, load: MixedLoad, recorder: Recorder, profile: SoakProfile) -> None:
    """Kills in the first half: engine, engine, server process. The oldest server process is never killed."""
    count, end = 0, profile.seconds / 2
    while load.now + profile.kill_interval < end:
        await asyncio.sleep(profile.kill_interval)
        role = "server" if count % 3 == 2 else "engine"
        pid = server.tree.of_role(role)[-1]
        recorder.add_event(load.now, "kill", role=role, pid=pid)
        os.kill(pid, signal.SIGKILL)
        count += 1
        await asyncio.sleep(NOTICE_SECONDS)
        try:
            seconds = NOTICE_SECONDS + await server.wait_until_ready(RESTART_TIMEOUT)
            recorder.add_event(load.now, "ready", role=role, seconds=round(seconds, 2))
        except TimeoutError:
            recorder.add_event(load.now, "not ready", role=role, seconds=RESTART_TIMEOUT)


async def drive(server: SoakServer, recorder: Recorder, profile: SoakProfile, model: str, seed: int) -> None:
    """Runs the load and records it, to the end of the server."""
    start_seconds = await server.wait_until_ready(START_TIMEOUT)
    assert await server.model_name() == model
    clones = model == "simulated"
    if clones:
        await add_voice(server.port, tiny_files("base")["config.json"]["talker_config"]["hidden_size"])
    await asyncio.sleep(2.0)  # the trial utterances end, and the statistics are renewed
    idle = read_metrics(server.port)
    capacity = SIMULATED_CAPACITY if model == "simulated" else idle["capacity"]
    load = MixedLoad(server.port, seed, clones, recorder.add_result)
    recorder.describe(
        profile=profile.name, seconds=profile.seconds, model=model, seed=seed, share=SHARE, began=time.time(),
        max_slow_seconds=MAX_SLOW_SECONDS, start_seconds=round(start_seconds, 1),
        capacity=capacity, measured_capacity=idle["capacity"],
        slots=idle["slots"], pages=idle["pages_free"], rate=round(SHARE * capacity / load.audio_per_client, 2),
        cores=os.cpu_count(), python=platform.python_version(), nice=os.getpriority(os.PRIO_PROCESS, 0),
    )  # fmt: skip
    tasks = [
        asyncio.create_task(record(recorder, server.tree, server.port, load)),
        asyncio.create_task(kill_processes(server, load, recorder, profile)),
    ]
    try:
        await load.run(SHARE * capacity, profile.seconds)
        freed = await server.wait_until_idle(idle["pages_free"])
        recorder.add_sample(load.now, server.tree.sample(), read_metrics(server.port), load)
    finally:
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                recorder.add_event(load.now, "harness failed", error=repr(task.exception()))
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    pids = server.tree.pids()
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    exit_code = await asyncio.to_thread(_wait, server.process)
    await asyncio.sleep(POLL_SECONDS)
    left = [pid for pid in pids if is_running(pid)]
    recorder.describe(
        freed=freed, skipped=load.skipped, exit_code=exit_code, stop_seconds=round(time.monotonic() - began, 2),
        processes_left=len(left), ended=time.time(),
    )  # fmt: skip


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        return None


def raise_priority() -> None:
    """Sets the priority of this process, which the server inherits, if that is permitted."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
        # Where the kernel groups processes by session, this one counts against other sessions.
        Path("/proc/self/autogroup").write_text(str(NICE))


def run(folder: Path, profile: SoakProfile, model: str = "simulated", seed: int | None = None) -> None:
    """A whole soak; its files are in the folder."""
    shutil.rmtree(folder / "voices", ignore_errors=True)  # of an earlier soak, which may have been interrupted
    raise_priority()
    with Recorder(folder) as recorder, running_server(folder, model) as server:
        chosen = random.randrange(2**32) if seed is None else seed
        asyncio.run(drive(server, recorder, profile, model, chosen))
