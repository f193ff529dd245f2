# SPDX-License-Identifier: Apache-2.0
"""KV pages that streams reserve and use, and the streams that fit into a pool of pages, on a simulated large GPU.

python benchmarks/kv_pages.py [--seconds 6] [--seed 1] [--pages 3000]

Three ways to reserve: the longest possible speech of each stream; the initial figure by the length of the text; and
what the engine has learned after 10,000 sentences of the same kind. Scheduler and admission control are those of the
engine; see engine_simulation.py for the simulated GPU. The last rows are adversarial: every stream runs to its limit.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.engine_simulation import LIMITS, POLYVOX, Gpu, Simulation, Utterance, calibrated

from polyvox.engine import page_reservation
from polyvox.engine.page_reservation import PageReservation
from polyvox.engine.stream_state import StepPlan, StreamState

PROMPT_ROWS = (10, 60)
TEXT_BYTES, MEDIAN_BYTES, SPREAD = (2, 300), 60, 0.7  # of a sentence: lognormal
FRAMES_PER_BYTE, LENGTH_SPREAD = 0.9, 0.15  # of speech: lognormal
PAUSE_FRAMES = 6  # of silence at the ends
LEARNED_SENTENCES = 10_000  # before the measurement
OVERLONG = 0.0005  # share of streams that do not end by themselves
MAX_FRAMES, MAX_FRAMES_PER_BYTE = 125, 4  # the limit of runaway generation


def max_frames(text_bytes: int) -> int:
    return MAX_FRAMES + MAX_FRAMES_PER_BYTE * text_bytes


def sentence(draw: random.Random, arrived_at: float, overlong: float) -> Utterance:
    text_bytes = int(min(max(draw.lognormvariate(np.log(MEDIAN_BYTES), SPREAD), TEXT_BYTES[0]), TEXT_BYTES[1]))
    frames = int(PAUSE_FRAMES + FRAMES_PER_BYTE * text_bytes * draw.lognormvariate(0.0, LENGTH_SPREAD))
    if draw.random() < overlong:
        frames = 10**6
    return Utterance(arrived_at, draw.randint(*PROMPT_ROWS), max(frames, 2), text_bytes=text_bytes)


class LongestReservation(PageReservation[StreamState]):
    """Reserves the longest possible speech."""

    def frames(self, stream: StreamState, text_is_open: bool) -> int:  # noqa: ARG002
        return stream.max_frames


class PageSimulation(Simulation):
    """Counts pages and streams in every step."""

    def __init__(self, pages: int, utterances: Sequence[Utterance], seed: int, by_limit: bool) -> None:
        limits = replace(LIMITS, num_pages=pages, max_queue=4096, max_queue_seconds=20.0)
        super().__init__(POLYVOX, limits, calibrated(), Gpu(random.Random(seed)), utterances)
        if by_limit:
            self.admission.pages.reservation = LongestReservation(limits.page_size)
        self.samples: list[tuple[float, int, int, int]] = []  # time, streams, pages reserved, pages used

    def max_frames(self, one: Utterance) -> int:
        return max_frames(one.text_bytes)

    def step(self) -> StepPlan[StreamState]:
        plan = super().step()
        arrays = self.streams.used()
        active = arrays.active
        used = -(-(arrays.prompt_rows + arrays.started)[active] // self.load.limits.page_size)
        reserved = self.load.limits.num_pages - len(self.admission.ledger.free_pages)
        self.samples.append((self.now, int(active.sum()), reserved, int(used.sum())))
        assert (arrays.started[active] <= arrays.paged_frames[active]).all()
        return plan


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    streams: float
    reserved: float  # pages of a stream
    used: float
    finished: int
    out_of_pages: int

    def __str__(self) -> str:
        ratio = self.reserved / self.used
        return (
            f"| {self.name} | {self.streams:.0f} | {self.reserved:.1f} | {self.used:.1f} | {ratio:.2f} | "
            f"{self.finished} | {self.out_of_pages} |"
        )


def measure(
    name: str,
    pages: int,
    seconds: float,
    seed: int,
    by_limit: bool = False,
    learned: bool = False,
    overlong: float = OVERLONG,
) -> Row:
    """A pool that is always full: requests arrive faster than they are served."""
    draw, rate = random.Random(seed), 600.0
    utterances = [sentence(draw, i / rate, overlong) for i in range(int(seconds * rate))]
    simulation = PageSimulation(pages, utterances, seed, by_limit)
    if learned:
        teach(simulation.admission.pages.reservation, seed)
    simulation.run()
    counted = [sample for sample in simulation.samples if 0.3 * seconds < sample[0] < seconds]
    streams = float(np.mean([streams for _, streams, _, _ in counted]))
    reserved = float(np.mean([reserved / streams for _, streams, reserved, _ in counted if streams]))
    used = float(np.mean([used / streams for _, streams, _, used in counted if streams]))
    return Row(name, streams, reserved, used, len(simulation.done), len(simulation.out_of_pages))


def teach(reservation: PageReservation[StreamState], seed: int) -> None:
    """What the engine has learned after LEARNED_SENTENCES of the same kind."""
    draw, ids = random.Random(seed + 1), count(10**6)
    for _ in range(LEARNED_SENTENCES):
        one = sentence(draw, 0.0, OVERLONG)
        limit = max_frames(one.text_bytes)
        stream = StreamState(next(ids), 0.0, one.prompt_rows, limit, text_bytes=one.text_bytes)
        reservation.on_admitted(stream, 0)
        stream.generated = min(one.frames, limit)
        reservation.learn(stream)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="of simulated traffic")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pages", type=int, default=3000, help="of the KV cache")
    given = parser.parse_args()
    same = given.pages, given.seconds, given.seed
    rows = [
        measure("longest possible speech", *same, by_limit=True),
        measure("initial figure", *same),
        measure("learned", *same, learned=True),
        measure("learned, every stream runs to its limit", *same, learned=True, overlong=1.0),
        measure("initial figure, every stream runs to its limit", *same, overlong=1.0),
    ]
    header = "reservation", "streams at once", "pages reserved", "pages used", "ratio", "finished", "out of pages"
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header), *map(str, rows)]
    sys.stdout.write("\n".join(lines) + "\n")
    learned: PageReservation[StreamState] = PageReservation(16)
    teach(learned, given.seed)
    sys.stdout.write(f"learned quantile: {learned._lengths['', False, False].value:.3f} of the initial figure\n")
    sys.stdout.write(f"streams longer than reserved that 2,048 may have: {page_reservation.max_longer(2048)}\n")


if __name__ == "__main__":
    main()
