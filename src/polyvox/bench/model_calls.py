# SPDX-License-Identifier: Apache-2.0
"""Times the calls of a model alone: prefill, frame step and codec step, by batch size and context length.

On a GPU each call is a CUDA graph that is replayed, as in the engine, and a fourth measurement runs the frame steps of
one codec chunk and the codec step on two streams; its time is per frame.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from polyvox import kernels
from polyvox.bench.plots import Plot, Series
from polyvox.bench.roofline import DevicePeaks, Work, count_work, measure_peaks, time_calls
from polyvox.bench.summary import percentile
from polyvox.engine.config import PAGE
from polyvox.engine.generator_runner import MAX_PREFILL_ROWS
from polyvox.engine.graphs import GraphedCall, gather_codes
from polyvox.engine.kv_cache import KVCache
from polyvox.engine.memory import machine_memory
from polyvox.engine.parallel_compiler import DeviceCalls, ParallelCompiler, max_compilers
from polyvox.engine.stream_state import RING_FRAMES
from polyvox.kernels.quantized_rows import quantize_rows
from polyvox.models.protocol import NO_ID, PrefillMetadata, PromptRows, SpeechModel
from polyvox.models.request import ClonedVoice, Request, Sampling

Call = Literal["prefill", "frame", "codec", "both"]
CALLS: tuple[Call, ...] = ("prefill", "frame", "codec", "both")

PREFILL_REPEATS = 10
FILLED_PAGES = 1024  # at a time: 67 MB in float32 for 8 KV heads of 128
SPARE_FRAMES = 8  # beyond the timed ones: compilation, warm-up and counting
# Greedy, and end of speech is never sampled.
NEVER_ENDING = Sampling(1.0, 1, 1.0, 1.0, 1.0, 1, 1.0, min_frames=1_000_000)


class SyntheticBatch:
    """Streams in the middle of an utterance: keys and values are random, and no stream ends."""

    def __init__(self, model: SpeechModel, batch: int, context: int, frames: int, codec_frames: int) -> None:
        generator = self.generator = model.generator
        self.batch, self.context, self.codec_frames = batch, context, codec_frames
        pages = -(-(context + frames) // PAGE)
        self.state = generator.new_state(batch, 1, RING_FRAMES)
        self.vocoder_state = model.vocoder.new_state(batch)
        self.cache = KVCache(generator.kv_shape, batch * pages, batch, pages, generator.device, generator.kv_dtype)
        fill_cache(self.cache)
        self.slots = torch.arange(batch, device=generator.device)
        self.first = torch.zeros_like(self.slots)
        self.vocoder_slots = self.slots.to(model.vocoder.device)
        self.max_context = context + frames
        self._assign(model, pages)
        rows = min(batch * context, MAX_PREFILL_ROWS)  # of one prefill, as in the engine
        self.prompt = torch.full((2, rows), NO_ID, device=generator.device)
        each = torch.arange(rows, device=generator.device)
        self.metadata = PrefillMetadata(
            self.slots[: -(-rows // context)], each // context, each % context, min(rows, context)
        )

    def _assign(self, model: SpeechModel, pages: int) -> None:
        info = model.info()
        voice = ClonedVoice(np.zeros(info.hidden_size, np.float32)) if info.can_clone else None
        request = Request("hello", voice, seed=0, sampling=NEVER_ENDING, guard=False)
        prompt = PromptRows(np.full((2, self.context + 1), NO_ID))
        prepared = replace(model.prepare(request), rows=prompt, text=())
        for slot in range(self.batch):
            self.cache.set_block_table(slot, list(range(slot * pages + 1, (slot + 1) * pages + 1)))
            self.state.assign(slot, prepared)
            self.vocoder_state.assign(slot, None)
        self.cache.upload()
        self.state.upload()
        self.vocoder_state.upload()

    def prefill(self) -> None:
        metadata = self.metadata
        at = metadata.owner, metadata.column
        self.state.prefill(self.prompt, None, *at, self.cache, self.context, metadata)

    def frame(self) -> None:
        self.state.frame(self.slots, self.cache, self.max_context)

    def codec(self) -> None:
        self.decode(self.first)

    def decode(self, first: Tensor) -> Tensor:
        """The samples of the next chunk of each stream, whose codes start at frame first [B] of the ring."""
        codes = gather_codes(self.state.codes, self.slots, first, self.codec_frames)
        return self.vocoder_state.decode(self.vocoder_slots, codes.to(self.vocoder_slots.device))

    def state_bytes(self, call: Call) -> int:
        """Bytes of keys, values and codec state that a call reads or writes at least once."""
        if call == "codec":
            return 2 * self.vocoder_state.nbytes
        positions = self.prompt.shape[1] if call == "prefill" else self.batch * (self.context + 1)
        return positions * self.generator.kv_shape.position_bytes(self.generator.kv_dtype)


def fill_cache(cache: KVCache) -> None:
    """Random keys and values: with zeros a GPU needs less power, so that large batches run at a higher clock."""
    generator = torch.Generator(cache.keys.device).manual_seed(0)
    for part, pool in enumerate((cache.keys, cache.values)):
        for layer, start in product(range(len(pool)), range(0, pool.shape[1], FILLED_PAGES)):
            pages = slice(start, start + FILLED_PAGES)
            rows = pool[layer, pages]
            made = torch.randn(rows.shape, generator=generator, device=rows.device)
            if cache.scales is not None:
                made, scales = quantize_rows(made, rows.dtype)
                cache.scales[part, layer, pages] = scales.transpose(1, 2)
            rows.copy_(made)


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
    activations: int = 0  # bytes

    @property
    def share(self) -> float:
        """The bound divided by the median time; 1 is as fast as the device allows."""
        return self.floor / self.p50


def model_peaks(model: SpeechModel) -> DevicePeaks:
    """The peaks of the model's device in the model's dtypes."""
    return measure_peaks(model.generator.device, {model.generator.dtype, model.vocoder.dtype})


@torch.inference_mode()
def measure_calls(
    model: SpeechModel,
    batches: Sequence[int],
    contexts: Sequence[int],
    repeats: int,
    codec_frames: int,
    peaks: DevicePeaks,
    cuda_graphs: bool = True,
) -> Iterator[CallTiming]:
    """Yields each call at each size; the codec, which has no context, at the first context only."""
    cuda_graphs = cuda_graphs and model.generator.device.type == "cuda"
    for context in contexts:
        for batch_size in batches:
            # With CUDA graphs, frame steps are timed alone and beside the codec.
            frames = (repeats + SPARE_FRAMES) * (1 + cuda_graphs * codec_frames)
            batch = SyntheticBatch(model, batch_size, context, frames, codec_frames)
            if model.generator.device.type == "cuda":
                _compile(batch)
            programs: dict[Call, Callable[[], object]] = {}
            works: dict[Call, Work] = {}
            for call in CALLS[:3]:
                run: Callable[[], None] = getattr(batch, call)
                works[call] = _count_call(run, model, batch.state_bytes(call))
                rows = batch_size if call == "frame" else 0
                programs[call] = _capture(run, model.generator.device, rows) if cuda_graphs else run
                if call == "codec" and context != contexts[0]:
                    continue
                count = min(repeats, PREFILL_REPEATS) if call == "prefill" else repeats
                times = time_calls(programs[call], count, model.generator.device)
                dtype = model.vocoder.dtype if call == "codec" else model.generator.dtype
                yield _timing(call, batch_size, context, times, works[call], works[call].bound(peaks, dtype))
            if cuda_graphs:
                times = time_calls(
                    _concurrent(programs, codec_frames, model.generator.device), repeats, model.generator.device
                )
                frame, codec = works["frame"], works["codec"]
                bound = (
                    frame.bound(peaks, model.generator.dtype) + codec.bound(peaks, model.vocoder.dtype) / codec_frames
                )
                both = Work(
                    frame.bytes + codec.bytes // codec_frames,
                    frame.flops + codec.flops // codec_frames,
                    frame.operations + codec.operations // codec_frames,
                    frame.activations + codec.activations // codec_frames,
                )
                yield _timing("both", batch_size, context, [each / codec_frames for each in times], both, bound)
            del batch, programs


def _compile(batch: SyntheticBatch) -> None:
    """Runs each call once; compiles kernels that are not in the cache in several processes, as the engine does."""
    calls = [batch.prefill, batch.frame, batch.codec]
    parts = [DeviceCalls(batch.generator.device, calls)]
    with ParallelCompiler(parts, max_compilers(machine_memory())) as compiler:
        for call in calls:
            call()
            compiler.compile_missing(lambda _done, _total: None)


def _count_call(run: Callable[[], None], model: SpeechModel, state_bytes: int) -> Work:
    """Bytes and FLOPs of the reference implementation, as counters cannot see into a kernel; launched operations."""
    weights = [*model.generator.parameters(), *model.vocoder.parameters()]
    with kernels.disabled():
        work = count_work(run, weights, state_bytes)
    return replace(work, operations=count_work(run, weights, 0).operations)


def _capture(call: Callable[[], object], device: torch.device, rows: int) -> Callable[[], object]:
    """The call as a CUDA graph; rows: as GraphedCall."""

    def run() -> None:
        call()

    program = GraphedCall(run, rows=rows)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    program.compile(stream)
    stream.synchronize()
    program.capture(stream, torch.cuda.graph_pool_handle())
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
    counts = work.bytes, work.flops, work.operations
    return CallTiming(call, batch, context, p10, p50, p90, *counts, bound, work.activations)


HEADINGS = (
    "call", "batch", "context", "ms", "p10–p90", "operations", "MB", "activations, MB", "GFLOP", "roofline, ms",
    "of roofline",
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
        f"{timing.activations / 1e6:.1f}",
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
