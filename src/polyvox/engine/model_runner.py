"""The device's side of a step: slots and pages by index, and the three calls of the model over them."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from polyvox.audio.clip import Samples
from polyvox.engine.config import PAGE, EngineConfig
from polyvox.engine.cost_model import CostModel
from polyvox.engine.graphs import Graphs
from polyvox.engine.kv_cache import KVCache
from polyvox.engine.memory import MemoryUsage, fitted
from polyvox.engine.stream_state import CHUNKS
from polyvox.models.protocol import PrefillMetadata, PreparedRequest, SpeechModel

RING = 2 * CHUNKS[-1]  # frames that a slot keeps for the codec
CALIBRATION_CALLS, CALIBRATION_SECONDS = 4, 0.5  # of each measurement at start
TEXT_ROWS = 256  # text rows that a slot keeps ahead of its frames
SMALL_MODEL = 1 << 24  # layers × hidden²; the 0.6B model has 29 million
SHARED_WORK = 12  # frames of a codec call from which on a second thread pays, for a small model
MAX_ROWS = 2048  # of one prefill, whatever the machine: their activations are not counted in the memory
ONE_SIZE_ROWS = 256  # of every prefill of a deterministic engine
CROWD = 32  # streams from which on a GPU would wait for its host, were no step queued behind the one that runs


@dataclass(slots=True, eq=False)
class SlotAllocation:
    """A slot and the pages that belong to it while a stream has them."""

    slot: int
    pages: list[int]
    prompt: Tensor | None  # dropped once it is read
    rows: int  # of the prompt
    text_end: int = 0  # text rows written so far


class Pending:
    """What a call gives, on its way to the host."""

    def __init__(self, value: Tensor) -> None:
        self._done: torch.cuda.Event | None = None
        if value.is_cuda:
            self._value = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            self._value.copy_(value, non_blocking=True)
            self._done = torch.cuda.Event(blocking=True)
            self._done.record(torch.cuda.current_stream(value.device))
        else:
            self._value = value.clone()  # the next call may give its own in the same place

    def get(self) -> NDArray[np.generic]:
        """Waits for it."""
        if self._done is not None:
            self._done.synchronize()
        return self._value.numpy()


@dataclass(frozen=True, slots=True)
class PendingAudio:
    """The samples of a codec step, by the sizes of its chunks, and where each belongs in the order of the plan."""

    groups: list[tuple[list[int], Pending]]

    def get(self) -> list[Samples]:
        """Rows of memory that they share, copied once: what a copy from the device lands in is soon wanted again."""
        found: dict[int, Samples] = {}
        for group, pending in self.groups:
            found |= zip(group, pending.get().astype(np.float32), strict=True)
        return [found[i] for i in range(len(found))] if len(self.groups) > 1 else list(found.values())


class ModelRunner:
    """All streams' state, and the work of one step on it."""

    def __init__(self, model: SpeechModel, config: EngineConfig) -> None:
        layers, kv_heads, head_dim = model.kv_shape
        position = 2 * layers * kv_heads * head_dim * model.dtype.itemsize
        stream = config.context * position + model.new_slots(1, TEXT_ROWS, RING).nbytes
        config = fitted(config, model.device, stream)
        self.model, self.config = model, config
        cuda = model.device.type == "cuda"
        fixed = config.deterministic or (cuda if config.cuda_graphs is None else config.cuda_graphs)
        self.prompt_rows = ONE_SIZE_ROWS if config.deterministic else MAX_ROWS
        # One more than streams have: it fills up calls of fixed size.
        self.rows = model.new_slots(config.max_streams + fixed, TEXT_ROWS, RING)
        longest = min(config.pages, -(-model.max_positions // PAGE))
        self.cache = KVCache(
            model.kv_shape, config.pages, config.max_streams + fixed, longest, model.device, model.dtype
        )
        self._graphs: Graphs | None = None
        if fixed:
            span, one_size = longest * PAGE, config.deterministic
            self._graphs = Graphs(model, self.rows, self.cache, config.max_streams, span, self.prompt_rows, one_size)
        self._beside = torch.cuda.Stream(model.device) if cuda else None  # for the codec
        self.ahead = (
            config.min_streams_to_pipeline if config.min_streams_to_pipeline is not None else CROWD if cuda else 0
        )
        self.free_slots = list(range(config.max_streams))
        self.free_pages = list(range(1, config.pages + 1))
        self._small = layers * model.hidden_size**2 <= SMALL_MODEL

    def seat(self, prepared: PreparedRequest, pages: int) -> SlotAllocation:
        """Gives a stream its slot and all the pages it may ever need."""
        taken = [self.free_pages.pop() for _ in range(pages)]
        seat = SlotAllocation(self.free_slots.pop(), taken, prepared.rows, len(prepared.rows))
        try:
            self.cache.give(seat.slot, seat.pages)
            self.rows.seat(seat.slot, prepared)
        except BaseException:
            self.leave(seat)
            raise
        seat.text_end = min(len(prepared.text), TEXT_ROWS)
        return seat

    def leave(self, seat: SlotAllocation) -> None:
        """Takes slot and pages back; nothing that is under way may name them any more."""
        self.cache.give(seat.slot, [])
        self.poison([seat.slot], seat.pages)
        self.free_slots.append(seat.slot)
        self.free_pages += seat.pages
        seat.pages = []

    def shrink(self, seat: SlotAllocation, kept: int) -> None:
        """Takes the pages behind the first so many back, which no step names yet."""
        seat.pages, freed = seat.pages[:kept], seat.pages[kept:]
        self.cache.give(seat.slot, seat.pages)
        self.poison([], freed)
        self.free_pages += freed

    def poison(self, slots: list[int], pages: list[int]) -> None:
        """Spoils what is free, where the configuration asks for it."""
        if self.config.poison_freed:
            for slot in slots:
                self.rows.poison(slot)
            self.cache.poison(pages)

    def write_text(self, seat: SlotAllocation, text: Tensor, frame: int) -> int:
        """As much of more text as there is room for behind the frame that is read next; how much that was."""
        count = min(len(text), frame + TEXT_ROWS - seat.text_end)
        if count > 0:
            self.rows.write_text(seat.slot, seat.text_end, text[:count])
            seat.text_end += count
        return max(count, 0)

    def capture(self) -> None:
        """Makes the graphs of a GPU."""
        if self._graphs is None or self._beside is None:
            return
        console = Console(stderr=True)
        columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("Capturing graphs", total=None)
            self._graphs.capture(self._beside, lambda done, total: bar.update(task, completed=done, total=total))

    def wait(self) -> None:
        """Until nothing is under way on the device; raises where it is broken."""
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)

    def memory(self) -> list[MemoryUsage]:
        """What has the memory; of a GPU also what is not ours to choose."""
        model, config = self.model, self.config
        streams = f"{config.max_streams} streams (max_streams)"
        pages = f"{streams} × {config.context} positions (context) in {config.pages} pages of {PAGE}"
        kind = str(model.dtype).removeprefix("torch.")
        found = [
            MemoryUsage("weights", model.nbytes, f"{kind} on {model.device} (model, dtype)"),
            MemoryUsage("keys and values", self.cache.nbytes, pages),
            MemoryUsage("slots", self.rows.nbytes, streams),
        ]
        if model.device.type == "cuda":
            ours, held = torch.cuda.memory_reserved(model.device), sum(share.size for share in found)
            free, total = torch.cuda.mem_get_info(model.device)
            found.append(MemoryUsage("graphs and workspaces", ours - held, f"calls of up to {streams}"))
            found.append(MemoryUsage("driver and others", total - free - ours, f"{free / 1e9:.2f} GB more are free"))
        return found

    def prefill(self, work: list[tuple[SlotAllocation, int, int]]) -> None:
        """Prompt rows: of each seat, so many from a start on."""
        rows = [seat.prompt[start : start + count] for seat, start, count in work if seat.prompt is not None]
        slots = [seat.slot for seat, _, count in work for _ in range(count)]
        positions = [start + i for _, start, count in work for i in range(count)]
        if self._graphs is not None:
            self._graphs.prefill(rows, slots, positions)
        else:
            pack = PrefillMetadata(
                self._index([seat.slot for seat, _, _ in work]),
                self._index([owner for owner, (_, _, count) in enumerate(work) for _ in range(count)]),
                self._index([i for _, _, count in work for i in range(count)]),
                max(count for *_, count in work),
            )
            span = max(start + count for _, start, count in work)
            with self._threads(len(slots) // PAGE):
                at = self._index(slots), self._index(positions)
                self.rows.prefill(torch.cat(rows), *at, self.cache, span, pack)
        for seat, start, count in work:
            if start + count == seat.rows - 1 and seat.pages:
                seat.prompt = None

    def frame(self, work: list[tuple[SlotAllocation, int]]) -> Pending:
        """One frame of each seat, of which so many are begun already; its flags."""
        slots = [seat.slot for seat, _ in work]
        if self._graphs is not None:
            return Pending(self._graphs.frame(slots))
        span = max(seat.rows + begun for seat, begun in work)
        with self._threads(0):
            return Pending(self.rows.frame(self._index(slots), self.cache, span))

    def decode(self, work: list[tuple[SlotAllocation, int, int]]) -> PendingAudio:
        """Samples of each seat's frames: so many from a first on. They were made by frame steps that are over."""
        groups = []
        with torch.cuda.stream(self._beside) if self._beside else nullcontext():
            for size in sorted({count for _, _, count in work}):
                group = [i for i, (_, _, count) in enumerate(work) if count == size]
                slots, first = [work[i][0].slot for i in group], [work[i][1] for i in group]
                if self._graphs is not None:
                    samples = self._graphs.decode(slots, first, size)
                else:
                    with self._threads(size * len(group)):
                        samples = self.rows.decode(self._index(slots), self._index(first), size)
                groups.append((group, Pending(samples)))
        return PendingAudio(groups)

    def calibrate(self) -> CostModel:
        """Times the three calls, of one stream and of all, on free slots, before anyone speaks."""
        many, begun = len(self.free_slots), itertools.count(1)
        prompt = torch.zeros(PAGE, self.model.hidden_size, device=self.model.device, dtype=self.model.dtype)
        seats = [SlotAllocation(slot, [], prompt, PAGE) for slot in self.free_slots]

        def timed(call: Callable[[list[SlotAllocation]], object], streams: int) -> float:
            times: list[float] = []
            # The first call warms up, whatever it takes.
            while len(times) < 2 or (len(times) < CALIBRATION_CALLS and sum(times) < CALIBRATION_SECONDS):
                began = time.perf_counter()
                call(seats[:streams])
                self.wait()
                times.append(time.perf_counter() - began)
            return min(times[1:])

        def line(call: Callable[[list[SlotAllocation]], object], most: int) -> tuple[float, float]:
            """Seconds of any call, and of each stream in it, of which there may be so many."""
            one = timed(call, 1)
            each = max(timed(call, most) - one, 1e-3 * one) / max(most - 1, 1)
            return max(one - each, 0.0), each

        def frame(some: list[SlotAllocation]) -> None:
            calls = next(begun)
            self.frame([(seat, calls) for seat in some])

        chunk, rows = CHUNKS[0 if self.config.deterministic else 2], PAGE - 1
        step, stream = line(frame, many)
        chunks, prompts = max(1, many // chunk), min(many, self.prompt_rows // rows)
        codec, codec_chunk = line(lambda some: self.decode([(seat, 0, chunk) for seat in some]), chunks)
        prefill = timed(lambda some: self.prefill([(seat, 0, rows) for seat in some]), prompts)
        self.poison(self.free_slots, self.free_pages)
        return CostModel(step, stream, prefill / (prompts * rows), codec, codec_chunk / chunk)

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
