"""Where an engine's memory goes: how many streams fit, and what they and all else take."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from polyvox.engine.config import EngineConfig
from polyvox.errors import InvalidRequest

# Slots of an engine that was not told how many. A CPU keeps few listeners fed; on a GPU what is captured, and the
# time that takes, grow with them.
CPU_SLOTS, MAX_GPU_SLOTS = 8, 256
# Of what is free on a GPU, for its graphs and workspaces: 0.6 GB were measured with 16 slots, and they grow with them.
SPARE_SHARE, SPARE_BYTES = 0.1, 1_000_000_000


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """A part of the memory, and what decides how large it is."""

    name: str
    size: int  # bytes
    decided: str


def table(shares: Sequence[MemoryUsage]) -> str:
    """One line for each, in GB, and one for all of them."""
    lines = [*shares, MemoryUsage("in all", sum(share.size for share in shares), "")]
    wide = max(len(line.name) for line in lines)
    return "\n".join(f"  {line.name:{wide}}  {line.size / 1e9:7.2f} GB  {line.decided}".rstrip() for line in lines)


def fitted(config: EngineConfig, device: torch.device, stream: int) -> EngineConfig:
    """The same with the slots that were asked for or, where none were, as many as fit; a stream takes so many bytes.

    Raises InvalidRequest where they cannot fit.
    """
    cuda = device.type == "cuda"
    there = torch.cuda.mem_get_info(device)[0] if cuda else machine_memory()
    spared = int(there * (1 - SPARE_SHARE)) - SPARE_BYTES if cuda else there
    if config.memory_gb is not None:
        there = min(there, int(config.memory_gb * 1e9))
    fit = min(spared, there) // stream
    slots = config.max_streams or max(1, min(fit, MAX_GPU_SLOTS if cuda else CPU_SLOTS))
    if stream * slots > there:
        requirement = f"must be at most {there // stream} with a context of {config.context}"
        needed = f"{stream * slots / 1e9:.1f} GB are required and {there / 1e9:.1f} GB are available."
        raise InvalidRequest("max_streams", slots, requirement, needed)
    return replace(config, max_streams=slots)


def machine_memory() -> int:
    """Bytes that this machine, or the group that this process is kept in, has in all."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # "max", or no such group
        there = min(there, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return there
