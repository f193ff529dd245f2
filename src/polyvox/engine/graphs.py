# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: the calls of generator and vocoder at fixed sizes, captured at start and replayed.

A call is padded to the next size with the scratch slot, which no stream owns. Without a GPU the same calls run at the
same sizes without capture, which is how they are tested.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from polyvox import progress
from polyvox.engine.batch_sizes import batch_sizes, next_size
from polyvox.engine.config import MAX_BATCH
from polyvox.engine.parallel_compiler import DeviceCalls, ParallelCompiler, Report
from polyvox.engine.stream_arrays import Ints
from polyvox.engine.stream_state import CHUNK_SIZES, MAX_FRAMES_PER_STEP
from polyvox.kernels.graph_memory import prefer_shared_memory
from polyvox.kernels.quantize import quantize
from polyvox.models.protocol import NO_ID, Generator, GeneratorState, PagedCache, Vocoder, VocoderState
from polyvox.progress import Stage

MIN_PREFILL_ROWS = 16


class GraphedCall:
    """A call with inputs at fixed addresses. rows: of a frame call; 0 for other calls."""

    def __init__(self, call: Callable[..., Tensor | None], *inputs: Tensor, rows: int = 0) -> None:
        self.inputs, self.rows, self._call = inputs, rows, call
        self._graph: torch.cuda.CUDAGraph | None = None
        self._out: Tensor | None = None

    def compile(self, stream: torch.cuda.Stream) -> None:
        """Runs once, without capture: kernels are compiled or loaded, and libraries allocate workspaces."""
        with torch.cuda.stream(stream):
            self._call(*self.inputs)

    def capture(self, stream: torch.cuda.Stream, pool: "torch.cuda._POOL_HANDLE") -> None:
        """Requires a completed `compile` of the largest call of the family on the same stream."""
        try:
            graph = self._captured(stream, pool)
        except RuntimeError:  # a driver that cannot load a kernel during a capture
            self.compile(stream)
            stream.synchronize()
            graph = self._captured(stream, pool)
        prefer_shared_memory(graph, stream.device, self.rows)
        graph.instantiate()
        self._graph = graph

    def _captured(self, stream: torch.cuda.Stream, pool: "torch.cuda._POOL_HANDLE") -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph(keep_graph=True)  # PyTorch keeps a copy on the host, whose nodes can be changed
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self._out = self._call(*self.inputs)
        return graph

    def __call__(self, *values: Tensor | Ints) -> Tensor | None:
        """Copies values to the first rows of the inputs, and runs."""
        for target, value in zip(self.inputs, values, strict=True):
            if not isinstance(value, Tensor):
                value = torch.from_numpy(value)
                value = value.pin_memory() if target.is_cuda else value
            target[: len(value)].copy_(value, non_blocking=True)
        return self.run()

    def run(self) -> Tensor | None:
        """Runs with the inputs as they are."""
        if self._graph is None:
            return self._call(*self.inputs)
        self._graph.replay()
        return self._out


GraphedSizes = dict[int, GraphedCall]  # a family: the same call by batch size, ascending


class GeneratorGraphs:
    """Prefill and frame of all slots of an engine; the scratch slot is the last one."""

    def __init__(
        self,
        generator: Generator,
        state: GeneratorState,
        cache: PagedCache,
        max_streams: int,
        max_context: int,
        max_prefill_rows: int,
        one_size: bool,
    ) -> None:
        """one_size: each call has its largest size only."""
        self._state, self._cache, self._scratch, self._max_context = state, cache, max_streams, max_context

        def indices(count: int) -> Tensor:
            return torch.full((count,), self._scratch, dtype=torch.int64, device=generator.device)

        def sizes(max_size: int, min_size: int = 1) -> tuple[int, ...]:
            return (max_size,) if one_size else batch_sizes(max_size, min_size)

        max_batch = min(max_streams, MAX_BATCH)
        # All sizes share one output: it is copied before the next call may write to it.
        self._flags = torch.zeros(max_batch, dtype=torch.int64, device=generator.device)
        self._all_flags = self._flags.repeat(MAX_FRAMES_PER_STEP)  # of the calls of a step
        self._frames: GraphedSizes = {
            size: GraphedCall(self._frame, indices(size), rows=size) for size in sizes(max_batch)
        }
        num_rows = max(max_prefill_rows, MIN_PREFILL_ROWS)
        # Parts of prompt rows that are not ids; zeros where a row has none.
        self._given = torch.zeros(num_rows, generator.hidden_size, dtype=generator.dtype, device=generator.device)
        self._prefills: GraphedSizes = {}
        for size in sizes(num_rows, MIN_PREFILL_ROWS):
            inputs = torch.zeros(4, size, dtype=torch.int64, device=generator.device)
            inputs[2] = self._scratch
            self._prefills[size] = GraphedCall(self._prefill, inputs)

    @property
    def frame_sizes(self) -> tuple[int, ...]:
        """The numbers of streams to which frame calls are padded."""
        return tuple(self._frames)

    @property
    def families(self) -> list[GraphedSizes]:
        return [self._prefills, self._frames]

    def prefill(self, inputs: Ints, given: Tensor | None) -> None:
        """inputs [4, N]: text ids, code ids, slots and positions; given [N, hidden] is added to their embeddings."""
        num_rows = inputs.shape[1]
        size = next_size(list(self._prefills), num_rows)
        padded = np.full((4, size), NO_ID)
        padded[:, :num_rows], padded[2:, num_rows:] = inputs, [[self._scratch], [0]]
        if given is not None:
            self._given[:num_rows].copy_(given)
        self._prefills[size](padded)
        if given is not None:
            self._given[:num_rows].zero_()

    def frame(self, slots: Ints, counts: Sequence[int]) -> Tensor:
        """One call after the other for the first counts[i] slots each; their flags [calls, slots]."""
        flags = self._all_flags[: len(counts) * len(slots)].view(len(counts), len(slots))
        for call, count in enumerate(counts):
            size = next_size(list(self._frames), count)
            frame = self._frames[size]
            repeated = call > 0 and count == counts[call - 1]
            found = frame.run() if repeated else frame(_padded(slots[:count], size, self._scratch))
            assert found is not None
            if len(counts) == 1:
                return found[None, :count]
            flags[call, :count].copy_(found[:count])
        return flags

    def _prefill(self, inputs: Tensor) -> None:
        slots, positions = inputs[2], inputs[3]
        given = self._given[: len(slots)]
        self._state.prefill(inputs[:2], given, slots, positions, self._cache, self._max_context, None)

    def _frame(self, slots: Tensor) -> Tensor:
        self._state.reset_scratch(self._scratch)
        return self._flags[: len(slots)].copy_(self._state.frame(slots, self._cache, self._max_context))


class VocoderGraphs:
    """Decode of all slots of an engine by chunk size; the scratch slot is the last one."""

    def __init__(
        self,
        vocoder: Vocoder,
        state: VocoderState,
        ring: Tensor | None,
        num_codebooks: int,
        max_streams: int,
        one_size: bool,
        pcm: bool,
    ) -> None:
        """ring: the generator's codes if they are on the same device; a call then gathers its codes from there.

        one_size: each call has its largest size only, and decodes one frame. pcm: the output is as `quantize` returns
        it, instead of float samples.
        """
        self._state, self._ring, self._scratch = state, ring, max_streams
        max_frames = max(min(max_streams, MAX_BATCH), CHUNK_SIZES[-1])  # of one decode step
        # All sizes share one output: it is copied before the next call may write to it.
        row = vocoder.samples_per_frame + pcm
        self._samples = torch.zeros(
            max_frames * row, dtype=torch.int16 if pcm else torch.float32, device=vocoder.device
        )

        def call(size: int, frames: int) -> GraphedCall:
            slots = torch.full((size,), self._scratch, dtype=torch.int64, device=vocoder.device)
            if ring is not None:
                return GraphedCall(self._gather_and_decode(frames), torch.stack([slots, torch.zeros_like(slots)]))
            codes = torch.zeros(size, frames, num_codebooks, dtype=torch.int64, device=vocoder.device)
            return GraphedCall(self._decode, slots, codes)

        self._calls: dict[int, GraphedSizes] = {
            frames: {
                size: call(size, frames)
                for size in ([max_frames // frames] if one_size else batch_sizes(max_frames // frames))
            }
            for frames in (CHUNK_SIZES[:1] if one_size else CHUNK_SIZES)
        }

    @property
    def families(self) -> list[GraphedSizes]:
        return list(self._calls.values())

    def decode(self, slots: Ints, frames: int, source: Ints | Tensor) -> Tensor:
        """source: the first frame of each slot in the ring, or codes [B, frames, num_codebooks]."""
        size = next_size(list(self._calls[frames]), len(slots))
        call, padded = self._calls[frames][size], _padded(slots, size, self._scratch)
        if isinstance(source, Tensor):
            samples = call(padded, source)
        else:
            samples = call(np.stack([padded, _padded(source, size, 0)]))  # one copy to the device
        assert samples is not None
        return samples[: len(slots)]

    def _decode(self, slots: Tensor, codes: Tensor) -> Tensor:
        self._state.reset_scratch(self._scratch)
        samples = self._state.decode(slots, codes)
        if self._samples.dtype == torch.int16:
            rows, size = samples.shape
            return quantize(samples, self._samples[: rows * (size + 1)].view(rows, size + 1))
        return self._samples[: samples.numel()].view_as(samples).copy_(samples)

    def _gather_and_decode(self, frames: int) -> Callable[[Tensor], Tensor]:
        def decode(slots_and_first: Tensor) -> Tensor:
            assert self._ring is not None
            slots, first = slots_and_first
            return self._decode(slots, gather_codes(self._ring, slots, first, frames))

        return decode


def gather_codes(ring: Tensor, slots: Tensor, first: Tensor, frames: int) -> Tensor:
    """The codes [B, frames, codebooks] of these slots [B] from frame first [B] on."""
    columns = torch.arange(frames, device=ring.device)
    return ring[slots[:, None], (first[:, None] + columns) % ring.shape[1]]


def capture_graphs(parts: Sequence[tuple[list[GraphedSizes], torch.cuda.Stream]], max_compilers: int) -> None:
    """Compiles all calls, then captures them. The calls of a part share its stream and one memory pool.

    max_compilers: processes that compile kernels which are not in the cache. Only the largest and the smallest call of
    a family run before the capture: they have most kernels of the others, whose remaining ones the capture loads.
    """
    all_calls = [(largest_first(families), stream) for families, stream in parts]
    first_calls = [
        ([call for family in families for call in _largest_and_smallest(family)], stream) for families, stream in parts
    ]
    on_devices = [DeviceCalls(stream.device, [call.run for call in calls]) for calls, stream in all_calls]
    with ParallelCompiler(on_devices, max_compilers) as compiler:
        _run_all(
            "compile",
            first_calls,
            lambda call, stream, _: call.compile(stream),
            compiler.begin_call,
            compiler.compile_missing,
        )
    pools = [torch.cuda.graph_pool_handle() for _ in parts]
    _run_all("capture", all_calls, lambda call, stream, index: call.capture(stream, pools[index]))


def _run_all(
    stage: Stage,
    parts: Sequence[tuple[list[GraphedCall], torch.cuda.Stream]],
    step: Callable[[GraphedCall, torch.cuda.Stream, int], None],
    before: Callable[[Report], None] = lambda _: None,
    after: Callable[[Report], int] = lambda _: 0,
) -> None:
    """Runs a step for each call and reports the progress.

    before: gets the report of more work within the step. after: more work after it, and the number of its units.
    """
    done, total = 0, sum(len(calls) for calls, _ in parts)

    def report(extra_done: int, extra_total: int) -> None:
        progress.report(stage, done + extra_done, total + extra_total)

    for index, (calls, stream) in enumerate(parts):
        with torch.cuda.device(stream.device):
            for call in calls:
                report(0, 0)
                before(report)
                step(call, stream, index)
                done += 1
                extra = after(report)
                done, total = done + extra, total + extra
            stream.synchronize()
    report(0, 0)


def largest_first(families: list[GraphedSizes]) -> list[GraphedCall]:
    """All calls, the largest of each family first, so that the smaller ones reuse its memory."""
    return [family[size] for family in families for size in sorted(family, reverse=True)]


def _largest_and_smallest(family: GraphedSizes) -> list[GraphedCall]:
    return [family[size] for size in sorted({max(family), min(family)}, reverse=True)]


def _padded(values: Ints, size: int, padding: int) -> Ints:
    return np.concatenate([values, np.full(size - len(values), padding)])
