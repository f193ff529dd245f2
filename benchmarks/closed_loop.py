# SPDX-License-Identifier: Apache-2.0
"""A closed loop of streams on an engine in its own process, at several levels; prints one table.

    python benchmarks/closed_loop.py --model 1.7B --streams 512,1024,1536,2048        # random weights on a GPU
    python benchmarks/closed_loop.py --model 1.7B --streams 256 --max-frames-per-step 1     # without repeated calls
    python benchmarks/closed_loop.py --model simulated --streams 256 --seconds 10     # the host alone, on any machine

simulated: the model's calls compute nothing, and a step completes when a GPU with the times below would complete it.
Everything else is real: request preparation, slot allocation, scheduling, chunks, IPC and the clients' readers. So it
measures the host work per frame; run it on otherwise idle cores.
"""

import argparse
import asyncio
import os
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from process_times import gpu_memory, thread_seconds  # type: ignore[import-not-found]

from polyvox.bench.engine_client import STREAMS_PER_READER, RemoteEngineClient, remote_stats
from polyvox.bench.load import Load
from polyvox.bench.load_generator import run_in_processes
from polyvox.bench.prompts import prompts
from polyvox.bench.summary import summarise
from polyvox.engine import generator_runner, graphs, model_runner, pending, vocoder_runner
from polyvox.engine.config import MIN_CONTEXT, EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.interface import InProcessEngine
from polyvox.engine.scheduler import Scheduler
from polyvox.engine.stream import LocalStream
from polyvox.engine.stream_state import MAX_FRAMES_PER_STEP, StepPlan
from polyvox.ipc.supervisor import EngineProcess

# Milliseconds, 1.7B on one H200: of a frame step by its streams; of a codec call by its frames, all streams together.
FRAME_STEP = ((1, 2.38), (8, 3.28), (16, 3.37), (64, 4.20), (512, 11.54), (1024, 19.91))
CODEC_CALL = ((1, 0.58), (4, 0.61), (32, 1.03), (64, 1.45), (256, 4.12), (2048, 27.1), (4096, 54.1))
PREFILL_ROW = 0.0038
PREFILL = 1.03
MEMORY_INTERVAL = 20  # seconds


def interpolate(points: tuple[tuple[int, float], ...], size: int) -> float:
    """Seconds of a call of this size, linear between the measured sizes and beyond them."""
    sizes = [batch for batch, _ in points]
    right = min(max(bisect_left(sizes, size), 1), len(points) - 1)
    (a, low), (b, high) = points[right - 1], points[right]
    return (low + (high - low) * (size - a) / (b - a)) / 1e3


class SimulatedGPU:
    """One queue: a call completes after all calls before it."""

    def __init__(self) -> None:
        self.idle_at = 0.0

    def launch(self, seconds: float) -> None:
        self.idle_at = max(self.idle_at, time.perf_counter()) + seconds

    def wait(self) -> None:
        time.sleep(max(0.0, self.idle_at - time.perf_counter()))


class SimulatedPending(pending.Pending):
    """The result of a call, available once the GPU has completed all calls launched so far."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__(value)
        self._ready_at = GPU.idle_at

    @property
    def ready(self) -> bool:
        return time.perf_counter() >= self._ready_at

    def get(self) -> Any:
        if (rest := self._ready_at - time.perf_counter()) > 0:
            time.sleep(rest)
        return super().get()


GPU = SimulatedGPU()


def simulate(speech: Any, max_streams: int) -> Any:
    """Replaces the calls of a model by ones that take their time on the simulated GPU and compute nothing."""
    generator, vocoder = speech.generator, speech.vocoder
    new_generator_state, new_vocoder_state = generator.new_state, vocoder.new_state
    flags = torch.zeros(max_streams + 1, dtype=torch.int64)
    audio = 0.1 * torch.randn(max(max_streams, 16) * vocoder.samples_per_frame)

    def simulated_generator_state(*shape: int) -> Any:
        state = new_generator_state(*shape)

        def prefill(ids: torch.Tensor, *_: object) -> None:
            GPU.launch((PREFILL + PREFILL_ROW * ids.shape[1]) / 1e3)

        def frame(slots: torch.Tensor, *_: object) -> torch.Tensor:
            GPU.launch(interpolate(FRAME_STEP, len(slots)))
            return flags[: len(slots)]

        state.prefill, state.frame = prefill, frame
        return state

    def simulated_vocoder_state(num_slots: int) -> Any:
        state = new_vocoder_state(num_slots)

        def decode(slots: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
            frames = codes.shape[1]
            GPU.launch(interpolate(CODEC_CALL, frames * len(slots)))
            return audio[: len(slots) * frames * vocoder.samples_per_frame].view(len(slots), -1)

        state.decode = decode
        return state

    pcm = (3000 * torch.randn(audio.numel() + max(max_streams, 16))).to(torch.int16)

    def simulated_quantize(_: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """On a GPU it is the codec's last kernel, so the host does no arithmetic."""
        out.view(-1).copy_(pcm[: out.numel()])
        out[:, -1] = 0
        return out

    generator.new_state, vocoder.new_state = simulated_generator_state, simulated_vocoder_state
    graphs.quantize = simulated_quantize  # type: ignore[attr-defined, assignment]
    generator_runner.Pending = vocoder_runner.Pending = SimulatedPending  # type: ignore[attr-defined]
    model_runner.ModelRunner.wait = lambda self: GPU.wait()  # type: ignore[method-assign] # noqa: ARG005
    return speech


def pipeline_as_on_gpu(engine: LocalEngine) -> None:
    """Launches steps ahead from as many streams on as a GPU."""
    engine._runner.min_streams_to_pipeline = model_runner.MIN_STREAMS_TO_PIPELINE
    engine._runner.min_live_to_pipeline = model_runner.MIN_LIVE_TO_PIPELINE


# Methods of the engine's thread by the name of their part; their times do not overlap.
PARTS = (
    ("changes", ("_manager", "apply_changes")),
    ("timeouts", ("_manager", "expire_timeouts")),
    ("admission", ("_manager", "admit")),
    ("plan", ("scheduler", "plan")),
    ("launch", ("_pipeline", "_launch")),
    ("audio", ("_pipeline", "_deliver_audio")),
    ("flags", ("_manager", "on_frame_results")),
    ("release", ("_deliver",)),
)


# Calls of the device within these parts
CALLS = ("frame", "prefill", "decode", "assign", "clear", "write_text")


class InstrumentedEngine(LocalEngine):
    """Adds CPU times by thread, by part of the engine's thread and by device call, and the memory to the statistics."""

    def _start(self) -> None:
        self._parts = dict.fromkeys((name for name, _ in PARTS), 0.0)
        self._calls = dict.fromkeys(CALLS, 0.0)
        self._frame_calls = self._codec_calls = self._codec_streams = self._num_chunks = 0
        super()._start()
        for name, path in PARTS:
            owner = type(self if len(path) == 1 else getattr(self, path[0]))
            setattr(owner, path[-1], self._timed(self._parts, name, getattr(owner, path[-1])))
        for name in CALLS:
            owner = type(self._runner)
            setattr(owner, name, self._timed(self._calls, name, getattr(owner, name)))
        deliver = Scheduler.deliver

        def counted(scheduler: Scheduler[Any], slots: Any, *args: Any) -> None:
            self._num_chunks += len(slots)
            deliver(scheduler, slots, *args)

        Scheduler.deliver = counted  # type: ignore[method-assign, assignment]

    def _observe(self, plan: StepPlan[LocalStream], seconds: float, now: float) -> None:
        super()._observe(plan, seconds, now)
        self._frame_calls += plan.num_calls
        self._codec_calls += plan.sizes()[3]
        self._codec_streams += len(plan.codec) + len(plan.first_codec)

    def _timed(self, times: dict[str, float], part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*args, **options)
            finally:
                times[part] += time.thread_time() - began

        return timed

    def stats(self) -> dict[str, float]:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return (
            super().stats()
            | {f"cpu_{name}": seconds for name, seconds in thread_seconds().items()}
            | {f"part_{name}": seconds for name, seconds in self._parts.items()}
            | {f"call_{name}": seconds for name, seconds in self._calls.items()}
            | {"num_chunks": self._num_chunks, "codec_calls": self._codec_calls, "codec_streams": self._codec_streams}
            | {"memory": pages * os.sysconf("SC_PAGE_SIZE"), "frame_calls": self._frame_calls}
        )


def build(model: str, max_streams: int, tokens: int, max_frames_per_step: int, kv_dtype: str) -> InProcessEngine:
    """Runs in the engine's process."""
    engine = new_engine(model, max_streams, tokens, kv_dtype)
    with engine.lock:
        engine.load.limits = replace(engine.load.limits, max_frames_per_step=max_frames_per_step)
    return engine


def new_engine(model: str, max_streams: int, tokens: int, kv_dtype: str) -> InstrumentedEngine:
    config = EngineConfig(
        max_streams=max_streams, context=MIN_CONTEXT, max_queue=2 * max_streams, max_queue_seconds=120, pcm=True
    )
    if model == "simulated":
        from polyvox.cli.terminal import load

        torch.set_num_threads(1)
        with load(None, "cpu", "float32", EngineConfig(max_streams=1)) as tts:
            engine = InstrumentedEngine(simulate(tts.model, max_streams), replace(config, cuda_graphs=True))
        pipeline_as_on_gpu(engine)
        return engine
    from polyvox.models.registry import random_model
    from polyvox.tts import load_options

    speech = random_model(model, load_options("auto", "auto", kv_dtype=kv_dtype), tokens)
    return InstrumentedEngine(speech, config)


class MemoryMonitor(threading.Thread):
    """Samples the GPU memory until it is stopped."""

    def __init__(self, after: float) -> None:
        super().__init__(daemon=True)
        self.samples: list[float] = []
        self._after, self._stopped = after, threading.Event()

    def run(self) -> None:
        wait = self._after
        while not self._stopped.wait(wait) and (used := gpu_memory()) is not None:
            self.samples.append(used)
            wait = MEMORY_INTERVAL

    def stop(self) -> str:
        self._stopped.set()
        return f"{min(self.samples):.2f} to {max(self.samples):.2f}" if self.samples else "-"


def measure_level(new_client: RemoteEngineClient, load: Load, processes: int) -> dict[str, str]:
    """One row of the table."""
    before, began = asyncio.run(remote_stats(new_client.endpoint)), time.monotonic()
    monitor = MemoryMonitor(load.warmup)
    monitor.start()
    traces, lag = run_in_processes(new_client, load, prompts(), processes)
    memory_used = monitor.stop()
    after, elapsed = asyncio.run(remote_stats(new_client.endpoint)), time.monotonic() - began
    delta = {name: value - before.get(name, 0.0) for name, value in after.items()}
    finished = sum(after[name] - before[name] for name in after if name.startswith("finished_"))
    found = summarise(traces)
    ttfp, frames = found.ttfp, max(delta["frames"], 1)

    def per_frame(prefix: str) -> str:
        values = {name.removeprefix(prefix): value for name, value in delta.items() if name.startswith(prefix)}
        shown = sorted(values.items(), key=lambda item: -item[1])
        return ", ".join(f"{name} {1e6 * value / frames:.1f}" for name, value in shown if value)

    return {
        "streams": f"{load.level:g}",
        "requests, failed": f"{found.requests}, {found.failed}",
        "underruns (streams)": f"{found.underruns.count} ({found.underruns.streams})",
        "TTFP p50 / p95, ms": f"{1e3 * ttfp.p50:.0f} / {1e3 * ttfp.p95:.0f}" if ttfp else "-",
        "audio s/s": f"{found.received or 0:.0f}",
        "prefills/s": f"{finished / elapsed:.1f}",
        "mean context": f"{delta['prompt_rows'] / max(finished, 1) + delta['frames'] / max(finished, 1) / 2:.0f}",
        "step, ms": f"{1e3 * elapsed / delta['steps']:.1f}",
        "frames, frame calls per step": f"{delta['frames'] / delta['steps']:.0f}, "
        f"{delta['frame_calls'] / delta['steps']:.2f}",
        "codec calls, streams in them per step": f"{delta['codec_calls'] / delta['steps']:.1f}, "
        f"{delta['codec_streams'] / delta['steps']:.0f}",
        "frames per chunk": f"{delta['frames'] / max(delta['num_chunks'], 1):.1f}",
        "host us/frame": f"{sum(1e6 * value / frames for name, value in delta.items() if name.startswith('cpu_')):.1f}",
        "by thread": per_frame("cpu_"),
        "by part of the engine's thread": per_frame("part_"),
        "of which device calls": per_frame("call_"),
        "client lag p99, ms": f"{1e3 * lag.loop.p99:.1f}" if lag.loop else "-",
        "GPU memory, GB": memory_used,
        "engine host memory, GB, before and after": f"{before['memory'] / 1e9:.2f}, {after['memory'] / 1e9:.2f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="1.7B", choices=["0.6B", "1.7B", "simulated"])
    parser.add_argument("--streams", default="512,1024", help="concurrent streams of each level, comma-separated")
    parser.add_argument("--max-streams", "--slots", type=int, help="of the engine; by default the highest level")
    parser.add_argument("--max-frames-per-step", type=int, default=MAX_FRAMES_PER_STEP, help="of one stream")
    parser.add_argument("--frames", type=int, default=125, help="per utterance")
    parser.add_argument("--tokens", type=int, default=30, help="per text; not used by the simulated model")
    parser.add_argument("--seconds", type=float, default=60, help="of measured requests per level")
    parser.add_argument("--ramp", type=float, default=10, help="seconds of warm-up over which streams start")
    parser.add_argument(
        "--kv-dtype", default="auto", choices=["auto", "model", "int8", "fp8"], help="not of the simulated model"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, help="client processes; by default one per 256 streams")
    given = parser.parse_args()
    levels = [int(each) for each in given.streams.split(",")]
    rows = []
    max_streams = given.max_streams or max(levels)
    new = partial(build, given.model, max_streams, given.tokens, given.max_frames_per_step, given.kv_dtype)
    with EngineProcess(new) as process:
        new_client = RemoteEngineClient(process.endpoint, None, given.frames)
        sys.stdout.write(f"ready after {process.status.start_seconds:.0f} s, {gpu_memory() or 0:.2f} GB\n")
        for streams in levels:
            load = Load("closed", streams, given.seconds, given.ramp, ramp=given.ramp, seed=given.seed)
            processes = given.processes or load.num_processes(os.cpu_count() or 1, STREAMS_PER_READER)
            rows.append(measure_level(new_client, load, processes))
            sys.stdout.write(f"{rows[-1]}\n")
            sys.stdout.flush()
    lines = [rows[0].keys(), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    sys.stdout.write("".join("| " + " | ".join(line) + " |\n" for line in lines))


if __name__ == "__main__":
    main()
