"""How fast the three calls are, alone: python benchmarks/speed.py [--model 1.7B] [--batch 1,8,64] …

Plain PyTorch, no graphs: what graphs and kernels will be judged against. Medians with the 10th and
90th percentile; on a shared CPU compare figures of one run only.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch

from polyvox.engine.config import PAGE
from polyvox.engine.kv import PagedKV
from polyvox.models.qwen3_tts.model import Qwen3TTS
from polyvox.models.qwen3_tts.synthetic import published_files, random_model
from polyvox.tts import TTS, load, placement

SENTENCE = "Good morning, the train to the harbour leaves at nine."
CODEC_FRAMES = 4


def timed(call: Callable[[], object], repeats: int, device: torch.device) -> list[float]:
    """Milliseconds of each call after two that warm up; waits for the device."""
    times = []
    for _ in range(repeats + 2):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append((time.perf_counter() - began) * 1e3)
    return times[2:]


def shown(times: list[float]) -> str:
    low, *_, high = statistics.quantiles(times, n=10)
    return f"{statistics.median(times):8.2f} ({low:.2f}–{high:.2f})"


class Crowd:
    """Streams in the middle of speech: zero rows stand for what was said, and nobody ends."""

    def __init__(self, model: Qwen3TTS, batch: int, context: int, frames: int) -> None:
        self.model, self.batch, self.context = model, batch, context
        shape = model.config.talker.transformer
        pages = -(-(context + frames) // PAGE)
        kv = (shape.layers, shape.kv_heads, shape.head_dim)
        self.rows = model.new_slots(batch, 1, ring=32)
        self.cache = PagedKV(kv, batch * pages, batch, pages, model.device, model.dtype)
        for slot in range(batch):
            self.cache.give(slot, list(range(slot * pages + 1, (slot + 1) * pages + 1)))
        self.slots = torch.arange(batch, device=model.device)
        self.starts = torch.zeros_like(self.slots)
        self.prompt = torch.zeros(batch * context, shape.hidden_size, device=model.device, dtype=model.dtype)
        self.span = context
        self.rows.position += context

    def prefill(self) -> None:
        counts = self.starts + self.context
        self.model.prefill(self.prompt, self.slots, self.starts, counts, self.context, self.cache, self.context)

    def frame(self) -> None:
        self.span += 1
        self.model.frame(self.rows, self.slots, self.cache, self.span)

    def decode(self) -> None:
        self.model.decode(self.rows, self.slots, self.starts, CODEC_FRAMES)


@torch.inference_mode()
def table(model: Qwen3TTS, batches: list[int], context: int, repeats: int) -> None:
    out(f"{'batch':>6} {f'prefill {context} rows, ms':>26} {'frame, ms':>26} {'codec of 4 frames, ms':>26}")
    for batch in batches:
        crowd = Crowd(model, batch, context, repeats + 8)
        prefill = timed(crowd.prefill, min(repeats, 10), model.device)
        frame = timed(crowd.frame, repeats, model.device)
        codec = timed(crowd.decode, repeats, model.device)
        out(f"{batch:>6} {shown(prefill):>26} {shown(frame):>26} {shown(codec):>26}")


def first_chunk(tts: TTS) -> None:
    stream = tts.stream(SENTENCE, seed=1)
    next(iter(stream))
    stream.cancel()


def out(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help="embedded, 0.6B or 1.7B (random weights), or a checkpoint")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--batch", default="1,4", help="batch sizes, with commas")
    parser.add_argument("--context", type=int, default=64, help="rows in the cache before the first frame")
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    batches = [int(size) for size in options.batch.split(",")]
    if options.model in ("0.6B", "1.7B"):
        place = placement(options.device, options.dtype)
        model = random_model(published_files(options.model, "custom_voice"), *place)
    else:
        tts = load(None if options.model == "embedded" else options.model, options.device, options.dtype)
        model = tts.speech.model
    name = torch.cuda.get_device_name() if model.device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    out(f"{options.model}, {model.talker.codec_head.weight.dtype}, {name}, torch {torch.__version__}")
    table(model, batches, options.context, options.repeats)
    if model.device.type == "cuda":
        out(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")
    if options.model not in ("0.6B", "1.7B"):
        times, seconds = [], 0.0
        for _ in range(5):
            began = time.perf_counter()
            seconds = tts.say(SENTENCE, seed=1).seconds
            times.append((time.perf_counter() - began) * 1e3)
        chunk = timed(lambda: first_chunk(tts), 10, model.device)
        rest = statistics.median(times[1:])
        out(f"say: {seconds:.2f} s of speech in {rest:.0f} ms, real-time factor {rest / 1e3 / seconds:.2f}")
        out(f"     the first time {times[0]:.0f} ms, real-time factor {times[0] / 1e3 / seconds:.2f}")
        out(f"stream: first chunk after {shown(chunk).strip()} ms")


if __name__ == "__main__":
    main()
