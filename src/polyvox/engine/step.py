"""The device's side of a step: slots and pages by index, and the three calls of the model over them."""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polyvox.audio.clip import Samples
from polyvox.engine.config import PAGE, EngineConfig
from polyvox.engine.cost import CostModel
from polyvox.engine.kv import PagedKV
from polyvox.engine.track import CHUNKS
from polyvox.errors import InvalidRequest
from polyvox.models.protocol import Prepared, SpeechModel

RING = 2 * CHUNKS[-1]  # frames that a slot keeps for the codec
CALIBRATION_CALLS, CALIBRATION_SECONDS = 4, 0.5  # of each measurement at start
TEXT_ROWS = 256  # text rows that a slot keeps ahead of its frames
SMALL_MODEL = 1 << 24  # layers × hidden²; the 0.6B model has 29 million
SHARED_WORK = 12  # frames of a codec call from which on a second thread pays, for a small model


@dataclass(slots=True, eq=False)
class Seat:
    """A slot and the pages that belong to it while a stream has them."""

    slot: int
    pages: list[int]
    prompt: Tensor | None  # dropped once it is read
    rows: int  # of the prompt
    text_end: int = 0  # text rows written so far


def _memory() -> int:
    """Bytes that this machine, or the group that this process is kept in, has in all."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # "max", or no such group
        there = min(there, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return there


class Stepper:
    """All streams' state, and the work of one step on it."""

    def __init__(self, model: SpeechModel, config: EngineConfig) -> None:
        self.model, self.config = model, config
        self._check_memory()
        self.rows = model.new_slots(config.slots, TEXT_ROWS, RING)
        longest = min(config.pages, -(-model.max_positions // PAGE))
        self.cache = PagedKV(model.kv_shape, config.pages, config.slots, longest, model.device, model.dtype)
        self.free_slots = list(range(config.slots))
        self.free_pages = list(range(1, config.pages + 1))
        layers, _, _ = model.kv_shape
        self._small = layers * model.hidden_size**2 <= SMALL_MODEL

    def _check_memory(self) -> None:
        """Raises InvalidRequest where the slots and pages that are asked for cannot fit."""
        config, model = self.config, self.model
        layers, kv_heads, head_dim = model.kv_shape
        one = config.context * 2 * layers * kv_heads * head_dim * model.dtype.itemsize
        one += model.new_slots(1, TEXT_ROWS, RING).nbytes
        if model.device.type == "cuda":
            there, _ = torch.cuda.mem_get_info(model.device)
        else:
            there = _memory()
        if config.memory_gb is not None:
            there = min(there, int(config.memory_gb * 1e9))
        if one * config.slots > there:
            needed = f"{one * config.slots / 1e9:.1f} GB are needed and {there / 1e9:.1f} GB are there"
            most = f"at most {int(there // one)} with a context of {config.context}, or a smaller context ({needed})"
            raise InvalidRequest("slots", config.slots, most)

    def seat(self, prepared: Prepared, pages: int) -> Seat:
        """Gives a stream its slot and all the pages it may ever need."""
        taken = [self.free_pages.pop() for _ in range(pages)]
        seat = Seat(self.free_slots.pop(), taken, prepared.rows, len(prepared.rows))
        try:
            self.cache.give(seat.slot, seat.pages)
            self.rows.seat(seat.slot, prepared)
        except BaseException:
            self.leave(seat)
            raise
        seat.text_end = min(len(prepared.text), TEXT_ROWS)
        return seat

    def leave(self, seat: Seat) -> None:
        """Takes slot and pages back; nothing that is under way may name them any more."""
        self.cache.give(seat.slot, [])
        self.poison([seat.slot], seat.pages)
        self.free_slots.append(seat.slot)
        self.free_pages += seat.pages
        seat.pages = []

    def shrink(self, seat: Seat, kept: int) -> None:
        """Takes the pages behind the first so many back, which no step names yet."""
        seat.pages, freed = seat.pages[:kept], seat.pages[kept:]
        self.cache.give(seat.slot, seat.pages)
        self.poison([], freed)
        self.free_pages += freed

    def poison(self, slots: list[int], pages: list[int]) -> None:
        """Spoils what is free, where the configuration asks for it."""
        if self.config.poison:
            for slot in slots:
                self.rows.poison(slot)
            self.cache.poison(pages)

    def write_text(self, seat: Seat, text: Tensor, frame: int) -> int:
        """As much of more text as there is room for behind the frame that is read next; how much that was."""
        count = min(len(text), frame + TEXT_ROWS - seat.text_end)
        if count > 0:
            self.rows.write_text(seat.slot, seat.text_end, text[:count])
            seat.text_end += count
        return max(count, 0)

    def prefill(self, work: list[tuple[Seat, int, int]]) -> None:
        """Prompt rows: of each seat, so many from a start on."""
        rows = torch.cat([seat.prompt[start : start + count] for seat, start, count in work if seat.prompt is not None])
        columns = zip(*((seat.slot, start, count) for seat, start, count in work), strict=True)
        slots, starts, counts = (self._index(column) for column in columns)
        span = max(start + count for _, start, count in work)
        with self._threads(len(rows) // PAGE):
            self.rows.prefill(rows, slots, starts, counts, max(count for *_, count in work), self.cache, span)
        for seat, start, count in work:
            if start + count == seat.rows - 1 and seat.pages:
                seat.prompt = None

    def frame(self, work: list[tuple[Seat, int]]) -> Tensor:
        """One frame of each seat, of which so many are begun already; its flags, still on the device."""
        span = max(seat.rows + begun for seat, begun in work)
        with self._threads(0):
            return self.rows.frame(self._index([seat.slot for seat, _ in work]), self.cache, span)

    def decode(self, work: list[tuple[Seat, int, int]]) -> list[Samples]:
        """Samples of each seat's frames: so many from a first on."""
        found: dict[int, Samples] = {}
        for size in {count for _, _, count in work}:
            group = [i for i, (_, _, count) in enumerate(work) if count == size]
            slots = self._index([work[i][0].slot for i in group])
            first = self._index([work[i][1] for i in group])
            with self._threads(size * len(group)):
                samples = self.rows.decode(slots, first, size).float().cpu().numpy()
            found |= {i: np.ascontiguousarray(row) for i, row in zip(group, samples, strict=True)}
        return [found[i] for i in range(len(work))]

    def calibrate(self) -> CostModel:
        """Times the three calls, of one stream and of all, on free slots, before anyone speaks."""
        many, begun = len(self.free_slots), itertools.count(1)
        prompt = torch.zeros(PAGE, self.model.hidden_size, device=self.model.device, dtype=self.model.dtype)
        seats = [Seat(slot, [], prompt, PAGE) for slot in self.free_slots]

        def timed(call: Callable[[list[Seat]], object], streams: int) -> float:
            times: list[float] = []
            # The first call warms up, whatever it takes.
            while len(times) < 2 or (len(times) < CALIBRATION_CALLS and sum(times) < CALIBRATION_SECONDS):
                began = time.perf_counter()
                call(seats[:streams])
                if self.model.device.type == "cuda":
                    torch.cuda.synchronize(self.model.device)
                times.append(time.perf_counter() - began)
            return min(times[1:])

        def line(call: Callable[[list[Seat]], object]) -> tuple[float, float]:
            """Seconds of any call, and of each stream in it."""
            one = timed(call, 1)
            each = max(timed(call, many) - one, 1e-3 * one) / max(many - 1, 1)
            return max(one - each, 0.0), each

        def frame(some: list[Seat]) -> None:
            calls = next(begun)
            self.frame([(seat, calls) for seat in some])

        chunk, rows = CHUNKS[2], PAGE - 1
        step, stream = line(frame)
        codec, codec_chunk = line(lambda some: self.decode([(seat, 0, chunk) for seat in some]))
        prefill = timed(lambda some: self.prefill([(seat, 0, rows) for seat in some]), many)
        self.poison(self.free_slots, self.free_pages)
        return CostModel(step, stream, prefill / (many * rows), codec, codec_chunk / chunk)

    @contextmanager
    def _threads(self, work: int) -> Iterator[None]:
        """On a CPU, small work is done sooner by one thread than it is shared out."""
        alone = self.model.device.type == "cpu" and self._small and work < SHARED_WORK
        threads = torch.get_num_threads()
        if alone:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            if alone:
                torch.set_num_threads(threads)  # it holds for others in this process too

    def _index(self, values: list[int] | tuple[int, ...]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.model.device)
