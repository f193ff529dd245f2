# SPDX-License-Identifier: Apache-2.0
"""Load over HTTP on `polyvox serve` with its default settings, at several levels; prints one table.

    python benchmarks/http_load.py --model 1.7B --streams 256,512,1024,1536,2048 --seconds 60     # on a GPU
    python benchmarks/http_load.py --model 1.7B --listeners 2048 --seconds 480                    # in real time
    python benchmarks/http_load.py --model 1.7B --rates 1,64,128 --frames 56                      # open loop
    python benchmarks/http_load.py --model 1.7B --streams 1024 --text-rate 15                     # live text
    python benchmarks/http_load.py --model simulated --streams 64,256 --seconds 10                # the host alone

The server has random weights, or a model that computes nothing and takes the time of a GPU (see closed_loop.py). Its
settings are the defaults; POLYVOX_ environment variables change them. The clients are those of `polyvox bench serve`,
in processes of their own: a stream is replaced when its last byte was received, a listener sends its next request when
it has played the last one. Live text is sent over a WebSocket, one token (a word or a mark) in each message. A frame
reads one token, 12.5 a second, until the text is complete; so the underruns of the clients are those of the server only
if the text arrives faster than that. With slower text a client waits for it, and the column of the engine counts: a gap
is an underrun of the engine only if the text had arrived in time. CPU time is given in microseconds per frame: of the
threads of the engine's process, of all server processes together, and of all client processes together.
"""

import argparse
import json
import multiprocessing
import os
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # all processes of the server import this module
    from polyvox.bench.load import ClientLag, Load, Mode
    from polyvox.bench.metrics import RequestTrace
    from polyvox.engine.interface import InProcessEngine
    from polyvox.server.settings import Settings

SAMPLE_INTERVAL = 0.5  # seconds between two reports of the engine's process
MEMORY_INTERVAL = 10  # seconds
GPU_MEMORY_INTERVAL = 60  # seconds; nvidia-smi takes locks of the driver, for which a step may wait
PROGRESS_INTERVAL = 10.0  # seconds
LONG_STEP = 0.12  # seconds: a bound of the histogram of steps
START_TIMEOUT = 600.0  # seconds
STOP_TIMEOUT = 60.0
SIMULATED_OPEN_SLOTS = 512  # of the simulated model in an open loop
MAX_FAILURE_CHARS = 120  # of each kind of failure
UNDERRUNS = "streams_with_underruns"
BUCKETS = "step_bucket_"  # steps by their duration, in the engine's statistics
ENGINE_THREADS = ("engine", "io", "prepare", "other")


def build(settings: "Settings", model: str, frames: int, tokens: int, slots: int, report: Path) -> "InProcessEngine":
    """Runs in the engine's process: the engine, and a thread that reports its counters and CPU times."""
    sys.path.insert(0, str(Path(__file__).parent))
    from dataclasses import replace

    from polyvox.server.engine_builder import set_up_engine_process

    set_up_engine_process(settings)
    import torch
    from closed_loop import InstrumentedEngine, pipeline_as_on_gpu, simulate  # type: ignore[import-not-found]
    from process_times import thread_seconds  # type: ignore[import-not-found]

    from polyvox.engine.config import EngineConfig

    config = settings.engine_config()
    if model == "simulated":
        from polyvox.cli.terminal import load

        torch.set_num_threads(1)
        config = replace(config, max_streams=slots, cuda_graphs=True)
        with load(None, "cpu", "float32", EngineConfig(max_streams=1)) as tts:
            engine = InstrumentedEngine(simulate(tts.model, slots), config)
        pipeline_as_on_gpu(engine)
    else:
        from polyvox import progress
        from polyvox.models.registry import random_model
        from polyvox.tts import load_options

        progress.report("load", 0, 1)
        options = load_options(
            settings.device, settings.dtype, settings.vocoder_device, settings.kv_dtype, settings.weight_dtype
        )
        speech = random_model(model, options, tokens, frames)
        engine = InstrumentedEngine(speech, config)

    def send_reports() -> None:
        while True:
            values = engine.stats() | {f"cpu_{name}": value for name, value in thread_seconds().items()}
            unfinished = report.with_suffix(".new")
            unfinished.write_text(json.dumps(values | {"pid": os.getpid()}))
            unfinished.replace(report)
            time.sleep(SAMPLE_INTERVAL)

    threading.Thread(target=send_reports, name="report", daemon=True).start()
    return engine


def serve(flags: dict[str, Any], model: str, frames: int, tokens: int, slots: int, report: Path) -> None:
    """Runs in the main process of the server."""
    from polyvox.cli.serve import serve_with_engine_processes
    from polyvox.server.logs import set_up_logs
    from polyvox.server.settings import BACKLOG
    from polyvox.server.settings_sources import load_settings

    settings = load_settings(flags)
    set_up_logs(settings)
    make = partial(build, settings, model, frames, tokens, slots, report)
    with socket.create_server((settings.host, settings.port), backlog=BACKLOG) as listener:
        serve_with_engine_processes(settings, listener, [make])


def wait_until_ready(port: int, process: BaseProcess) -> float:
    """Seconds until the server is ready."""
    began = time.monotonic()
    while time.monotonic() - began < START_TIMEOUT:
        if not process.is_alive():
            raise RuntimeError(f"the server ended with status {process.exitcode} before it was ready")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10):
                return time.monotonic() - began
        except OSError:  # refused, or 503
            time.sleep(0.2)
    raise TimeoutError("the server is not ready")


class Progress:
    """Prints a line every PROGRESS_INTERVAL seconds, so that a run that is cut off has figures too."""

    def __init__(self, label: str, report: Path, before: dict[str, float]) -> None:
        self._label, self._report, self._before, self._printed_at = label, report, before, 0.0

    def __call__(self, elapsed: float, completed: int, in_flight: int) -> None:
        if elapsed - self._printed_at < PROGRESS_INTERVAL:
            return
        self._printed_at = elapsed
        after, before = json.loads(self._report.read_text()), self._before
        frames = max(1.0, after["frames"] - before["frames"])
        seconds = sum(after[f"cpu_{name}"] - before[f"cpu_{name}"] for name in ENGINE_THREADS)
        buckets = {name: float(name.removeprefix(BUCKETS)) for name in after if name.startswith(BUCKETS)}
        num_long = sum(after[name] - before[name] for name, bound in buckets.items() if bound > LONG_STEP)
        sys.stdout.write(
            f"{self._label} after {elapsed:.0f} s: {completed} requests completed, {in_flight} in flight, engine: "
            f"{frames / elapsed:.0f} frames/s, {after['streams']:.0f} streams, {after['waiting']:.0f} queued, "
            f"capacity {after['capacity']:.0f}, {after[UNDERRUNS] - before[UNDERRUNS]:.0f} streams with underruns, "
            f"{num_long:.0f} steps above {LONG_STEP:g} s, "
            f"{1e6 * seconds / frames:.1f} us/frame, {after['memory'] / 1e9:.2f} GB\n"
        )
        sys.stdout.flush()


class Monitor(threading.Thread):
    """Samples the connections of each server process, and the memory of all processes and the GPU, until stopped.

    log: a file to which all samples of the memory are added, in GB.
    """

    def __init__(self, engine: int, servers: list[int], port: int, log: Path | None) -> None:
        super().__init__(daemon=True)
        self._engine, self._servers, self._port, self._stopped = engine, servers, port, threading.Event()
        self._connections: list[list[int]] = []
        self._memory: list[tuple[float, float, float]] = []  # GB: engine, all servers, GPU
        self._log = log

    def run(self) -> None:
        from process_times import gpu_memory, num_connections, resident_bytes

        seconds, gpu = 0, 0.0
        while not self._stopped.wait(1.0):
            self._connections.append([num_connections(pid, self._port) for pid in self._servers])
            if seconds % MEMORY_INTERVAL == 0:
                engine = resident_bytes(self._engine) / 1e9
                gpu = gpu_memory() or 0.0 if seconds % GPU_MEMORY_INTERVAL == 0 else gpu
                servers = [resident_bytes(pid) / 1e9 for pid in self._servers]
                self._memory.append((engine, sum(servers), gpu))
                if self._log is not None:
                    with self._log.open("a") as file:
                        columns = [f"{seconds} s", f"engine {engine:.3f}", f"GPU {gpu:.3f}"]
                        file.write(", ".join([*columns, *(f"server {each:.3f}" for each in servers)]) + "\n")
            seconds += 1

    def stop(self) -> tuple[str, str]:
        """The connections by server at half of the time, and the memory at the start, the middle and the end."""
        self._stopped.set()
        self.join()
        used = [each for each in self._connections if sum(each)]
        connections = "/".join(map(str, used[len(used) // 2])) if used else "-"
        samples = [self._memory[index] for index in (0, len(self._memory) // 2, -1)] if self._memory else []
        return connections, ", ".join(" + ".join(f"{each:.2f}" for each in sample) for sample in samples) or "-"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One level of load. before, after: reports of the engine's process. CPU times are in seconds."""

    traces: "Sequence[RequestTrace]"
    lag: "ClientLag"
    before: dict[str, float]
    after: dict[str, float]
    elapsed: float
    server_times: list[float]  # by process
    client_time: float
    connections: str
    memory: str


def measure_level(args: argparse.Namespace, load: "Load", main: int, port: int, report: Path) -> Measurement:
    from process_times import descendants, process_seconds, resident_bytes

    from polyvox.bench.clients import ServerTarget
    from polyvox.bench.load_generator import run_on_server
    from polyvox.bench.prompts import prompts

    engine = json.loads(report.read_text())["pid"]
    others = [pid for pid in descendants(main) if pid != engine and resident_bytes(pid) > 32 << 20]
    servers = others or [main]
    target = ServerTarget(
        f"http://127.0.0.1:{port}",
        "ws" if args.text_rate else "http",
        extra={"max_new_tokens": args.frames},
        text_rate=args.text_rate,
    )
    monitor = Monitor(engine, servers, port, args.memory_log)
    monitor.start()
    time.sleep(SAMPLE_INTERVAL)
    before, server_before = json.loads(report.read_text()), [process_seconds(pid) for pid in servers]
    client_before, began = sum(os.times()[:4]), time.monotonic()
    processes = args.processes or load.num_processes(os.cpu_count() or 1)
    progress = Progress(load.label, report, before)
    traces, lag = run_on_server(target, load, prompts(), processes, progress)
    time.sleep(SAMPLE_INTERVAL)
    after, elapsed = json.loads(report.read_text()), time.monotonic() - began
    server_times = [process_seconds(pid) - then for pid, then in zip(servers, server_before, strict=True)]
    client_time = sum(os.times()[:4]) - client_before
    return Measurement(traces, lag, before, after, elapsed, server_times, client_time, *monitor.stop())


def row(label: str, level: Measurement) -> dict[str, str]:
    """One row of the table."""
    from polyvox.bench.summary import summarise

    before, after, lag, servers = level.before, level.after, level.lag, level.server_times
    frames = max(1.0, after["frames"] - before["frames"])
    steps = max(1.0, after["steps"] - before["steps"])
    found = summarise(level.traces)
    ttfp = found.ttfp
    failures = {f"{trace.error}: {trace.detail}"[:MAX_FAILURE_CHARS] for trace in level.traces if trace.error}

    def by_part(prefix: str) -> str:
        values = {name.removeprefix(prefix): after[name] - before[name] for name in after if name.startswith(prefix)}
        shown = sorted(values.items(), key=lambda item: -item[1])
        return ", ".join(f"{name} {1e6 * value / frames:.1f}" for name, value in shown if value)

    by_thread = [after[f"cpu_{name}"] - before[f"cpu_{name}"] for name in ENGINE_THREADS]
    return {
        "load": label,
        "requests, failed": f"{found.requests}, {found.failed}",
        "failures": "; ".join(sorted(failures)[:3]) or "-",
        "underruns (streams), longest, ms": (
            f"{found.underruns.count} ({found.underruns.streams}), {1e3 * found.underruns.longest:.0f}"
        ),
        "streams with underruns, of the engine": f"{after[UNDERRUNS] - before[UNDERRUNS]:.0f}",
        "TTFP p50 / p95, ms": f"{1e3 * ttfp.p50:.0f} / {1e3 * ttfp.p95:.0f}" if ttfp else "-",
        "TTFP by stage, p50 / p95, ms": ", ".join(
            f"{stage} {1e3 * each.p50:.1f} / {1e3 * each.p95:.1f}" for stage, each in found.stages.items()
        )
        or "-",
        "audio s/s": f"{found.received or 0:.0f}",
        "step, ms": f"{1e3 * level.elapsed / steps:.1f}",
        "frames per step": f"{frames / steps:.0f}",
        "engine process, us/frame: engine thread + I/O loop + preparation + other": (
            " + ".join(f"{1e6 * value / frames:.1f}" for value in by_thread) + f" = {1e6 * sum(by_thread) / frames:.1f}"
        ),
        "by part of the engine thread, us/frame": by_part("part_"),
        "of which device calls": by_part("call_"),
        "codec calls, streams in them per step": (
            f"{(after['codec_calls'] - before['codec_calls']) / steps:.1f}, "
            f"{(after['codec_streams'] - before['codec_streams']) / steps:.0f}"
        ),
        "servers, us/frame": f"{1e6 * sum(servers) / frames:.1f}",
        "busiest server, share of a core": f"{max(servers) / level.elapsed:.0%} of {len(servers)}",
        "connections by server": level.connections,
        "memory, GB, engine + servers + GPU at the start, half of the time and the end": level.memory,
        "clients, us/frame": f"{1e6 * level.client_time / frames:.1f} in {lag.processes}",
        "client lag p99, ms": f"{1e3 * lag.loop.p99:.1f}" if lag.loop else "-",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="1.7B", choices=["0.6B", "1.7B", "simulated"])
    parser.add_argument("--streams", help="closed loop: streams of each level, comma-separated")
    parser.add_argument("--listeners", help="closed loop in real time: listeners of each level, comma-separated")
    parser.add_argument("--rates", help="open loop: requests per second of each level, comma-separated")
    parser.add_argument("--text-rate", type=float, help="live text: tokens per second; by default the whole text")
    parser.add_argument("--frames", type=int, default=125, help="per utterance")
    parser.add_argument("--tokens", type=int, default=30, help="per text; not used by the simulated model")
    parser.add_argument("--seconds", type=float, default=60, help="of measured requests per level")
    parser.add_argument("--ramp", type=float, default=10, help="seconds of warm-up over which streams start")
    parser.add_argument("--workers", help="server processes; by default the server's own default")
    parser.add_argument("--processes", type=int, help="client processes; by default one per 64 streams and core")
    parser.add_argument("--memory-log", type=Path, help="a file for the memory of each process, every 10 s")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    from polyvox.bench.load import Load

    def levels(mode: "Mode", given: str | None) -> list[Load]:
        ramp = args.ramp if mode != "open" else 0.0
        values = [float(each) for each in given.split(",")] if given else []
        return [Load(mode, level, args.seconds, args.ramp, ramp=ramp, seed=args.seed) for level in values]

    loads = levels("closed", args.streams) + levels("listeners", args.listeners) + levels("open", args.rates)
    if not loads:
        parser.error("--streams, --listeners or --rates is required")
    slots = max(int(load.level) if load.is_closed else SIMULATED_OPEN_SLOTS for load in loads)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = {"port": str(port), "log_level": "warning"} | ({"workers": args.workers} if args.workers else {})
    rows = []
    with TemporaryDirectory() as folder:
        report = Path(folder) / "engine.json"
        arguments = (flags, args.model, args.frames, args.tokens, slots, report)
        process = multiprocessing.get_context("spawn").Process(target=serve, args=arguments)
        process.start()
        try:
            assert process.pid is not None
            seconds = wait_until_ready(port, process)
            sys.stdout.write(f"ready after {seconds:.0f} s, engine process {json.loads(report.read_text())['pid']}\n")
            sys.stdout.flush()
            for load in loads:
                rows.append(row(load.label, measure_level(args, load, process.pid, port, report)))
                sys.stdout.write(f"{rows[-1]}\n")
                sys.stdout.flush()
        finally:
            process.terminate()
            process.join(STOP_TIMEOUT)
    lines = [rows[0].keys(), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    sys.stdout.write("".join("| " + " | ".join(line) + " |\n" for line in lines))


if __name__ == "__main__":
    main()
