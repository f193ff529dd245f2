# SPDX-License-Identifier: Apache-2.0
"""Admission control above capacity, simulated: utterances of one to twenty sentences, clients that retry.

python benchmarks/overload.py [--device cpu|gpu] [--loads 0.5,1,…] [--seconds 120] [--seed 1] [--no-retries]

A discrete-event simulation with a fake clock: the engine's scheduler and admission on a simulated device, the server's
order of sentences, and clients that arrive at random and retry once, at the time that they are given.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from math import ceil, inf
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.engine_simulation import FRAME, POLYVOX, Simulation, Utterance, quantile

from polyvox.engine.cost_model import CostModel
from polyvox.engine.load import LoadModel
from polyvox.engine.stream_state import SchedulerLimits, StepPlan, StreamState
from polyvox.engine.stream_status import StreamStatus
from polyvox.engine.stream_table import StreamTable
from polyvox.errors import Overloaded

FRAMES_PER_BYTE = 0.9
SENTENCE_BYTES = (30, 110)
LENGTH_NOISE = 0.2  # standard deviation of the speech's length, relative to its text
PROMPT_ROWS = 30
SENTENCE_PAUSE = 0.25  # seconds
PREFETCH_FRACTION = 0.6  # of a sentence, after which the server submits the next one
SENTENCES: dict[str, tuple[int, ...]] = {
    "1": (1,),
    "2": (2,),
    "8": (8,),
    "20": (20,),
    "mixed": (1, 1, 1, 2, 2, 2, 8, 8, 20),
}


@dataclass(slots=True)
class Device:
    """A device whose step with all streams takes most of a frame's time; neighbours slow it down now and then."""

    cost: CostModel
    random: random.Random
    neighbour: float = 1.0  # how much slower steps are while a neighbour runs
    _until: float = 0.0
    _slow: bool = False
    _clock: float = 0.0

    def seconds(self, plan: StepPlan[StreamState]) -> float:
        if self._clock >= self._until:  # a neighbour runs for 2 s of every 10 s
            self._slow = not self._slow
            self._until = self._clock + self.random.expovariate(1 / (2.0 if self._slow else 8.0))
        seconds = self.cost.seconds(*plan.sizes()) * self.random.uniform(0.8, 1.2)
        seconds *= self.neighbour if self._slow else 1.0
        seconds *= 3.0 if self.random.random() < 0.01 else 1.0
        self._clock += seconds
        return seconds


@dataclass(frozen=True, slots=True)
class Sentence:
    num_bytes: int
    frames: int


@dataclass(slots=True, eq=False)
class Client:
    """A client with an utterance, and what became of it."""

    id: int
    arrived_at: float
    sentences: tuple[Sentence, ...]
    owner: str = ""
    tries: int = 0
    accepted_at: float = inf  # of the try that was accepted
    first_audio_at: float = inf
    retry_after: float = 0.0
    index: int = 0  # sentence that is being played
    gaps: int = 0  # underruns within and between sentences
    deadline: float = inf
    accounted: float = 0.0  # seconds of the sentence that were sent
    streams: list[StreamState] = field(default_factory=list)

    @property
    def frames(self) -> int:
        return sum(sentence.frames for sentence in self.sentences)


def cpu_cost() -> CostModel:
    return CostModel(step=0.010, stream=0.005, prefill_row=1e-5, codec=0.004, codec_frame=0.003)


def limits_of(num_slots: int) -> SchedulerLimits:
    return SchedulerLimits(
        frame_seconds=FRAME,
        num_slots=num_slots,
        num_pages=num_slots * 64,
        page_size=16,
        ring_frames=32,
        max_queue=512,
        max_queue_seconds=10.0,
        max_prefill_rows=512,
        max_batch=num_slots,
    )


def gpu_cost() -> CostModel:
    """A device with a capacity of about a hundred streams."""
    return CostModel(step=0.006, stream=0.00035, prefill_row=1e-6, codec=0.004, codec_frame=0.0002)


DEVICES = {"cpu": (limits_of(8), cpu_cost()), "gpu": (limits_of(256), gpu_cost())}


def clients(load: float, capacity: float, seconds: float, sentences: Sequence[int], seed: int) -> list[Client]:
    """Poisson arrivals whose audio per second is `load` times the capacity."""
    draw = random.Random(seed)
    mean_bytes = sum(SENTENCE_BYTES) / 2 * sum(sentences) / len(sentences)
    rate = load * capacity / (mean_bytes * FRAMES_PER_BYTE * FRAME)
    now = 0.0
    found: list[Client] = []
    while (now := now + draw.expovariate(rate)) < seconds:
        spoken = []
        for _ in range(draw.choice(sentences)):
            num_bytes = draw.randint(*SENTENCE_BYTES)
            noise = min(max(draw.gauss(1.0, LENGTH_NOISE), 0.5), 1.8)
            spoken.append(Sentence(num_bytes, max(8, int(num_bytes * FRAMES_PER_BYTE * noise))))
        found.append(Client(len(found) + 1, now, tuple(spoken)))
    return found


class OverloadSimulation(Simulation):
    """The simulation of one engine with the server's part: an utterance is a sequence of streams."""

    def __init__(
        self, limits: SchedulerLimits, cost: CostModel, device: Device, arriving: Sequence[Client], retries: bool
    ) -> None:
        super().__init__(POLYVOX, limits, cost, device, ())
        self.clients, self.retries = arriving, retries
        self.playing: dict[Client, None] = {}
        self._resubmitting: set[Client] = set()  # those whose next sentence was rejected
        self._order = count()
        self._events: list[tuple[float, int, Client]] = [(one.arrived_at, next(self._order), one) for one in arriving]
        self._events.sort()

    def run(self) -> None:
        while self._events or len(self.streams) or self.playing:
            self.step()

    def step(self) -> StepPlan[StreamState]:
        plan = super().step()
        for client in list(self.playing):
            self._play(client)
        return plan

    def next_moments(self) -> list[float]:
        return [*super().next_moments(), *(moment + 1e-6 for moment, _, _ in self._events[:1])]

    def _arrive(self) -> None:
        while self._events and self._events[0][0] <= self.now:
            moment, _, client = heappop(self._events)
            if client in self.playing:
                self._submit(client, moment)
                continue
            client.tries += 1
            try:
                self._enqueue(client, moment)
            except Overloaded as error:
                if client.tries == 1:
                    client.retry_after = float(ceil(error.retry_after))
                    if self.retries:
                        self._schedule(moment + client.retry_after + 0.01, client)
                continue
            client.accepted_at = moment
            self.playing[client] = None

    def _schedule(self, moment: float, client: Client) -> None:
        heappush(self._events, (moment, next(self._order), client))

    def _submit(self, client: Client, moment: float) -> None:
        """Submits the next sentence of an utterance; the server retries it."""
        try:
            self._enqueue(client, moment)
            self._resubmitting.discard(client)
        except Overloaded:
            self._resubmitting.add(client)
            self._schedule(self.now + 0.2, client)

    def _enqueue(self, client: Client, moment: float) -> None:
        index = len(client.streams)
        sentence = client.sentences[index]
        self._num_streams += 1
        stream = StreamState(
            self._num_streams,
            moment,
            PROMPT_ROWS,
            125 + 4 * sentence.num_bytes,
            continues=index > 0,
            utterance_id=client.id,
            text_bytes=sentence.num_bytes,
            following_bytes=sum(one.num_bytes for one in client.sentences[index + 1 :]),
            owner=client.owner,
            fingerprint=client.id,
            first_chunk=0,
        )
        self.admission.enqueue(stream, self.now)
        self.accepted[stream] = Utterance(moment, PROMPT_ROWS, sentence.frames)
        client.streams.append(stream)

    def _play(self, client: Client) -> None:
        """What the server sends to the client, in the order of the sentences, and its player."""
        while client.index < len(client.streams):
            stream = client.streams[client.index]
            delivered = stream.delivered_seconds
            if delivered > client.accounted:
                if client.first_audio_at == inf:
                    client.first_audio_at = client.deadline = self.now
                client.gaps += self.now > client.deadline
                client.deadline = max(client.deadline, self.now) + delivered - client.accounted
                client.accounted = delivered
            done = stream.status is StreamStatus.FINISHED
            expected = client.sentences[client.index].num_bytes * FRAMES_PER_BYTE * FRAME
            is_last = client.index + 1 == len(client.streams) and client not in self._resubmitting
            if (
                is_last
                and len(client.streams) < len(client.sentences)
                and (done or delivered >= PREFETCH_FRACTION * expected)
            ):
                self._submit(client, self.now)
            if not done:
                return
            client.index, client.accounted = client.index + 1, 0.0
            client.deadline += SENTENCE_PAUSE
        if client.index == len(client.sentences):
            del self.playing[client]


@dataclass(frozen=True, slots=True)
class OverloadOutcome:
    """Results of one run."""

    clients: int
    served: int
    expired: int
    first_audio: tuple[float, float, float, float]  # p50, p95, p99, max, of served clients, from the accepted try
    in_time: float  # share of served clients with their first audio within max_queue_seconds + 1 s
    retried: int
    retries_served: float  # share
    retry_after: tuple[float, float]  # p50, max
    broken: float  # share of served utterances with a gap
    audio: float  # seconds per second while clients arrived, as a share of the capacity in streams


def measure_overload(
    limits: SchedulerLimits,
    cost: CostModel,
    device: Device,
    arriving: Sequence[Client],
    capacity: float,
    retries: bool = True,
) -> OverloadOutcome:
    simulation = OverloadSimulation(limits, cost, device, arriving, retries)
    simulation.run()
    served = [one for one in arriving if one.first_audio_at < inf]
    first = [one.first_audio_at - one.accepted_at for one in served]
    retried = [one for one in arriving if one.tries > 1]
    refused = [one.retry_after for one in arriving if one.retry_after]
    end = arriving[-1].arrived_at
    frames = sum(frames for when, frames in simulation.frames if end / 4 <= when <= end)
    return OverloadOutcome(
        clients=len(arriving),
        served=len(served),
        expired=simulation.num_expired,
        first_audio=(quantile(first, 0.5), quantile(first, 0.95), quantile(first, 0.99), max(first, default=0.0)),
        in_time=sum(one <= limits.max_queue_seconds + 1 for one in first) / max(len(first), 1),
        retried=len(retried),
        retries_served=sum(one.first_audio_at < inf for one in retried) / max(len(retried), 1),
        retry_after=(quantile(refused, 0.5), max(refused, default=0.0)),
        broken=sum(one.gaps > 0 for one in served) / max(len(served), 1),
        audio=frames * FRAME / (0.75 * end) / capacity,
    )


def capacity_of(limits: SchedulerLimits, cost: CostModel) -> int:
    """Streams in real time, as the engine computes them."""
    return LoadModel(limits, cost, StreamTable[StreamState](limits.num_slots)).capacity()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", default="0.5,1,1.5,2,4", help="shares of capacity, comma-separated")
    parser.add_argument("--sentences", default=",".join(SENTENCES))
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"))
    parser.add_argument("--neighbour", type=float, default=1.0, help="slowdown by a neighbour on the CPU")
    parser.add_argument("--seconds", type=float, default=120.0, help="of arrivals")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-retries", action="store_true", help="clients leave when they are rejected")
    options = parser.parse_args()
    sys.stdout.write("| sentences | load | clients | served | TTFA p50, p95, p99, max, s | in time ")
    sys.stdout.write(
        "| retries served | Retry-After p50, max, s | with a gap | audio / capacity |\n" + "|---" * 10 + "|\n"
    )
    for name in options.sentences.split(","):
        for load in map(float, options.loads.split(",")):
            draw = random.Random(options.seed)
            limits, cost = DEVICES[options.device]
            device, cost = Device(cost, draw, options.neighbour), replace(cost)
            capacity = capacity_of(limits, cost)
            arriving = clients(load, capacity, options.seconds, SENTENCES[name], options.seed)
            one = measure_overload(limits, cost, device, arriving, capacity, not options.no_retries)
            first = ", ".join(f"{value:.1f}" for value in one.first_audio)
            sys.stdout.write(
                f"| {name} | {load:g} | {one.clients} | {one.served} | {first} | {one.in_time:.1%} "
                f"| {one.retries_served:.0%} of {one.retried} | {one.retry_after[0]:.0f}, {one.retry_after[1]:.0f} "
                f"| {one.broken:.1%} | {one.audio:.3f} |\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
