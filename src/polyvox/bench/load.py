# SPDX-License-Identifier: Apache-2.0
"""The load of a run: its parameters, its share for each client process, and the lag of the client."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Literal

from polyvox.bench.metrics import RequestTrace
from polyvox.bench.prompts import Phase, prompt_order
from polyvox.bench.summary import Distribution
from polyvox.errors import InvalidRequest

Mode = Literal["closed", "listeners", "open"]

STREAMS_PER_PROCESS = 64  # concurrent streams that one client process reads without lag
STREAMS_PER_RATE = 4  # concurrent streams assumed for each request per second of an open loop
WARMUP_INDEX = -1  # warm-up requests count down from here, so the indices of measured ones do not depend on them

LOAD_UNITS: dict[Mode, str] = {
    "closed": "concurrent streams",
    "listeners": "listeners",
    "open": "requests per second",
}


@dataclass(frozen=True, slots=True)
class Load:
    """One run. Closed loop: `level` concurrent streams, each replaced when it ends; open loop: requests per second.

    Listeners are a closed loop in real time: each sends its next request when it has played the audio of the last one.

    warmup, seconds: how long unmeasured and measured requests are started; each stream of a closed loop has at least
    one measured request. num_prompts: the number of measured requests, instead of `seconds`. ramp: seconds of the
    warm-up over which the streams of a closed loop start.
    """

    mode: Mode
    level: float
    seconds: float = 30.0
    warmup: float = 5.0
    num_prompts: int | None = None
    ramp: float = 0.0
    seed: int = 1
    timeout: float = 120.0
    max_in_flight: int = 4096
    record: int = 0  # number of measured requests, first in the sequence, whose audio is kept

    def check(self) -> None:
        if not 0 < self.level < inf or (self.is_closed and self.level != int(self.level)):
            requirement = "must be a positive integer" if self.is_closed else "must be above 0"
            shown = int(self.level) if float(self.level).is_integer() else self.level
            raise InvalidRequest("level", shown, requirement)
        for name in ("seconds", "timeout"):
            if not 0 < getattr(self, name) < inf:
                raise InvalidRequest(name, getattr(self, name), "must be above 0")
        if not 0 <= self.warmup < inf:
            raise InvalidRequest("warmup", self.warmup, "must be at least 0")
        if not 0 <= self.ramp <= self.warmup:
            raise InvalidRequest("ramp", self.ramp, f"must be between 0 and the warm-up of {self.warmup:g} s")
        if self.num_prompts is not None and self.num_prompts < 1:
            raise InvalidRequest("num_prompts", self.num_prompts, "must be at least 1")
        if self.max_in_flight < 1:
            raise InvalidRequest("max_in_flight", self.max_in_flight, "must be at least 1")
        if self.record < 0:
            raise InvalidRequest("record", self.record, "must be at least 0")

    @property
    def is_closed(self) -> bool:
        """Whether the number of streams is limited, not their rate."""
        return self.mode != "open"

    @property
    def label(self) -> str:
        labels = {"closed": "concurrency {:g}", "listeners": "{:g} listeners", "open": "{:g} req/s"}
        return labels[self.mode].format(self.level)

    def num_processes(self, cores: int, streams_per_process: int = STREAMS_PER_PROCESS) -> int:
        """The client processes needed to read the streams, at most one per core."""
        streams = self.level if self.is_closed else STREAMS_PER_RATE * self.level
        return max(1, min(cores, -(-int(streams) // streams_per_process)))


@dataclass(frozen=True, slots=True)
class LoadShard:
    """The share of a load that one client process generates: every `of`-th request or stream from `number` on."""

    load: Load
    texts: tuple[str, ...]
    number: int = 0
    of: int = 1

    def jobs(self, phase: Phase) -> Iterator[tuple[int, int]]:
        """(index, text index) of this shard's requests, in order."""
        numbered = enumerate(prompt_order(len(self.texts), self.load.seed, phase))
        for position, text in islice(numbered, self.number, None, self.of):
            yield (position if phase == "measured" else WARMUP_INDEX - position), text

    def new_trace(self, job: tuple[int, int], measured: bool, due: float) -> RequestTrace:
        index, text = job
        trace = RequestTrace(index, text, len(self.texts[text].split()), measured, due)
        if measured and index < self.load.record:
            trace.pcm = bytearray()
        return trace

    @property
    def num_prompts(self) -> int | None:
        """The number of measured requests, if the load has one."""
        total = self.load.num_prompts
        return None if total is None else len(range(self.number, total, self.of))


@dataclass(frozen=True, slots=True)
class ClientLag:
    """How much the client itself distorts a run."""

    loop: Distribution | None  # event loop lag in seconds, of the worst process
    cpu: float  # share of a core, of the busiest process
    processes: int  # 0: the client shares the engine's process
