"""CUDA graphs: the model's three calls at fixed sizes, captured at start and replayed; no other file knows of them.

A call is filled up to the next size with a slot that nobody has. Away from a GPU the same calls run at the same sizes
without being captured, which is how they are tested.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from polyvox.engine.stream_state import CHUNK_SIZES
from polyvox.models.protocol import Cache, SlotRows, SpeechModel

MIN_ROWS = 16  # of a prefill
Report = Callable[[int, int], None]  # captured so far, and in all


def sizes(most: int, least: int = 1) -> list[int]:
    """Powers of two, from 16 on also the middles between them, and the most itself: at most half a call is idle."""
    powers = [least << i for i in range(most.bit_length()) if least << i < most]
    middles = [size + size // 2 for size in powers if size >= 16 and size + size // 2 < most]
    return sorted({*powers, *middles, most})


class Program:
    """A call whose inputs stay where they are."""

    def __init__(self, call: Callable[..., Tensor | None], *inputs: Tensor) -> None:
        self.inputs, self._call = inputs, call
        self._graph: torch.cuda.CUDAGraph | None = None
        self._out: Tensor | None = None

    def capture(self, stream: torch.cuda.Stream, pool: Any) -> None:
        with torch.cuda.stream(stream):  # libraries take their workspaces, and kernels are compiled
            self._call(*self.inputs)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self._out = self._call(*self.inputs)
        self._graph = graph

    def __call__(self, *values: Tensor | Sequence[int]) -> Tensor | None:
        """Fills the inputs from the front, and runs."""
        for place, value in zip(self.inputs, values, strict=True):
            if not isinstance(value, Tensor):
                value = torch.tensor(value, dtype=place.dtype, pin_memory=place.is_cuda)
            place[: len(value)].copy_(value, non_blocking=True)
        if self._graph is None:
            return self._call(*self.inputs)
        self._graph.replay()
        return self._out


class Graphs:
    """The three calls over all slots of an engine, the last of which is the one that fills up."""

    def __init__(
        self, model: SpeechModel, rows: SlotRows, cache: Cache, slots: int, span: int, prompt: int, one_size: bool
    ) -> None:
        """slots: that streams have. span: the most positions of one. prompt: the most rows of a prefill.

        one_size: each call has its largest size only, and the codec reads frame by frame.
        """
        self._rows, self._cache, self._scratch, self._span = rows, cache, slots, span
        self._device = model.device

        def index(count: int) -> Tensor:
            return torch.full((count,), slots, dtype=torch.int64, device=model.device)

        # What the calls of a family give lies in one place: the next one may write there once it was copied.
        self._flags = torch.zeros(slots, dtype=torch.int64, device=model.device)
        most = max(slots, CHUNK_SIZES[-1])  # frames of a codec step, by the scheduler
        self._sound = torch.zeros(most * model.samples_per_frame, device=model.device)

        def family(most: int, least: int = 1) -> list[int]:
            return [most] if one_size else sizes(most, least)

        self._frames = {size: Program(self._frame, index(size)) for size in family(slots)}
        hidden = torch.zeros(max(prompt, MIN_ROWS), model.hidden_size, dtype=model.dtype, device=model.device)
        self._prefills = {
            size: Program(self._prefill, hidden[:size], index(size), torch.zeros_like(index(size)))
            for size in family(max(prompt, MIN_ROWS), MIN_ROWS)
        }
        self._codecs = {
            frames: {
                size: Program(self._decode(frames), index(size), torch.zeros_like(index(size)))
                for size in family(most // frames)
            }
            for frames in (CHUNK_SIZES[:1] if one_size else CHUNK_SIZES)
        }

    def capture(self, codec: torch.cuda.Stream, report: Report) -> None:
        """Captures all of it, the largest first, so that the smaller ones find their memory there."""
        work = list(self._in_order())
        side = torch.cuda.Stream(self._device)
        frame_pool, codec_pool = torch.cuda.graph_pool_handle(), torch.cuda.graph_pool_handle()
        for done, (program, beside) in enumerate(work):
            program.capture(*((codec, codec_pool) if beside else (side, frame_pool)))
            report(done + 1, len(work))

    def prefill(self, rows: list[Tensor], slots: list[int], positions: list[int]) -> None:
        size = _next(self._prefills, len(slots))
        idle = size - len(slots)
        self._prefills[size](torch.cat(rows), slots + [self._scratch] * idle, positions + [0] * idle)

    def frame(self, slots: list[int]) -> Tensor:
        size = _next(self._frames, len(slots))
        flags = self._frames[size](slots + [self._scratch] * (size - len(slots)))
        assert flags is not None
        return flags[: len(slots)]

    def decode(self, slots: list[int], first: list[int], frames: int) -> Tensor:
        size = _next(self._codecs[frames], len(slots))
        idle = size - len(slots)
        sound = self._codecs[frames][size](slots + [self._scratch] * idle, first + [0] * idle)
        assert sound is not None
        return sound[: len(slots)]

    def _in_order(self) -> Iterator[tuple[Program, bool]]:
        for beside, families in ((False, [self._prefills, self._frames]), (True, list(self._codecs.values()))):
            for family in families:
                yield from ((family[size], beside) for size in sorted(family, reverse=True))

    def _prefill(self, rows: Tensor, slots: Tensor, positions: Tensor) -> None:
        self._rows.prefill(rows, slots, positions, self._cache, self._span, None)

    def _frame(self, slots: Tensor) -> Tensor:
        self._rows.idle(self._scratch)
        return self._flags[: len(slots)].copy_(self._rows.frame(slots, self._cache, self._span))

    def _decode(self, frames: int) -> Callable[[Tensor, Tensor], Tensor]:
        def decode(slots: Tensor, first: Tensor) -> Tensor:
            samples = self._rows.decode(slots, first, frames)
            return self._sound[: samples.numel()].view_as(samples).copy_(samples)

        return decode


def _next(family: dict[int, Program], count: int) -> int:
    """The smallest size that holds so many."""
    ordered = list(family)
    return ordered[bisect_left(ordered, count)]
