# SPDX-License-Identifier: Apache-2.0
"""Memory planning: how many streams fit on a device, and what uses its memory."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from polyvox.engine.config import EngineConfig
from polyvox.engine.generator_runner import TEXT_ROWS
from polyvox.engine.stream_state import RING_FRAMES
from polyvox.errors import InvalidRequest
from polyvox.models.protocol import Generator, SpeechModel

# max_streams by default. A CPU serves few streams in real time; on a GPU the captured graphs, and the time to capture
# them, grow with the number of streams.
DEFAULT_CPU_STREAMS, MAX_DEFAULT_GPU_STREAMS = 8, 256
# Of the free GPU memory, for graphs and workspaces: 0.6 GB were measured with 16 streams, and they grow with them.
RESERVED_SHARE, RESERVED_BYTES = 0.1, 1_000_000_000


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """One use of memory, and what determines its size."""

    name: str
    size: int  # bytes
    decided: str


def usage_table(usages: Sequence[MemoryUsage]) -> str:
    """One line for each, in GB, and the total."""
    lines = [*usages, MemoryUsage("total", sum(usage.size for usage in usages), "")]
    width = max(len(line.name) for line in lines)
    return "\n".join(f"  {line.name:{width}}  {line.size / 1e9:7.2f} GB  {line.decided}".rstrip() for line in lines)


def device_usage(device: torch.device, ours: Sequence[MemoryUsage], calls: str) -> list[MemoryUsage]:
    """The rest of a GPU's memory: what graphs and workspaces take, and what is not ours."""
    if device.type != "cuda":
        return []
    reserved = torch.cuda.memory_reserved(device)
    free, total = torch.cuda.mem_get_info(device)
    return [
        MemoryUsage("graphs and workspaces", reserved - sum(usage.size for usage in ours), calls),
        MemoryUsage("driver and others", total - free - reserved, f"{free / 1e9:.2f} GB are free"),
    ]


def generator_stream_bytes(generator: Generator, context: int) -> int:
    """Bytes of one stream on the generator's device: keys and values of context positions, and its slot."""
    cache = context * generator.kv_shape.position_bytes(generator.kv_dtype)
    return cache + generator.new_state(1, TEXT_ROWS, RING_FRAMES).nbytes


def stream_bytes(model: SpeechModel, context: int) -> int:
    """Bytes of one stream on both devices."""
    return generator_stream_bytes(model.generator, context) + model.vocoder.new_state(1).nbytes


def fit_max_streams(config: EngineConfig, device: torch.device, stream_size: int) -> EngineConfig:
    """The configuration with max_streams as requested or, if it is 0, as many streams of this size in bytes as fit.

    Raises InvalidRequest if they do not fit.
    """
    cuda = device.type == "cuda"
    available = torch.cuda.mem_get_info(device)[0] if cuda else machine_memory()
    if cuda:
        available = max(0, int(available * (1 - RESERVED_SHARE)) - RESERVED_BYTES)
    if config.memory_gb is not None:
        available = min(available, int(config.memory_gb * 1e9))
    default = max(1, min(available // stream_size, MAX_DEFAULT_GPU_STREAMS if cuda else DEFAULT_CPU_STREAMS))
    max_streams = config.max_streams or default
    if stream_size * max_streams > available:
        requirement = f"must be at most {available // stream_size} with a context of {config.context}"
        hint = f"{stream_size * max_streams / 1e9:.1f} GB are required and {available / 1e9:.1f} GB are available."
        raise InvalidRequest("max_streams", max_streams, requirement, hint)
    return replace(config, max_streams=max_streams)


def machine_memory() -> int:
    """Bytes of memory of this machine, or the limit of this process's cgroup."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # "max", or no such cgroup
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total
