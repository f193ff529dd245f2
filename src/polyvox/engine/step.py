"""The device's side of a step: slots and pages by index, and the three calls of the model over them."""

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyvox.audio.clip import Samples
from polyvox.engine.config import EngineConfig
from polyvox.engine.cost import CostModel
from polyvox.engine.kv import PAGE, PagedKV
from polyvox.engine.track import CHUNKS
from polyvox.models.protocol import Prepared, SpeechModel

RING = 2 * CHUNKS[-1]  # frames that a slot keeps for the codec
CALIBRATION_CALLS, CALIBRATION_SECONDS = 4, 0.5  # of each measurement at start
TEXT_ROWS = 256  # text rows that a slot keeps ahead of its frames


@dataclass(slots=True, eq=False)
class Seat:
    """A slot and the pages that belong to it while a stream has them."""

    slot: int
    pages: list[int]
    prompt: Tensor | None  # dropped once it is read
    rows: int  # of the prompt
    text_end: int = 0  # text rows written so far


class Stepper:
    """All streams' state, and the work of one step on it."""

    def __init__(self, model: SpeechModel, config: EngineConfig) -> None:
        self.model, self.config = model, config
        self.rows = model.new_slots(config.slots, TEXT_ROWS, RING)
        self.cache = PagedKV(model.kv_shape, config.pages, config.slots, config.pages, model.device, model.dtype)
        self.free_slots = list(range(config.slots))
        self.free_pages = list(range(1, config.pages + 1))

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
        parts = []
        for seat, start, count in work:
            assert seat.prompt is not None
            parts.append(seat.prompt[start : start + count])
        rows = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
        slots, starts, counts = (
            self._index(column) for column in zip(*((s.slot, a, n) for s, a, n in work), strict=True)
        )
        span = max(start + count for _, start, count in work)
        self.rows.prefill(rows, slots, starts, counts, self.cache, span)
        for seat, start, count in work:
            if start + count == seat.rows - 1:
                seat.prompt = None

    def frame(self, work: list[tuple[Seat, int]]) -> Tensor:
        """One frame of each seat, of which so many are begun already; its flags, still on the device."""
        span = max(seat.rows + begun for seat, begun in work)
        return self.rows.frame(self._index([seat.slot for seat, _ in work]), self.cache, span)

    def decode(self, work: list[tuple[Seat, int, int]]) -> list[Samples]:
        """Samples of each seat's frames: so many from a first on."""
        found: dict[int, Samples] = {}
        for size in {count for _, _, count in work}:
            group = [i for i, (_, _, count) in enumerate(work) if count == size]
            slots = self._index([work[i][0].slot for i in group])
            first = self._index([work[i][1] for i in group])
            samples = self.rows.decode(slots, first, size).float().cpu().numpy()
            found |= {i: np.ascontiguousarray(row) for i, row in zip(group, samples, strict=True)}
        return [found[i] for i in range(len(work))]

    def calibrate(self) -> CostModel:
        """Times the three calls alone and together on free slots, before anyone speaks."""
        many = len(self.free_slots)
        seats = [Seat(slot, [], torch.zeros(0), 1) for slot in self.free_slots]
        prompt = torch.zeros(PAGE, self.model.hidden_size, device=self.model.device, dtype=self.model.dtype)

        def timed(streams: int, frames: int) -> float:
            some = seats[:streams]
            calls = (
                (lambda: self.decode([(seat, 0, frames) for seat in some]))
                if frames
                else (lambda: self.frame([(seat, 0) for seat in some]).cpu())
            )
            times: list[float] = []
            # The first call warms up, whatever it takes.
            while len(times) < 2 or (len(times) < CALIBRATION_CALLS and sum(times) < CALIBRATION_SECONDS):
                began = time.perf_counter()
                calls()
                times.append(time.perf_counter() - began)
            return min(times[1:])

        one, all_ = timed(1, 0), timed(many, 0)
        chunk = CHUNKS[2]
        codec_one, codec_all = timed(1, chunk), timed(many, chunk)
        for seat in seats:
            seat.prompt, seat.rows = prompt, PAGE + 1
        began = time.perf_counter()
        self.prefill([(seats[0], 0, PAGE)])
        row = (time.perf_counter() - began) / PAGE
        self.poison(self.free_slots, self.free_pages)
        each = max(all_ - one, 0.0) / max(many - 1, 1)
        codec_each = max(codec_all - codec_one, codec_one * 1e-3) / max(many - 1, 1) / chunk
        return CostModel(max(one - each, 1e-6), each, row, max(codec_one - codec_each * chunk, 0.0), codec_each)

    def _index(self, values: list[int] | tuple[int, ...]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.model.device)
