# SPDX-License-Identifier: Apache-2.0
"""Times the calls of a model alone: prefill, frame step and codec step, by batch size and context length.

On a GPU each call is a CUDA graph that is replayed, as in the engine, and a fourth measurement runs the frame steps of
one codec chunk and the codec step on two streams; its time is per frame.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch

from polyvox import kernels
from polyvox.bench.plots import Plot, Series
from polyvox.bench.roofline import DevicePeaks, Work, count_work, measure_peaks, time_calls
from polyvox.bench.summary import percentile
from polyvox.engine.config import PAGE
from polyvox.engine.graphs import Program
from polyvox.engine.kv_cache import KVCache
from polyvox.engine.model_runner import MAX_ROWS
from polyvox.engine.stream_state import RING_FRAMES
from polyvox.models.protocol import PrefillMetadata
from polyvox.models.qwen3_tts.model import Qwen3TTS
from polyvox.models.qwen3_tts.speech_model import NEVER

Call = Literal["prefill", "frame", "codec", "both"]
CALLS: tuple[Call, ...] = ("prefill", "frame", "codec", "both")

PREFILL_REPEATS = 10
SPARE_FRAMES = 8  # beyond the timed ones: warm-up and counting


class SyntheticBatch:
    """Streams in the middle of an utterance: the context is zeros, and no stream ends."""

    def __init__(self, model: Qwen3TTS, batch: int, context: int, frames: int, codec_frames: int) -> None:
        self.model, self.batch, self.context, self.codec_frames = model, batch, context, codec_frames
        shape = model.config.talker.transformer
        pages = -(-(context + frames) // PAGE)
        kv = (shape.layers, shape.kv_heads, shape.head_dim)
        self.rows = model.new_slots(batch, 1, RING_FRAMES)
        self.cache = KVCache(kv, batch * pages, batch, pages, model.device, model.dtype)
        for slot in range(batch):
            self.cache.set_block_table(slot, list(range(slot * pages + 1, (slot + 1) * pages + 1)))
        self.slots = torch.arange(batch, device=model.device)
        self.first = torch.zeros_like(self.slots)
        rows = min(batch * context, MAX_ROWS)  # of one prefill, as in the engine
        self.prompt = torch.zeros(rows, shape.hidden_size, device=model.device, dtype=model.dtype)
        each = torch.arange(rows, device=model.device)
        self.metadata = PrefillMetadata(
            self.slots[: -(-rows // context)], each // context, each % context, min(rows, context)
        )
        self.max_context = context + frames
        self.rows.position += context
        self.rows.least += NEVER
        self.position_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * model.dtype.itemsize

    def prefill(self) -> None:
        metadata = self.metadata
        self.model.prefill(self.prompt, metadata.owner, metadata.column, self.cache, self.context, metadata)

    def frame(self) -> None:
        self.model.frame(self.rows, self.slots, self.cache, self.max_context)

    def codec(self) -> None:
        self.model.decode(self.rows, self.slots, self.first, self.codec_frames)

    def state_bytes(self, call: Call) -> int:
        """Bytes of keys, values and codec state that a call reads or writes at least once."""
        if call == "codec":
            return 2 * sum(state.nbytes for state in self.rows.codec.values())
        positions = len(self.prompt) if call == "prefill" else self.batch * (self.context + 1)
        return positions * self.position_bytes


@dataclass(frozen=True, slots=True)
class CallTiming:
    """One call at one size, in seconds, and its roofline bound (`floor`)."""

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
        """The bound divided by the median time; 1 is as fast as the device allows."""
        return self.floor / self.p50


def model_peaks(model: Qwen3TTS) -> DevicePeaks:
    """The peaks of the model's device in the model's dtypes."""
    return measure_peaks(model.device, {model.dtype, model.codec.dtype})


@torch.inference_mode()
def measure_calls(
    model: Qwen3TTS,
    batches: Sequence[int],
    contexts: Sequence[int],
    repeats: int,
    codec_frames: int,
    peaks: DevicePeaks,
    cuda_graphs: bool = True,
) -> Iterator[CallTiming]:
    """Yields each call at each size; the codec, which has no context, at the first context only."""
    cuda_graphs = cuda_graphs and model.device.type == "cuda"
    for context in contexts:
        for batch_size in batches:
            # With CUDA graphs, frame steps are timed alone and beside the codec.
            frames = (repeats + SPARE_FRAMES) * (1 + cuda_graphs * codec_frames)
            batch = SyntheticBatch(model, batch_size, context, frames, codec_frames)
            programs: dict[Call, Callable[[], object]] = {}
            works: dict[Call, Work] = {}
            for call in CALLS[:3]:
                run: Callable[[], None] = getattr(batch, call)
                works[call] = _count_call(run, model, batch.state_bytes(call))
                programs[call] = _capture(run, model.device) if cuda_graphs else run
                if call == "codec" and context != contexts[0]:
                    continue
                count = min(repeats, PREFILL_REPEATS) if call == "prefill" else repeats
                times = time_calls(programs[call], count, model.device)
                dtype = model.codec.dtype if call == "codec" else model.dtype
                yield _timing(call, batch_size, context, times, works[call], works[call].bound(peaks, dtype))
            if cuda_graphs:
                times = time_calls(_concurrent(programs, codec_frames, model.device), repeats, model.device)
                frame, codec = works["frame"], works["codec"]
                bound = frame.bound(peaks, model.dtype) + codec.bound(peaks, model.codec.dtype) / codec_frames
                both = Work(
                    frame.bytes + codec.bytes // codec_frames,
                    frame.flops + codec.flops // codec_frames,
                    frame.operations + codec.operations // codec_frames,
                )
                yield _timing("both", batch_size, context, [each / codec_frames for each in times], both, bound)
            del batch, programs


def _count_call(run: Callable[[], None], model: Qwen3TTS, state_bytes: int) -> Work:
    """Bytes and FLOPs of the reference implementation, as counters cannot see into a kernel; launched operations."""
    with kernels.disabled():
        work = count_work(run, model, state_bytes)
    return replace(work, operations=count_work(run, model, 0).operations)


def _capture(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The call as a CUDA graph."""

    def run() -> None:
        call()

    program = Program(run)
    program.capture(torch.cuda.Stream(device), torch.cuda.graph_pool_handle())
    return program


def _concurrent(programs: dict[Call, Callable[[], object]], frames: int, device: torch.device) -> Callable[[], None]:
    """The frame steps of one codec chunk on one stream and the codec step on another."""
    codec_stream = torch.cuda.Stream(device)

    def run() -> None:
        with torch.cuda.stream(codec_stream):
            programs["codec"]()
        for _ in range(frames):
            programs["frame"]()

    return run


def _timing(call: Call, batch: int, context: int, times: list[float], work: Work, bound: float) -> CallTiming:
    p10, p50, p90 = (percentile(sorted(times), percent) for percent in (10, 50, 90))
    return CallTiming(call, batch, context, p10, p50, p90, work.bytes, work.flops, work.operations, bound)


HEADINGS = (
    "call", "batch", "context", "ms", "p10–p90", "operations", "MB", "GFLOP", "roofline, ms", "of roofline"
)  # fmt: skip


def row(timing: CallTiming) -> list[str]:
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


def real_time_streams(
    timings: Sequence[CallTiming], frame_seconds: float, codec_frames: int
) -> list[tuple[int, int, float]]:
    """(batch, context, streams): how many streams sequential frame and codec steps could serve in real time."""
    codec = {timing.batch: timing.p50 / codec_frames for timing in timings if timing.call == "codec"}
    found = []
    for timing in timings:
        if timing.call == "frame" and timing.batch in codec:
            step = timing.p50 + codec[timing.batch]
            found.append((timing.batch, timing.context, timing.batch * frame_seconds / step))
    return found


def call_plots(timings: Sequence[CallTiming]) -> list[Plot]:
    """Milliseconds by batch size for each call, with the roofline bound."""
    found = []
    for call in CALLS:
        of_call = [timing for timing in timings if timing.call == call]
        series = []
        for context in sorted({timing.context for timing in of_call}):
            chosen = [timing for timing in of_call if timing.context == context]
            name = "measured" if call == "codec" else f"context {context}"
            series.append(Series(name, tuple((t.batch, t.p50 * 1e3) for t in chosen)))
            series.append(Series(f"roofline, {name}", tuple((t.batch, t.floor * 1e3) for t in chosen), dashed=True))
        if series:
            found.append(Plot(f"{call.capitalize()} step", "batch", "ms", tuple(series), log_x=True, log_y=True))
    return found


def to_json(timings: Sequence[CallTiming], peaks: DevicePeaks) -> dict[str, Any]:
    rates = {str(dtype).removeprefix("torch."): rate for dtype, rate in peaks.rates.items()}
    device = {"name": peaks.name, "bandwidth": peaks.bandwidth, "rates": rates}
    return {"device": device, "calls": [asdict(timing) | {"share": timing.share} for timing in timings]}
