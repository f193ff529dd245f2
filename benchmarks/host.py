"""What the host does for a crowd on a GPU that takes no part: the engine as it is, on calls that only take their time.

    python benchmarks/host.py --streams 1024 --seconds 20 [--profile FILE]

The model's three calls compute nothing; the step that they make is over when a card with the given times would be done
with it. All the rest is real: requests prepared, seats, plans, chunks, the way to another process and its readers.
What counts is the time that the engine's process takes for each frame of each stream.
"""

import argparse
import cProfile
import os
import pstats
import sys
import time
from bisect import bisect_left
from functools import partial
from pathlib import Path
from typing import Any

import torch

from polyvox.bench.inprocess import DoorClient
from polyvox.bench.load import Load, run_apart
from polyvox.bench.prompts import prompts
from polyvox.bench.report import serving_report
from polyvox.bench.results import Run
from polyvox.engine import step
from polyvox.engine.config import EngineConfig
from polyvox.engine.interface import Engine
from polyvox.engine.local import LocalEngine
from polyvox.hosting.remote import RemoteEngine
from polyvox.hosting.supervisor import EngineProcess

# Milliseconds by batch, 1.7B on one H200: frame step; codec, a frame of each.
FRAME_STEP = ((1, 2.73), (64, 5.55), (128, 6.96), (256, 8.06), (512, 12.1), (1024, 21.0), (2048, 40.0))
CODEC_FRAME = ((1, 0.19), (64, 1.39), (128, 2.59), (256, 5.02), (512, 9.86), (1024, 20.0), (2048, 40.0))
PREFILL_ROW = 0.007
PREFILL = 1.0


def at(points: tuple[tuple[int, float], ...], size: int) -> float:
    """Seconds of so large a call: straight lines between the measured sizes."""
    sizes = [batch for batch, _ in points]
    right = min(max(bisect_left(sizes, size), 1), len(points) - 1)
    (a, low), (b, high) = points[right - 1], points[right]
    return (low + (high - low) * (size - a) / (b - a)) / 1e3


class Card:
    """One queue: a call is over when all before it are."""

    def __init__(self) -> None:
        self.free = 0.0

    def takes(self, seconds: float) -> None:
        self.free = max(self.free, time.perf_counter()) + seconds

    def wait(self) -> None:
        time.sleep(max(0.0, self.free - time.perf_counter()))


class Later(step.Pending):
    """What a call gives, once the card is done with all that it was handed so far."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__(value)
        self._at = CARD.free

    def get(self) -> Any:
        if (rest := self._at - time.perf_counter()) > 0:
            time.sleep(rest)
        return super().get()


CARD = Card()


def on_a_card(speech: Any, slots: int) -> Any:
    """The model whose calls take their time and compute nothing."""
    new_slots = speech.new_slots

    def timed(*shape: int) -> Any:
        rows = new_slots(*shape)
        flags = torch.zeros(slots + 1, dtype=torch.int64)
        sound = torch.zeros(max(slots, 16) * speech.samples_per_frame)

        def prefill(values: torch.Tensor, *_: object) -> None:
            CARD.takes((PREFILL + PREFILL_ROW * len(values)) / 1e3)

        def frame(places: torch.Tensor, *_: object) -> torch.Tensor:
            CARD.takes(at(FRAME_STEP, len(places)))
            return flags[: len(places)]

        def decode(places: torch.Tensor, _: object, frames: int) -> torch.Tensor:
            CARD.takes(frames * at(CODEC_FRAME, len(places)))
            return sound[: len(places) * frames * speech.samples_per_frame].view(len(places), -1)

        rows.prefill, rows.frame, rows.decode = prefill, frame, decode
        return rows

    speech.new_slots = timed
    step.Pending = Later  # type: ignore[misc]
    step.Stepper.wait = lambda self: CARD.wait()  # type: ignore[method-assign] # noqa: ARG005
    return speech


class Watched(LocalEngine):
    """An engine that tells what its threads took."""

    profile: Path | None = None

    def _loop(self) -> None:
        torch.set_num_threads(1)
        if self.profile is None:
            return super()._loop()
        profiler = cProfile.Profile()
        profiler.runcall(super()._loop)
        profiler.dump_stats(self.profile)
        return None

    def stats(self) -> dict[str, float]:
        return super().stats() | {"cpu": time.process_time(), "engine_cpu": self._engine_cpu()}

    def _engine_cpu(self) -> float:
        """Seconds of processor time of the engine's thread."""
        fields = Path(f"/proc/self/task/{self._thread.native_id}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def build(streams: int, profile: Path | None) -> Engine:
    from polyvox.commands.terminal import load

    torch.set_num_threads(1)
    with load(None, "cpu", "float32", EngineConfig(slots=1)) as tts:
        speech = on_a_card(tts.speech, streams)
    Watched.profile = profile
    config = EngineConfig(slots=streams, context=256, queue=4096, queue_seconds=120, ahead=32, graphs=True)
    return Watched(speech, config)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1024)
    parser.add_argument("--frames", type=int, default=125)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--ramp", type=float, default=10)
    parser.add_argument("--processes", type=int, default=4, help="that read")
    parser.add_argument("--profile", type=Path)
    given = parser.parse_args()
    load_ = Load("closed", given.streams, given.seconds, given.ramp, ramp=given.ramp)
    make = partial(build, given.streams, given.profile)
    with EngineProcess(make) as process:
        engine = RemoteEngine(process.door)
        before, began = engine.stats(), time.monotonic()
        connect = DoorClient(process.door, None, given.frames)
        traces, lag = run_apart(connect, load_, prompts(), given.processes)
        after, took = engine.stats(), time.monotonic() - began
        engine.close()
    say(serving_report(Run(load_, lag, traces, 0.2)))
    done = {name: after[name] - before[name] for name in ("steps", "frames", "cpu", "engine_cpu", "underruns")}
    steps, frames = done["steps"], done["frames"]
    late = done["underruns"]
    say(f"{steps:.0f} steps of {took / steps * 1e3:.1f} ms, {frames / steps:.0f} frames; {late:.0f} underruns")
    for name, seconds in (("engine's thread", done["engine_cpu"]), ("others", done["cpu"] - done["engine_cpu"])):
        say(f"{name}: {seconds / took:.1%} of a core, {seconds / frames * 1e6:.1f} us a frame")
    if given.profile:
        pstats.Stats(str(given.profile)).sort_stats("tottime").print_stats(35)


if __name__ == "__main__":
    main()
