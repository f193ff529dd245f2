"""The three calls of a model alone: prefill, frame step, codec step, over batch sizes and context lengths."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from polyvox.bench.floor import Device, Work, measure_device, timed, work_of
from polyvox.bench.plots import Line, Plot
from polyvox.bench.summary import percentile
from polyvox.engine.config import PAGE
from polyvox.engine.kv import PagedKV
from polyvox.models.qwen3_tts.model import Qwen3TTS

Call = Literal["prefill", "frame", "codec"]
CALLS: tuple[Call, ...] = ("prefill", "frame", "codec")

PREFILL_REPEATS = 10
SPARE_FRAMES = 8  # beyond those that are timed: warming up and counting
RING = 32


class Crowd:
    """Streams in the middle of speech: zero rows stand for what was said, and nobody ends."""

    def __init__(self, model: Qwen3TTS, batch: int, context: int, frames: int, codec_frames: int) -> None:
        self.model, self.batch, self.context, self.codec_frames = model, batch, context, codec_frames
        shape = model.config.talker.transformer
        pages = -(-(context + frames) // PAGE)
        kv = (shape.layers, shape.kv_heads, shape.head_dim)
        self.rows = model.new_slots(batch, 1, RING)
        self.cache = PagedKV(kv, batch * pages, batch, pages, model.device, model.dtype)
        for slot in range(batch):
            self.cache.give(slot, list(range(slot * pages + 1, (slot + 1) * pages + 1)))
        self.slots = torch.arange(batch, device=model.device)
        self.starts = torch.zeros_like(self.slots)
        self.prompt = torch.zeros(batch * context, shape.hidden_size, device=model.device, dtype=model.dtype)
        self.span = context
        self.rows.position += context
        self.position_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * model.dtype.itemsize

    def prefill(self) -> None:
        counts = self.starts + self.context
        self.model.prefill(self.prompt, self.slots, self.starts, counts, self.context, self.cache, self.context)

    def frame(self) -> None:
        self.span += 1
        self.model.frame(self.rows, self.slots, self.cache, self.span)

    def codec(self) -> None:
        self.model.decode(self.rows, self.slots, self.starts, self.codec_frames)

    def state(self, call: Call) -> int:
        """Bytes of keys, values and codec state that a call must read or write once."""
        if call == "codec":
            return 2 * sum(state.nbytes for state in self.rows.codec.values())
        positions = self.context if call == "prefill" else self.context + 1
        return self.batch * positions * self.position_bytes


@dataclass(frozen=True, slots=True)
class Timing:
    """One call at one size, in seconds, and its floor."""

    call: Call
    batch: int
    context: int
    p10: float
    p50: float
    p90: float
    bytes: int
    flops: int
    operations: int
    floor: float

    @property
    def share(self) -> float:
        """How near the floor it is; 1 is as fast as the device can."""
        return self.floor / self.p50


@torch.inference_mode()
def measure_calls(
    model: Qwen3TTS,
    batches: Sequence[int],
    contexts: Sequence[int],
    repeats: int,
    codec_frames: int,
    device: Device | None = None,
) -> Iterator[Timing]:
    """Each call at each size, as they are done; the codec, which has no context, at the first only."""
    codec_dtype = next(model.codec.parameters()).dtype
    device = device or measure_device(model.device, {model.dtype, codec_dtype})
    for context in contexts:
        for batch in batches:
            crowd = Crowd(model, batch, context, repeats + SPARE_FRAMES, codec_frames)
            for call in CALLS:
                if call == "codec" and context != contexts[0]:
                    continue
                run: Callable[[], None] = getattr(crowd, call)
                work = work_of(run, model, crowd.state(call))
                times = timed(run, min(repeats, PREFILL_REPEATS) if call == "prefill" else repeats, model.device)
                dtype = codec_dtype if call == "codec" else model.dtype
                yield _timing(call, batch, context, times, work, work.floor(device, dtype))
            del crowd


def _timing(call: Call, batch: int, context: int, times: list[float], work: Work, floor: float) -> Timing:
    p10, p50, p90 = (percentile(sorted(times), percent) for percent in (10, 50, 90))
    return Timing(call, batch, context, p10, p50, p90, work.bytes, work.flops, work.operations, floor)


HEADINGS = (
    "call", "batch", "context", "ms", "p10–p90", "operations", "MB", "GFLOP", "floor, ms", "of the floor"
)  # fmt: skip


def row(timing: Timing) -> list[str]:
    return [
        timing.call,
        str(timing.batch),
        "–" if timing.call == "codec" else str(timing.context),
        f"{timing.p50 * 1e3:.2f}",
        f"{timing.p10 * 1e3:.2f}–{timing.p90 * 1e3:.2f}",
        str(timing.operations),
        f"{timing.bytes / 1e6:.1f}",
        f"{timing.flops / 1e9:.2f}",
        f"{timing.floor * 1e3:.3f}",
        f"{timing.share:.1%}",
    ]


def streams(timings: Sequence[Timing], frame_seconds: float, codec_frames: int) -> list[tuple[int, int, float]]:
    """(batch, context, streams): how many the frame and codec steps alone, one after the other, could keep fed."""
    codec = {timing.batch: timing.p50 / codec_frames for timing in timings if timing.call == "codec"}
    found = []
    for timing in timings:
        if timing.call == "frame" and timing.batch in codec:
            step = timing.p50 + codec[timing.batch]
            found.append((timing.batch, timing.context, timing.batch * frame_seconds / step))
    return found


def plots(timings: Sequence[Timing]) -> list[Plot]:
    """Milliseconds by batch for each call, with the floor below."""
    found = []
    for call in CALLS:
        mine = [timing for timing in timings if timing.call == call]
        lines = []
        for context in sorted({timing.context for timing in mine}):
            some = [timing for timing in mine if timing.context == context]
            name = "measured" if call == "codec" else f"context {context}"
            lines.append(Line(name, tuple((t.batch, t.p50 * 1e3) for t in some)))
            lines.append(Line(f"floor, {name}", tuple((t.batch, t.floor * 1e3) for t in some), dashed=True))
        if lines:
            found.append(Plot(f"{call.capitalize()} step", "batch", "ms", tuple(lines), log=True))
    return found


def plain(timings: Sequence[Timing], device: Device) -> dict[str, Any]:
    """For programs."""
    rates = {str(dtype).removeprefix("torch."): rate for dtype, rate in device.rates.items()}
    about = {"name": device.name, "bandwidth": device.bandwidth, "rates": rates}
    return {"device": about, "calls": [asdict(timing) | {"share": timing.share} for timing in timings]}
