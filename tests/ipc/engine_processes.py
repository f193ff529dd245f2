"""What tests of an engine in another process look at; without torch, as their server processes import it."""

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np

from polyvox.audio.clip import Samples
from polyvox.engine.interface import Stream
from polyvox.errors import EngineDown
from polyvox.ipc.client import RemoteEngine
from polyvox.ipc.supervisor import EngineProcess
from polyvox.models.request import Request

TIMEOUT = 60.0  # of any wait: long, as none is meant to come to its end
ROUNDING = 1e-6  # of a stream in a crowd and alone; on their way samples lose nothing


def request(seed: int, chunks: int = 10, text: str = "hello", live: bool = False) -> Request:
    return Request(text, seed=seed, max_frames=chunks, live=live)


def eventually(condition: Callable[[], bool]) -> None:
    """Asks again and again; each question is a round trip or a wait of its own."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"


def children() -> set[int]:
    resource_tracker.ensure_running()  # else the first process that is spawned brings it, and it stays
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


def folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob(f"polyvox-{os.getpid()}-*"))


def traces() -> tuple[object, ...]:
    """All that an engine process and a remote engine could leave behind here."""
    files = len(os.listdir("/proc/self/fd"))
    rings = Path("/proc/self/maps").read_text().count("polyvox-ring")
    shared = [entry for entry in Path("/dev/shm").glob("*") if "polyvox" in entry.name]
    return children(), folders(), threading.enumerate(), files, rings, shared


def is_back(engine: RemoteEngine) -> bool:
    try:
        return engine.stats()["streams"] == 0
    except EngineDown:
        return threading.Event().wait(0.01)


def send(process: EngineProcess, number: signal.Signals = signal.SIGKILL) -> int:
    """Kills or stops the engine's process; its id."""
    pid = process.pid
    assert pid is not None
    os.kill(pid, number)
    return pid


def await_another(process: EngineProcess, killed: int, *engines: RemoteEngine) -> None:
    eventually(lambda: process.pid not in (None, killed) or threading.Event().wait(0.01))
    for engine in engines:
        eventually(partial(is_back, engine))


def await_end_of(pid: int) -> None:
    """Of a process that may be nobody's child any more."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with open(handle) as ended:
        assert wait([ended.fileno()], TIMEOUT)


def spoken(stream: Stream) -> Samples:
    """All samples of a stream, its chunks in order and its end told once."""
    chunks = list(stream.chunks(TIMEOUT))
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    return np.concatenate([chunk.samples for chunk in chunks])
