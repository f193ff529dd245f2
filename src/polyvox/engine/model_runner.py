# SPDX-License-Identifier: Apache-2.0
"""The device's side of a step: the state of all slots, and the three calls of the model over them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyvox.audio.clip import Samples
from polyvox.engine.config import PAGE, EngineConfig
from polyvox.engine.graphs import Graphs
from polyvox.engine.kv_cache import KVCache
from polyvox.engine.memory import MemoryUsage, fitted
from polyvox.engine.slots import SlotAllocation
from polyvox.engine.stream_state import RING_FRAMES
from polyvox.models.protocol import PrefillMetadata, PreparedRequest, SpeechModel
from polyvox.progress import OnProgress

TEXT_ROWS = 256  # text rows that a slot keeps ahead of its frames
SMALL_MODEL = 1 << 24  # layers × hidden²; the 0.6B model has 29 million
SHARED_WORK = 12  # frames of a codec call from which on a second thread pays, for a small model
MAX_ROWS = 2048  # of one prefill, whatever the machine: their activations are not counted in the memory
ONE_SIZE_ROWS = 256  # of every prefill of a deterministic engine
# Streams from which on a GPU launches a step before the previous one has completed: with fewer, its host keeps up.
MIN_STREAMS_TO_PIPELINE = 32


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
        stream = config.context * position + model.new_slots(1, TEXT_ROWS, RING_FRAMES).nbytes
        config = fitted(config, model.device, stream)
        self.model, self.config = model, config
        cuda = model.device.type == "cuda"
        fixed = config.deterministic or (cuda if config.cuda_graphs is None else config.cuda_graphs)
        self.max_prefill_rows = ONE_SIZE_ROWS if config.deterministic else MAX_ROWS
        # One more than streams have: it fills up calls of fixed size.
        self.rows = model.new_slots(config.max_streams + fixed, TEXT_ROWS, RING_FRAMES)
        longest = min(config.pages, -(-model.max_positions // PAGE))
        self.cache = KVCache(
            model.kv_shape, config.pages, config.max_streams + fixed, longest, model.device, model.dtype
        )
        self._graphs: Graphs | None = None
        if fixed:
            span, one_size = longest * PAGE, config.deterministic
            self._graphs = Graphs(
                model, self.rows, self.cache, config.max_streams, span, self.max_prefill_rows, one_size
            )
        self._beside = torch.cuda.Stream(model.device) if cuda else None  # for the codec
        default = MIN_STREAMS_TO_PIPELINE if cuda else 0
        self.min_streams_to_pipeline = (
            default if config.min_streams_to_pipeline is None else config.min_streams_to_pipeline
        )
        self._small = layers * model.hidden_size**2 <= SMALL_MODEL

    def assign(self, allocation: SlotAllocation, prepared: PreparedRequest) -> int:
        """Writes a stream's state to its slot; returns the number of text rows written."""
        self.cache.set_block_table(allocation.slot, allocation.pages)
        self.rows.assign(allocation.slot, prepared)
        return min(len(prepared.text), TEXT_ROWS)

    def clear(self, allocation: SlotAllocation) -> None:
        """Forgets the block table of a slot that is about to be released; no step in flight may use it."""
        self.cache.set_block_table(allocation.slot, [])
        self.poison([allocation.slot], allocation.pages)

    def shrink(self, allocation: SlotAllocation, freed: Sequence[int]) -> None:
        """Writes the block table of an allocation from which these pages were freed; no step uses them yet."""
        self.cache.set_block_table(allocation.slot, allocation.pages)
        self.poison([], freed)

    def poison(self, slots: Sequence[int], pages: Sequence[int]) -> None:
        """Fills free slots and pages with NaN, if the configuration asks for it."""
        if self.config.poison_freed:
            for slot in slots:
                self.rows.poison(slot)
            self.cache.poison(list(pages))

    def write_text(self, slot: int, start: int, text: Tensor, frame: int) -> int:
        """Writes text from row `start` on, as many rows as fit before the ring wraps to `frame`; returns how many."""
        count = min(len(text), frame + TEXT_ROWS - start)
        if count > 0:
            self.rows.write_text(slot, start, text[:count])
        return max(count, 0)

    def close_text(self, slot: int, num_bytes: int) -> int:
        """Tells the model that the text of a slot is complete; returns the most frames that it can need."""
        return self.rows.close_text(slot, num_bytes)

    def capture(self, on_progress: OnProgress | None = None) -> None:
        """Captures the CUDA graphs, on a GPU."""
        if self._graphs is None or self._beside is None:
            return

        def report(done: int, total: int) -> None:
            if on_progress is not None:
                on_progress("capture", done, total)

        self._graphs.capture(self._beside, report)

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

    def prefill(self, work: list[tuple[int, int, Tensor]]) -> None:
        """Reads prompt rows: of each (slot, start, rows), these rows at the positions from start on."""
        slots = [slot for slot, _, rows in work for _ in range(len(rows))]
        positions = [start + i for _, start, rows in work for i in range(len(rows))]
        if self._graphs is not None:
            self._graphs.prefill([rows for _, _, rows in work], slots, positions)
            return
        metadata = PrefillMetadata(
            self._index([slot for slot, _, _ in work]),
            self._index([owner for owner, (_, _, rows) in enumerate(work) for _ in range(len(rows))]),
            self._index([i for _, _, rows in work for i in range(len(rows))]),
            max(len(rows) for *_, rows in work),
        )
        max_context = max(start + len(rows) for _, start, rows in work)
        with self._threads(len(slots) // PAGE):
            at = self._index(slots), self._index(positions)
            self.rows.prefill(torch.cat([rows for _, _, rows in work]), *at, self.cache, max_context, metadata)

    def frame(self, work: list[tuple[int, int]]) -> Pending:
        """Generates one frame of each (slot, context), context being its prompt rows and frames so far; its flags."""
        slots = [slot for slot, _ in work]
        if self._graphs is not None:
            return Pending(self._graphs.frame(slots))
        max_context = max(context for _, context in work)
        with self._threads(0):
            return Pending(self.rows.frame(self._index(slots), self.cache, max_context))

    def decode(self, work: list[tuple[int, int, int]]) -> PendingAudio:
        """Samples of each (slot, first frame, number of frames); the frame steps that made them have completed."""
        groups = []
        with torch.cuda.stream(self._beside) if self._beside else nullcontext():
            for size in sorted({count for _, _, count in work}):
                group = [i for i, (_, _, count) in enumerate(work) if count == size]
                slots, first = [work[i][0] for i in group], [work[i][1] for i in group]
                if self._graphs is not None:
                    samples = self._graphs.decode(slots, first, size)
                else:
                    with self._threads(size * len(group)):
                        samples = self.rows.decode(self._index(slots), self._index(first), size)
                groups.append((group, Pending(samples)))
        return PendingAudio(groups)

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
