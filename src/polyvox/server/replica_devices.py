# SPDX-License-Identifier: Apache-2.0
"""How many replicas a server runs, and the GPU of each. Does not import torch."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from polyvox.errors import InvalidRequest
from polyvox.server.settings import Settings

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
QUERY_TIMEOUT = 10.0  # seconds for nvidia-smi


def resolve_replicas(settings: Settings) -> list[str | None]:
    """The GPU of each replica as a value of CUDA_VISIBLE_DEVICES; None on a CPU, and where one replica chooses itself.

    Raises InvalidRequest if the machine has fewer GPUs than replicas, or another setting names one device.
    """
    wanted = settings.replicas
    if wanted == 1:
        return [None]
    on_gpu = settings.device in ("auto", "cuda")
    gpus = visible_gpus() if on_gpu else []
    count = max(1, len(gpus)) if wanted == "auto" else wanted
    if count == 1:
        return [None]
    if settings.workers == 0:
        hint = "With workers: 0 the engine runs in the server process. Set workers to 1 or more."
        raise InvalidRequest("replicas", count, "must be 1 with workers: 0", hint)
    if settings.device.startswith("cuda:"):
        raise InvalidRequest("replicas", count, f"must be 1 with device {settings.device}", "Set device to cuda.")
    if settings.vocoder_device.startswith("cuda:"):
        requirement = f"must be 1 with vocoder_device {settings.vocoder_device}"
        raise InvalidRequest("replicas", count, requirement, "Each replica uses one GPU.")
    if not gpus:
        if settings.device == "cuda":
            raise InvalidRequest("replicas", count, "must be 1: this machine has no GPU")
        return [None] * count  # on the CPU
    if count > len(gpus):
        raise InvalidRequest("replicas", count, f"must be at most {len(gpus)}, the number of GPUs")
    return list(gpus[:count])


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, by index or id: those of CUDA_VISIBLE_DEVICES, or all."""
    if (visible := os.environ.get(VISIBLE_DEVICES)) is not None:
        names = [name.strip() for name in visible.split(",")]
        last = next((index for index, name in enumerate(names) if name in ("", "-1")), len(names))
        return names[:last]  # CUDA ignores what follows an invalid name
    count = sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in Path("/dev").glob("nvidia*"))
    return [str(index) for index in range(count or _count_with_nvidia_smi())]


def _count_with_nvidia_smi() -> int:
    """For machines without device files, such as WSL."""
    if (command := shutil.which("nvidia-smi")) is None:
        return 0
    try:
        done = subprocess.run([command, "--list-gpus"], capture_output=True, text=True, timeout=QUERY_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines()) if done.returncode == 0 else 0
