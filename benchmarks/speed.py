"""How fast the three calls are, alone: python benchmarks/speed.py [--model 1.7B] [--batch 1,8,64] …

Plain PyTorch, no graphs: the loop that the engine and its kernels will be judged against. Medians with the 10th and
90th percentile; on a shared CPU compare figures of one run only.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch

from polyvox.models.qwen3_tts.model import Qwen3TTS, Streams
from polyvox.models.qwen3_tts.sampling import KeyedNoise
from polyvox.models.qwen3_tts.synthetic import published_files, random_model
from polyvox.tts import load, placement

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


def prefilled(model: Qwen3TTS, batch: int, context: int) -> Streams:
    """Streams in the middle of speech: random rows stand for what was said."""
    generator = torch.Generator(model.device).manual_seed(0)
    like = model.talker.codec_head.weight
    shape = (context, like.shape[1])
    rows = [torch.randn(shape, generator=generator, device=like.device).to(like.dtype) for _ in range(batch)]
    noise = KeyedNoise(range(batch), [0] * batch, model.device)
    pads = [[model.config.tts_pad_id]] * batch
    return model.prefill(rows, pads, [model.config.sampling] * batch, noise)


@torch.inference_mode()
def table(model: Qwen3TTS, batches: list[int], context: int, repeats: int) -> None:
    out(f"{'batch':>6} {f'prefill {context} rows, ms':>26} {'frame, ms':>26} {'codec of 4 frames, ms':>26}")
    for batch in batches:
        prefill = timed(lambda b=batch: prefilled(model, b, context), min(repeats, 10), model.device)
        streams = prefilled(model, batch, context)
        frame = timed(lambda s=streams: model.frame(s), repeats, model.device)
        codes = torch.randint(
            0, model.config.predictor.vocab_size, (batch, CODEC_FRAMES, model.config.talker.code_groups)
        ).to(model.device)
        state = model.codec.initial_state(batch)
        codec = timed(lambda c=codes, s=state: model.decode_audio(c, s), repeats, model.device)
        out(f"{batch:>6} {shown(prefill):>26} {shown(frame):>26} {shown(codec):>26}")


def out(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="embedded", help="embedded, 0.6B or 1.7B (random weights), or a checkpoint"
    )
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
        model = tts.model
    name = (
        torch.cuda.get_device_name() if model.device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    )
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
        chunk = timed(lambda: next(iter(tts.stream(SENTENCE, seed=1))), 10, model.device)
        rest = statistics.median(times[1:])
        out(f"say: {seconds:.2f} s of speech in {rest:.0f} ms, real-time factor {rest / 1e3 / seconds:.2f}")
        out(f"     the first time {times[0]:.0f} ms, real-time factor {times[0] / 1e3 / seconds:.2f}")
        out(f"stream: first chunk after {shown(chunk).strip()} ms")


if __name__ == "__main__":
    main()
