# SPDX-License-Identifier: Apache-2.0
"""Memory planning: how many streams fit on a device, and what uses its memory."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Literal

import torch

from polyvox.engine.config import MAX_BATCH, MIN_CONTEXT, PAGE, EngineConfig
from polyvox.engine.generator_runner import TEXT_IDS
from polyvox.engine.stream_state import RING_FRAMES
from polyvox.errors import NOT_SHOWN, InvalidRequest
from polyvox.models.protocol import SpeechModel

# The largest max_streams by default. A CPU serves few streams in real time, and no known GPU more than 2,048 of the
# published models. Every call of a deterministic engine has the size of all slots.
MAX_CPU_STREAMS, MAX_GPU_STREAMS, MAX_DETERMINISTIC_STREAMS = 8, 2048, 256
# By default a slot comes with at least this share of the model's context: all streams share the pages, and most are
# short.
MIN_CONTEXT_SHARE = 0.25
# Bytes of CUDA graphs and workspaces: of any engine, and for each stream of its largest batch, mostly activations of
# the codec. On an H200 0.58 GB were measured with a batch of 16, and about 5.6 GB with 1,024.
GRAPH_BYTES, GRAPH_STREAM_BYTES = 800_000_000, 6_000_000
DRIVER_BYTES = 900_000_000  # of a process on a GPU, outside of PyTorch's allocator; measured on an H200
FREE_SHARE = 0.05  # of the usable memory of a GPU that stays free, for cloning and fragmentation


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


@dataclass(frozen=True, slots=True)
class DeviceBudget:
    """The memory of one device for streams, and what they need of it, in bytes."""

    usable: int  # for slots, KV pages, graphs and workspaces
    gpu: bool
    slot: int  # the state of one stream
    position: int  # keys and values of one position; 0: the device has the vocoder only
    weights: int = 0  # that are on the device already

    def num_streams(self, context: int) -> int:
        """Streams with this many positions each that fit."""
        stream = self.slot + context * self.position
        if not self.gpu:
            return self.usable // stream
        fitting = (self.usable - GRAPH_BYTES) // (stream + GRAPH_STREAM_BYTES)
        if fitting > MAX_BATCH:
            fitting = (self.usable - GRAPH_BYTES - MAX_BATCH * GRAPH_STREAM_BYTES) // stream
        return max(0, fitting)

    def context(self, num_streams: int) -> int:
        """Positions of each stream in the memory that this many slots leave, in whole pages."""
        left = self.usable - num_streams * self.slot
        if self.gpu:
            left -= GRAPH_BYTES + min(num_streams, MAX_BATCH) * GRAPH_STREAM_BYTES
        return left // (num_streams * self.position * PAGE) * PAGE

    def rejection(self, context: int, memory_gb: float | None) -> InvalidRequest:
        """The error if not one stream with this many positions fits. It names the limit if that is too low."""
        stream = self.slot + context * self.position
        if self.gpu:
            stream = DRIVER_BYTES + ceil((GRAPH_BYTES + GRAPH_STREAM_BYTES + stream) / (1 - FREE_SHARE))
        kind = "the driver, graphs and one stream" if self.gpu else "one stream"
        needs = f"{_round_up(self.weights):.2f} GB of weights and {_round_up(stream):.2f} GB for {kind}"
        min_gb = _round_up(self.weights) + _round_up(stream)
        if memory_gb is not None and memory_gb < min_gb:
            return InvalidRequest("memory_gb", memory_gb, f"must be at least {min_gb:.2f} for this model: {needs}")
        requirement = f"must leave memory for a stream with a context of {context}: {needs}"
        hint = f"{self.usable / 1e9:.1f} GB are available for streams, graphs and workspaces."
        return InvalidRequest("model", NOT_SHOWN, requirement, hint)


def _round_up(num_bytes: int) -> float:
    """GB, rounded up to hundredths."""
    return ceil(num_bytes / 1e7) / 100


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """A configuration with the number of streams and the context that fit, and what limits the number."""

    config: EngineConfig
    limited_by: Literal["memory", "max_streams"]


def plan_memory(model: SpeechModel, config: EngineConfig) -> StreamPlan:
    """How many streams fit on the devices of a model, with how many positions each; raises InvalidRequest."""
    generator, vocoder = model.generator, model.vocoder
    same = generator.device == vocoder.device
    position = generator.kv_shape.position_bytes(generator.kv_dtype)
    slot, vocoder_slot = slot_bytes(model)
    weights = generator.nbytes + generator.text_table_nbytes + (vocoder.nbytes if same else 0)
    usable = usable_bytes(generator.device, weights, config.memory_gb)
    gpu = generator.device.type == "cuda"
    budgets = [DeviceBudget(usable, gpu, slot + (vocoder_slot if same else 0), position, weights)]
    if not same:
        usable = usable_bytes(vocoder.device, vocoder.nbytes, config.memory_gb)
        budgets.append(DeviceBudget(usable, vocoder.device.type == "cuda", vocoder_slot, 0, vocoder.nbytes))
    return fit_streams(config, generator.default_context, budgets)


def slot_bytes(model: SpeechModel) -> tuple[int, int]:
    """Bytes of the state of one stream in the generator and in the vocoder."""
    return model.generator.new_state(1, TEXT_IDS, RING_FRAMES).nbytes, model.vocoder.new_state(1).nbytes


def fit_streams(config: EngineConfig, default_context: int, budgets: Sequence[DeviceBudget]) -> StreamPlan:
    """budgets: of the generator's device, and of the vocoder's if it is another one.

    Without max_streams as many streams as fit, up to a default; without a context as many positions as fit, up to the
    model's default and at least MIN_CONTEXT_SHARE of it.
    """
    smallest = config.context or min_context(default_context)
    num_fitting = min(budget.num_streams(smallest) for budget in budgets)
    default = MAX_GPU_STREAMS if all(budget.gpu for budget in budgets) else MAX_CPU_STREAMS
    if config.deterministic:
        default = min(default, MAX_DETERMINISTIC_STREAMS)
    max_streams = config.max_streams or min(num_fitting, default)
    if num_fitting < 1:
        raise min(budgets, key=lambda budget: budget.num_streams(smallest)).rejection(smallest, config.memory_gb)
    if max_streams > num_fitting:
        min_usable = min(budget.usable for budget in budgets)
        hint = f"{min_usable / 1e9:.1f} GB are available for streams, graphs and workspaces."
        requirement = f"must be at most {num_fitting} with a context of {smallest}"
        raise InvalidRequest("max_streams", max_streams, requirement, hint)
    context = config.context or min(default_context, budgets[0].context(max_streams))
    limited = not config.max_streams and max_streams < default
    return StreamPlan(replace(config, max_streams=max_streams, context=context), "memory" if limited else "max_streams")


def min_context(default_context: int) -> int:
    """The least positions per stream if none are configured, in whole pages."""
    return max(MIN_CONTEXT, ceil(default_context * MIN_CONTEXT_SHARE / PAGE) * PAGE)


def usable_bytes(device: torch.device, weights: int, memory_gb: float | None) -> int:
    """Bytes of a device for streams, graphs and workspaces.

    weights: bytes of those that are on it already. memory_gb: what the engine may use of the device, weights included.
    """
    gpu = device.type == "cuda"
    usable = torch.cuda.mem_get_info(device)[0] if gpu else machine_memory() - weights
    if memory_gb is not None:
        usable = min(usable, int(memory_gb * 1e9) - weights - (DRIVER_BYTES if gpu else 0))
    return _without_margin(usable, gpu)


def _without_margin(usable: int, gpu: bool) -> int:
    return max(0, int(usable * (1 - FREE_SHARE)) if gpu else usable)


def limit_gpu_memory(device: torch.device, memory_gb: float | None) -> None:
    """Makes PyTorch allocate no more of a GPU than `memory_gb` leaves beside the driver."""
    if device.type == "cuda" and memory_gb is not None:
        total = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, memory_gb * 1e9 - DRIVER_BYTES) / total), device)


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """What a model that is not loaded needs of one device, in bytes."""

    weights: int  # and the text table
    slot: int
    position: int
    default_context: int
    gpu: bool

    @classmethod
    def of(cls, model: SpeechModel, gpu: bool, host_bytes: int = 0) -> "ModelNeeds":
        """model: on the meta device. host_bytes: of weights that stay on the host of a GPU."""
        generator, slot = model.generator, sum(slot_bytes(model))
        position = generator.kv_shape.position_bytes(generator.kv_dtype)
        weights = generator.nbytes + generator.text_table_nbytes + model.vocoder.nbytes
        weights -= host_bytes if gpu else 0
        return cls(weights, slot, position, generator.default_context, gpu)

    def plan(self, free: int, config: EngineConfig | None = None) -> StreamPlan:
        """How many streams fit beside the weights into this many free bytes; raises InvalidRequest."""
        usable = free - self.weights - (DRIVER_BYTES if self.gpu else 0)
        budget = DeviceBudget(_without_margin(usable, self.gpu), self.gpu, self.slot, self.position, self.weights)
        return fit_streams(config or EngineConfig(max_streams=0), self.default_context, [budget])

    def min_bytes(self, num_streams: int = 1) -> int:
        """Free bytes with which this many streams fit."""
        streams = num_streams * (self.slot + min_context(self.default_context) * self.position)
        if not self.gpu:
            return self.weights + streams
        graphs = GRAPH_BYTES + min(num_streams, MAX_BATCH) * GRAPH_STREAM_BYTES
        return self.weights + DRIVER_BYTES + ceil((graphs + streams) / (1 - FREE_SHARE))


def machine_memory() -> int:
    """Bytes of memory of this machine, or the limit of this process's cgroup."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # "max", or no such cgroup
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total
