"""An engine in its own process and a closed loop of listeners around it, several levels of it, one table at the end.

    python benchmarks/closed_loop.py --model 1.7B --streams 512,1024,1536,2048        # random weights on a GPU
    python benchmarks/closed_loop.py --model simulated --streams 256 --seconds 10     # the host alone, on any machine

simulated: the model's three calls compute nothing, and a step is over when a card with these times would be done with
it. All the rest is real: requests prepared, seats, plans, chunks, the way to other processes and their readers. So it
shows what the host does for each frame of each stream; give it cores of its own.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from polyvox.bench.engine_client import STREAMS_PER_READER, RemoteEngineClient
from polyvox.bench.load import Load
from polyvox.bench.load_generator import run_in_processes
from polyvox.bench.prompts import prompts
from polyvox.bench.summary import summarise
from polyvox.engine import model_runner
from polyvox.engine.config import MIN_CONTEXT, EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.interface import InProcessEngine
from polyvox.ipc.client import RemoteEngine
from polyvox.ipc.supervisor import EngineProcess

# Milliseconds by batch, 1.7B on one H200: frame step; codec, a frame of each.
FRAME_STEP = ((1, 2.73), (64, 5.55), (128, 6.96), (256, 8.06), (512, 12.1), (1024, 21.0), (2048, 40.0))
CODEC_FRAME = ((1, 0.19), (64, 1.39), (128, 2.59), (256, 5.02), (512, 9.86), (1024, 20.0), (2048, 40.0))
PREFILL_ROW = 0.007
PREFILL = 1.0
WATCH_SECONDS = 20


def at(points: tuple[tuple[int, float], ...], size: int) -> float:
    """Seconds of so large a call: straight lines between the measured sizes."""
    sizes = [batch for batch, _ in points]
    right = min(max(bisect_left(sizes, size), 1), len(points) - 1)
    (a, low), (b, high) = points[right - 1], points[right]
    return (low + (high - low) * (size - a) / (b - a)) / 1e3


class DeviceLimits:
    """One queue: a call is over when all before it are."""

    def __init__(self) -> None:
        self.free = 0.0

    def takes(self, seconds: float) -> None:
        self.free = max(self.free, time.perf_counter()) + seconds

    def wait(self) -> None:
        time.sleep(max(0.0, self.free - time.perf_counter()))


class Later(model_runner.Pending):
    """What a call gives, once the card is done with all that it was handed so far."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__(value)
        self._at = CARD.free

    def get(self) -> Any:
        if (rest := self._at - time.perf_counter()) > 0:
            time.sleep(rest)
        return super().get()


CARD = DeviceLimits()


def on_a_card(speech: Any, slots: int) -> Any:
    """The model whose calls take their time and compute nothing."""
    new_slots = speech.new_slots

    def timed(*shape: int) -> Any:
        rows = new_slots(*shape)
        flags = torch.zeros(slots + 1, dtype=torch.int64)
        sound = 0.1 * torch.randn(max(slots, 16) * speech.samples_per_frame)

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
    model_runner.Pending = Later  # type: ignore[misc]
    model_runner.ModelRunner.wait = lambda self: CARD.wait()  # type: ignore[method-assign] # noqa: ARG005
    return speech


class Watched(LocalEngine):
    """An engine that tells what its threads took, and what its process has."""

    def stats(self) -> dict[str, float]:
        fields = Path(f"/proc/self/task/{self._thread.native_id}/stat").read_text().rsplit(")", 1)[1].split()
        thread = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        memory = pages * os.sysconf("SC_PAGE_SIZE")
        return super().stats() | {"cpu": time.process_time(), "thread_cpu": thread, "memory": memory}


def build(model: str, slots: int, tokens: int) -> InProcessEngine:
    """In the engine's process."""
    config = EngineConfig(max_streams=slots, context=MIN_CONTEXT, max_queue=2 * slots, max_queue_seconds=120)
    if model == "simulated":
        from polyvox.cli.terminal import load

        torch.set_num_threads(1)
        with load(None, "cpu", "float32", EngineConfig(max_streams=1)) as tts:
            return Watched(
                on_a_card(tts.speech, slots),
                replace(config, min_streams_to_pipeline=model_runner.MIN_STREAMS_TO_PIPELINE, cuda_graphs=True),
            )
    from polyvox.bench.random_weights import SyntheticTokenizer, random_weights
    from polyvox.models.info import ModelIdentity
    from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel

    weights = random_weights(model, "auto", "auto")
    return Watched(
        Qwen3TTSModel(weights, SyntheticTokenizer(weights.config, tokens), ModelIdentity(model, model)), config
    )


def memory() -> float | None:
    """GB in use on the card, by all; None where there is none."""
    try:
        asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return float(subprocess.run(asked, capture_output=True, check=True, text=True).stdout.split()[0]) * 1.048576e-3
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return None


class Watch(threading.Thread):
    """Notes the card's memory again and again, until it is told to stop."""

    def __init__(self, after: float) -> None:
        super().__init__(daemon=True)
        self.found: list[float] = []
        self._after, self._over = after, threading.Event()

    def run(self) -> None:
        wait = self._after
        while not self._over.wait(wait) and (used := memory()) is not None:
            self.found.append(used)
            wait = WATCH_SECONDS

    def stop(self) -> str:
        self._over.set()
        return f"{min(self.found):.2f} to {max(self.found):.2f}" if self.found else "-"


def level(engine: RemoteEngine, connect: RemoteEngineClient, load: Load, processes: int) -> dict[str, str]:
    """One row of the table."""
    before, began = engine.stats(), time.monotonic()
    watch = Watch(load.warmup)
    watch.start()
    traces, lag = run_in_processes(connect, load, prompts(), processes)
    used = watch.stop()
    after, took = engine.stats(), time.monotonic() - began
    done = {name: after[name] - before[name] for name in ("steps", "frames", "prompt_rows", "cpu", "thread_cpu")}
    ended = sum(after[name] - before[name] for name in after if name.startswith("finished_"))
    found = summarise(traces)
    first, late = found.ttfp, lag.loop
    return {
        "streams": f"{load.level:g}",
        "requests, failed": f"{found.requests}, {found.failed}",
        "underruns (streams)": f"{found.underruns.count} ({found.underruns.streams})",
        "first packet p50 / p95, ms": f"{1e3 * first.p50:.0f} / {1e3 * first.p95:.0f}" if first else "-",
        "audio, s a second": f"{found.received or 0:.0f}",
        "prefills a second": f"{ended / took:.1f}",
        "mean context": f"{done['prompt_rows'] / max(ended, 1) + done['frames'] / max(ended, 1) / 2:.0f}",
        "step, ms": f"{1e3 * took / done['steps']:.1f}",
        "frames a step": f"{done['frames'] / done['steps']:.0f}",
        "host, us a frame: its thread, others": (
            f"{1e6 * done['thread_cpu'] / done['frames']:.1f}, "
            f"{1e6 * (done['cpu'] - done['thread_cpu']) / done['frames']:.1f}"
        ),
        "client late p99, ms": f"{1e3 * late.p99:.1f}" if late else "-",
        "GB on the card": used,
        "the engine's GB on the host, before and after": f"{before['memory'] / 1e9:.2f}, {after['memory'] / 1e9:.2f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="1.7B", choices=["0.6B", "1.7B", "simulated"])
    parser.add_argument("--streams", default="512,1024")
    parser.add_argument("--slots", type=int, help="by default the most streams of a level")
    parser.add_argument("--frames", type=int, default=125)
    parser.add_argument("--tokens", type=int, default=30, help="of each text; simulated: the texts' own")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--ramp", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, help="that read; by default one for 256 streams")
    given = parser.parse_args()
    levels = [int(each) for each in given.streams.split(",")]
    rows = []
    with EngineProcess(partial(build, given.model, given.slots or max(levels), given.tokens)) as process:
        engine, connect = RemoteEngine(process.door), RemoteEngineClient(process.door, None, given.frames)
        sys.stdout.write(f"ready after {process.door.start_seconds:.0f} s, {memory() or 0:.2f} GB\n")
        for streams in levels:
            load = Load("closed", streams, given.seconds, given.ramp, ramp=given.ramp, seed=given.seed)
            rows.append(
                level(
                    engine,
                    connect,
                    load,
                    given.processes or load.num_processes(os.cpu_count() or 1, STREAMS_PER_READER),
                )
            )
            sys.stdout.write(f"{rows[-1]}\n")
            sys.stdout.flush()
        engine.close()
    lines = [rows[0].keys(), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    sys.stdout.write("".join("| " + " | ".join(line) + " |\n" for line in lines))


if __name__ == "__main__":
    main()
