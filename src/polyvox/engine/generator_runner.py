# SPDX-License-Identifier: Apache-2.0
"""Runs the generator on its device: prompt rows and frames of all slots."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from polyvox.engine.config import PAGE, EngineConfig
from polyvox.engine.cpu_threads import SMALL_MODEL, threads_for
from polyvox.engine.graphs import GeneratorGraphs
from polyvox.engine.kv_cache import KVCache
from polyvox.engine.pending import Pending
from polyvox.engine.stream_arrays import Ints
from polyvox.engine.stream_state import RING_FRAMES
from polyvox.engine.text_buffer import TextBuffer
from polyvox.models.protocol import Generator, PrefillMetadata, PreparedRequest, PromptRows

TEXT_IDS = 256  # text ids that a slot stores ahead of its frames
MAX_PREFILL_ROWS = 2048  # of one prefill on any machine: its activations are not part of the memory plan
DETERMINISTIC_PREFILL_ROWS = 256  # of every prefill of a deterministic engine


class GeneratorRunner:
    """The generator's state and KV cache for all slots, and its calls."""

    def __init__(self, generator: Generator, config: EngineConfig, fixed_sizes: bool) -> None:
        """fixed_sizes: calls are padded to fixed sizes, which a GPU captures as CUDA graphs."""
        self.generator, self.config = generator, config
        self.max_prefill_rows = DETERMINISTIC_PREFILL_ROWS if config.deterministic else MAX_PREFILL_ROWS
        num_slots = config.max_streams + fixed_sizes  # the last one is the scratch slot of padded calls
        self.state = generator.new_state(num_slots, TEXT_IDS, RING_FRAMES)
        max_pages = min(config.pages, -(-generator.max_positions // PAGE))
        self.cache = KVCache(
            generator.kv_shape, config.pages, num_slots, max_pages, generator.device, generator.kv_dtype
        )
        self.graphs: GeneratorGraphs | None = None
        if fixed_sizes:
            self.graphs = GeneratorGraphs(
                generator, self.state, self.cache, config.max_streams, max_pages * PAGE, self.max_prefill_rows,
                config.deterministic,
            )  # fmt: skip
        self._small = generator.kv_shape.layers * generator.hidden_size**2 <= SMALL_MODEL
        self._one_by_one = config.deterministic and not fixed_sizes  # calls of one stream, prefills of one row

    def assign(self, slot: int, pages: list[int], prepared: PreparedRequest) -> int:
        """Writes a stream's state to its slot; returns the number of text ids written."""
        self.cache.set_block_table(slot, pages)
        self.state.assign(slot, prepared)
        return min(len(prepared.text), TEXT_IDS)

    def write_text(self, slot: int, start: int, text: TextBuffer, frame: int) -> int:
        """Moves text to the frames from start on, as much as fits before the rings wrap to frame; returns how much."""
        ids, rows = text.take(frame + TEXT_IDS - start, frame + min(self.generator.given_rows, TEXT_IDS) - start)
        if ids:
            self.state.write_text(slot, start, ids, None if rows is None else torch.from_numpy(rows))
        return len(ids)

    def poison(self, slots: Sequence[int], pages: Sequence[int]) -> None:
        for slot in slots:
            self.state.poison(slot)
        self.cache.poison(list(pages))

    def prefill(self, work: list[tuple[int, int, PromptRows]]) -> None:
        """Reads prompt rows: of each (slot, start, rows), these rows at the positions from start on."""
        self.cache.upload()  # what else changed is sent for the frame call, while the device computes this one
        if self._one_by_one:  # a prompt may be read in any parts
            for slot, start, rows in work:
                for row in range(len(rows)):
                    self._prefill([(slot, start + row, rows[row : row + 1])])
        else:
            self._prefill(work)

    def _prefill(self, work: list[tuple[int, int, PromptRows]]) -> None:
        slots = np.repeat([slot for slot, _, _ in work], [len(rows) for _, _, rows in work])
        positions = np.concatenate([np.arange(start, start + len(rows)) for _, start, rows in work])
        ids = np.concatenate([rows.ids for _, _, rows in work], axis=1)
        given = self._given_rows(work)
        if self.graphs is not None:
            self.graphs.prefill(np.concatenate([ids, [slots, positions]]), given)
            return
        metadata = PrefillMetadata(
            self._indices([slot for slot, _, _ in work]),
            self._indices([owner for owner, (_, _, rows) in enumerate(work) for _ in range(len(rows))]),
            self._indices([i for _, _, rows in work for i in range(len(rows))]),
            max(len(rows) for *_, rows in work),
        )
        max_context = max(start + len(rows) for _, start, rows in work)
        with threads_for(self.generator.device, self._small, len(slots) // PAGE):
            at = self._indices(slots.tolist()), self._indices(positions.tolist())
            on_device = torch.from_numpy(ids).to(self.generator.device)
            self.state.prefill(on_device, given, *at, self.cache, max_context, metadata)

    def _given_rows(self, work: list[tuple[int, int, PromptRows]]) -> Tensor | None:
        """The given parts of all rows of a prefill [N, hidden]; None if there are none."""
        if all(rows.given is None for _, _, rows in work):
            return None
        num_rows, first = sum(len(rows) for _, _, rows in work), 0
        found = torch.zeros(
            num_rows, self.generator.hidden_size, dtype=self.generator.dtype, device=self.generator.device
        )
        for _, _, rows in work:
            if rows.given is not None:
                found[torch.from_numpy(first + rows.given_at).to(found.device)] = rows.given
            first += len(rows)
        return found

    def frame(self, slots: Ints, counts: Ints, contexts: Ints) -> Pending:
        """Generates counts frames of each slot, the slots with most first; their flags [calls, slots]."""
        self.cache.upload()
        self.state.upload()
        sizes = [int(np.count_nonzero(counts > call)) for call in range(int(counts[0]))]
        if self.graphs is not None:
            return Pending(self.graphs.frame(slots, sizes))
        indices = torch.from_numpy(slots).to(self.generator.device)
        flags = torch.zeros(len(sizes), len(slots), dtype=torch.int64, device=self.generator.device)
        with threads_for(self.generator.device, self._small, 0):
            for call, size in enumerate(sizes):
                batch_size = 1 if self._one_by_one else size
                for first in range(0, size, batch_size):
                    batch = slice(first, first + batch_size)
                    max_context = int(contexts[batch].max()) + call
                    flags[call, batch] = self.state.frame(indices[batch], self.cache, max_context)
        return Pending(flags)

    def _indices(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.generator.device)
