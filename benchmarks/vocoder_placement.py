# SPDX-License-Identifier: Apache-2.0
"""Streams that one engine holds with the vocoder beside the generator, on another device, and on the CPU.

python benchmarks/vocoder_placement.py [--size 1.7B] [--device cuda] [--vocoder-devices auto,cpu,cuda:1]
    [--streams 1,16,64,256] [--frames 100]

Random weights, no server. For each placement and number of concurrent streams: the device that the vocoder is on, audio
seconds per second, whether that is enough for all streams to run in real time, and underruns. Devices that the machine
does not have are left out.
"""

import argparse
import sys
import time
from contextlib import closing

import torch

from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.models.protocol import SpeechModel
from polyvox.models.registry import random_model
from polyvox.models.request import Request
from polyvox.tts import load_options

MAX_WAIT = 3600.0  # seconds: streams that do not run in real time are measured too
TEXT = "The vocoder turns the codes of this sentence into samples, on a device of its own if it has one."


def is_available(device: str) -> bool:
    if not device.startswith("cuda"):
        return True
    return torch.cuda.is_available() and torch.device(device).index in (None, *range(torch.cuda.device_count()))


def build_model(size: str, device: str, vocoder_device: str) -> SpeechModel:
    return random_model(size, load_options(device, "auto", vocoder_device))


def measure(engine: LocalEngine, num_streams: int, num_frames: int) -> tuple[float, float]:
    """Audio seconds per second of this many concurrent streams, and their underruns."""
    began = time.perf_counter()
    requests = [Request(TEXT, seed=seed, max_frames=num_frames, guard=False) for seed in range(num_streams)]
    streams = [engine.submit(request) for request in requests]
    num_samples = sum(len(chunk.samples) for stream in streams for chunk in stream.chunks())
    elapsed = time.perf_counter() - began
    results = [stream.result for stream in streams]
    return num_samples / engine.sample_rate / elapsed, sum(one.underruns for one in results if one is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare placements of the vocoder.")
    parser.add_argument("--size", default="1.7B", choices=["0.6B", "1.7B"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--vocoder-devices", default="auto,cpu,cuda:1")
    parser.add_argument("--streams", default="1,16,64,256")
    parser.add_argument("--frames", type=int, default=100)
    options = parser.parse_args()
    counts = [int(part) for part in options.streams.split(",")]
    sys.stdout.write("| vocoder | on | streams | audio seconds per second | in real time | underruns |\n")
    sys.stdout.write("|---|---|---|---|---|---|\n")
    config = EngineConfig(max_streams=max(counts), max_queue=max(counts), max_queue_seconds=MAX_WAIT)
    for vocoder_device in filter(is_available, options.vocoder_devices.split(",")):
        model = build_model(options.size, options.device, vocoder_device)
        with closing(LocalEngine(model, config)) as engine:
            measure(engine, 1, 8)
            for count in counts:
                rate, underruns = measure(engine, count, options.frames)
                placed, real_time = f"{vocoder_device} | {model.vocoder.device}", "yes" if rate >= count else "no"
                sys.stdout.write(f"| {placed} | {count} | {rate:.1f} | {real_time} | {underruns:g} |\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
