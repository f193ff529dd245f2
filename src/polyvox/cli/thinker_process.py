# SPDX-License-Identifier: Apache-2.0
"""The thinker of a Qwen3-Omni checkpoint as a process of `polyvox serve`, if no other LLM is configured."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from polyvox.server.settings import Settings

THINKER_SECTION = "thinker_config"  # of the config.json of a checkpoint that contains an LLM
STOP_TIMEOUT = 10.0  # seconds


@contextmanager
def thinker_process(settings: Settings) -> Iterator[Settings]:
    """Starts `polyvox think` where the model contains an LLM and transformers is installed.

    Yields the settings with its URL. It loads while the engine starts; until then chat completions fail with 502.
    """
    if settings.llm is not None or find_spec("transformers") is None or not contains_thinker(settings.model):
        yield settings
        return
    assert settings.model is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "polyvox", "think", "--model", settings.model, "--port", str(port)]
    command += ["--device", settings.device, "--dtype", settings.dtype, "--stop-with-stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:  # stdin is closed if this process is killed
        try:
            yield settings.model_copy(update={"llm": f"http://127.0.0.1:{port}/v1"})
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()


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
