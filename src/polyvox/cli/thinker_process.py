# SPDX-License-Identifier: Apache-2.0
"""The thinker of a Qwen3-Omni checkpoint as a process of `polyvox serve`, if no other LLM is configured."""

import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from polyvox.engine.lifecycle import Backoff, RestartPolicy
from polyvox.server.settings import Settings

log = logging.getLogger(__name__)

THINKER_SECTION = "thinker_config"  # of the config.json of a checkpoint that contains an LLM
STOP_TIMEOUT = 10.0  # seconds


@contextmanager
def thinker_process(settings: Settings) -> Iterator[Settings]:
    """Runs `polyvox think` where the model contains an LLM and transformers is installed.

    Yields the settings with its URL. It loads while the engine starts; until it listens, chat completions are rejected
    with 503.
    """
    if settings.llm is not None or find_spec("transformers") is None or not contains_thinker(settings.model):
        yield settings
        return
    assert settings.model is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "polyvox", "think", "--model", settings.model, "--port", str(port)]
    command += ["--device", settings.device, "--dtype", settings.dtype, "--stop-with-stdin"]
    supervisor = ThinkerSupervisor(command, settings.restart_policy())
    try:
        yield settings.with_supervised_llm(f"http://127.0.0.1:{port}/v1")
    finally:
        supervisor.close()


class ThinkerSupervisor:
    """Runs a command until it is closed; a process that ends earlier is restarted with exponential backoff.

    The process ends when its stdin is closed, also if this process is killed. It is in a session of its own: Ctrl-C
    reaches only the server, whose drain needs the thinker.
    """

    def __init__(self, command: list[str], policy: RestartPolicy) -> None:
        self._command, self._backoff = command, Backoff(policy)
        self._closing = threading.Event()
        self._lock = threading.Lock()  # no process is started after the close
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._supervise, name="polyvox-thinker", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops the process within STOP_TIMEOUT. Idempotent."""
        with self._lock:
            self._closing.set()
            process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join(STOP_TIMEOUT)

    def _supervise(self) -> None:
        while not self._closing.is_set():
            start, reason = time.monotonic(), self._run()
            if self._closing.is_set():
                return
            delay = self._backoff.next_delay(time.monotonic() - start)
            fields = {"reason": reason, "failures": self._backoff.num_failures, "delay": round(delay, 2)}
            log.warning("thinker restarting", extra=fields)
            self._closing.wait(delay)

    def _run(self) -> str:
        """Runs the process and returns why it ended."""
        with self._lock:
            if self._closing.is_set():
                return "closed"
            try:
                self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True)
            except OSError as error:
                return str(error)
        with self._process as process:
            return f"exit code {process.wait()}"


def contains_thinker(model: str | None) -> bool:
    """Whether a checkpoint, a folder or a hub id, contains an LLM. False if its config cannot be read."""
    if model is None:
        return False
    try:
        path = Path(model).expanduser() / "config.json"
        if not path.exists():
            from huggingface_hub import hf_hub_download

            path = Path(hf_hub_download(model, "config.json"))
        return THINKER_SECTION in json.loads(path.read_text())
    except Exception:  # the engine reports what is wrong with the checkpoint
        return False
