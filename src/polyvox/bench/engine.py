"""The three calls of a model alone: prefill, frame step, codec step, over batch sizes and context lengths.

On a GPU each is a graph that is replayed, as in the engine, and there is a fourth: frame and codec steps beside each
other, as many frames as the codec's chunk has, per frame.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch

from polyvox import kernels
from polyvox.bench.floor import Device, Work, measure_device, timed, work_of
from polyvox.bench.plots import Line, Plot
from polyvox.bench.summary import percentile
from polyvox.engine.config import PAGE
from polyvox.engine.graphs import Program
from polyvox.engine.kv_cache import KVCache
from polyvox.engine.model_runner import MAX_ROWS
from polyvox.models.protocol import PrefillMetadata
from polyvox.models.qwen3_tts.model import Qwen3TTS
from polyvox.models.qwen3_tts.speech_model import NEVER

Call = Literal["prefill", "frame", "codec", "both"]
CALLS: tuple[Call, ...] = ("prefill", "frame", "codec", "both")

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
        self.cache = KVCache(kv, batch * pages, batch, pages, model.device, model.dtype)
        for slot in range(batch):
            self.cache.give(slot, list(range(slot * pages + 1, (slot + 1) * pages + 1)))
        self.slots = torch.arange(batch, device=model.device)
        self.first = torch.zeros_like(self.slots)
        rows = min(batch * context, MAX_ROWS)  # of one prefill, as in the engine
        self.prompt = torch.zeros(rows, shape.hidden_size, device=model.device, dtype=model.dtype)
        each = torch.arange(rows, device=model.device)
        self.pack = PrefillMetadata(
            self.slots[: -(-rows // context)], each // context, each % context, min(rows, context)
        )
        self.span = context + frames
        self.rows.position += context
        self.rows.least += NEVER
        self.position_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * model.dtype.itemsize

    def prefill(self) -> None:
        pack = self.pack
        self.model.prefill(self.prompt, pack.owner, pack.column, self.cache, self.context, pack)

    def frame(self) -> None:
        self.model.frame(self.rows, self.slots, self.cache, self.span)

    def codec(self) -> None:
        self.model.decode(self.rows, self.slots, self.first, self.codec_frames)

    def state(self, call: Call) -> int:
        """Bytes of keys, values and codec state that a call must read or write once."""
        if call == "codec":
            return 2 * sum(state.nbytes for state in self.rows.codec.values())
        positions = len(self.prompt) if call == "prefill" else self.batch * (self.context + 1)
        return positions * self.position_bytes


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


def device_of(model: Qwen3TTS) -> Device:
    """What the model's device can do in the types that the model computes in."""
    return measure_device(model.device, {model.dtype, model.codec.dtype})


@torch.inference_mode()
def measure_calls(
    model: Qwen3TTS,
    batches: Sequence[int],
    contexts: Sequence[int],
    repeats: int,
    codec_frames: int,
    device: Device,
    graphs: bool = True,
) -> Iterator[Timing]:
    """Each call at each size, as they are done; the codec, which has no context, at the first only."""
    graphs = graphs and model.device.type == "cuda"
    for context in contexts:
        for batch in batches:
            # Frames are timed alone and, on a GPU, beside the codec.
            frames = (repeats + SPARE_FRAMES) * (1 + graphs * codec_frames)
            crowd = Crowd(model, batch, context, frames, codec_frames)
            programs: dict[Call, Callable[[], object]] = {}
            works: dict[Call, Work] = {}
            for call in CALLS[:3]:
                run: Callable[[], None] = getattr(crowd, call)
                with (
                    kernels.disabled()
                ):  # no counter sees into a kernel; the plain functions read and multiply the same
                    works[call] = work_of(run, model, crowd.state(call))
                works[call] = replace(works[call], operations=work_of(run, model, 0).operations)
                programs[call] = captured(run, model.device) if graphs else run
                if call == "codec" and context != contexts[0]:
                    continue
                times = timed(
                    programs[call], min(repeats, PREFILL_REPEATS) if call == "prefill" else repeats, model.device
                )
                dtype = model.codec.dtype if call == "codec" else model.dtype
                yield _timing(call, batch, context, times, works[call], works[call].floor(device, dtype))
            if graphs:
                times = timed(_beside(programs, codec_frames, model.device), repeats, model.device)
                frame, codec = works["frame"], works["codec"]
                floor = frame.floor(device, model.dtype) + codec.floor(device, model.codec.dtype) / codec_frames
                both = Work(
                    frame.bytes + codec.bytes // codec_frames,
                    frame.flops + codec.flops // codec_frames,
                    frame.operations + codec.operations // codec_frames,
                )
                yield _timing("both", batch, context, [each / codec_frames for each in times], both, floor)
            del crowd, programs


def captured(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The call as a graph of its own."""

    def run() -> None:
        call()

    program = Program(run)
    program.capture(torch.cuda.Stream(device), torch.cuda.graph_pool_handle())
    return program


def _beside(programs: dict[Call, Callable[[], object]], frames: int, device: torch.device) -> Callable[[], None]:
    """So many frame steps on one stream and a codec step on another."""
    other = torch.cuda.Stream(device)

    def run() -> None:
        with torch.cuda.stream(other):
            programs["codec"]()
        for _ in range(frames):
            programs["frame"]()

    return run


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
            found.append(Plot(f"{call.capitalize()} step", "batch", "ms", tuple(lines), log_across=True, log_up=True))
    return found


def plain(timings: Sequence[Timing], device: Device) -> dict[str, Any]:
    """For programs."""
    rates = {str(dtype).removeprefix("torch."): rate for dtype, rate in device.rates.items()}
    about = {"name": device.name, "bandwidth": device.bandwidth, "rates": rates}
    return {"device": about, "calls": [asdict(timing) | {"share": timing.share} for timing in timings]}
