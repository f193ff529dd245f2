# SPDX-License-Identifier: Apache-2.0
"""The device's side of a step: the generator and the vocoder, each on its device, over the slots of all streams."""

from collections.abc import Sequence

import torch

from polyvox.audio.pcm import Audio
from polyvox.engine.config import PAGE, EngineConfig
from polyvox.engine.cpu_threads import SMALL_MODEL
from polyvox.engine.generator_runner import GeneratorRunner
from polyvox.engine.graphs import capture_graphs
from polyvox.engine.memory import MemoryUsage, device_usage, limit_gpu_memory, machine_memory, plan_memory
from polyvox.engine.parallel_compiler import max_compilers
from polyvox.engine.pending import Pending, PendingAudio
from polyvox.engine.slots import SlotAllocation
from polyvox.engine.stream_arrays import Ints
from polyvox.engine.text_buffer import TextBuffer
from polyvox.engine.vocoder_runner import VocoderRunner
from polyvox.models.protocol import PreparedRequest, PromptRows, SpeechModel

# Streams from which on a GPU launches a step before the previous one has completed: with fewer, its host keeps up.
MIN_STREAMS_TO_PIPELINE = 32
# Live streams from which on it does so: with fewer, the device has time left, and a new stream need not wait for one
# more step.
MIN_LIVE_TO_PIPELINE = 128


class ModelRunner:
    """A generator and a vocoder with the same slots."""

    def __init__(self, model: SpeechModel, config: EngineConfig, copies_codes: bool | None = None) -> None:
        """copies_codes: see VocoderRunner."""
        generator, vocoder = model.generator, model.vocoder
        plan = plan_memory(model, config)
        config = plan.config
        self.model, self.config, self.slots_limited_by = model, config, plan.limited_by
        for device in {generator.device, vocoder.device}:
            limit_gpu_memory(device, config.memory_gb)
        small = generator.kv_shape.layers * generator.hidden_size**2 <= SMALL_MODEL
        cuda = generator.device.type == "cuda"
        self.generator = GeneratorRunner(generator, config, _fixed_sizes(config, generator.device))
        self.vocoder = VocoderRunner(
            vocoder,
            self.generator.state.codes,
            config.max_streams,
            small,
            _fixed_sizes(config, vocoder.device),
            config.deterministic,
            copies_codes,
            config.pcm,
        )
        self.max_prefill_rows = self.generator.max_prefill_rows
        self.frame_sizes = self.generator.graphs.frame_sizes if self.generator.graphs else ()
        self.decode_blocks = cuda and vocoder.device.type != "cuda"  # a decode computes before it returns
        default = MIN_STREAMS_TO_PIPELINE if cuda else 0
        self.min_streams_to_pipeline = (
            default if config.min_streams_to_pipeline is None else config.min_streams_to_pipeline
        )
        self.min_live_to_pipeline = MIN_LIVE_TO_PIPELINE if config.min_streams_to_pipeline is None else 0

    def assign(self, allocation: SlotAllocation, prepared: PreparedRequest) -> int:
        """Writes a stream's state to its slot; returns the number of text ids written."""
        num_text_ids = self.generator.assign(allocation.slot, allocation.pages, prepared)
        self.vocoder.assign(allocation.slot, prepared.vocoder_context)
        return num_text_ids

    def clear(self, allocation: SlotAllocation) -> None:
        """Clears the block table of a slot that is about to be released; no step in flight may use it."""
        self.generator.cache.set_block_table(allocation.slot, [])
        self.poison([allocation.slot], allocation.pages)

    def update_pages(self, allocation: SlotAllocation, freed: Sequence[int] = ()) -> None:
        """Writes the block table of an allocation that got pages, or from which these were freed; no step uses them."""
        self.generator.cache.set_block_table(allocation.slot, allocation.pages)
        self.poison([], freed)

    def poison(self, slots: Sequence[int], pages: Sequence[int]) -> None:
        """Fills free slots and pages with NaN if the configuration says so."""
        if self.config.poison_freed:
            self.generator.poison(slots, pages)
            self.vocoder.poison(slots)

    def write_text(self, slot: int, start: int, text: TextBuffer, frame: int) -> int:
        """Moves text to the frames from start on, as much as fits before the rings wrap to frame; returns how much."""
        return self.generator.write_text(slot, start, text, frame)

    def close_text(self, slot: int, num_bytes: int) -> int:
        """Marks the text of a slot as complete; returns the maximum number of frames that it can need."""
        return self.generator.state.close_text(slot, num_bytes)

    def prefill(self, work: list[tuple[int, int, PromptRows]]) -> None:
        """Reads prompt rows: of each (slot, start, rows), these rows at the positions from start on."""
        self.generator.prefill(work)

    def frame(self, slots: Ints, counts: Ints, contexts: Ints) -> Pending:
        """Generates counts frames of each slot, the slots with most first; their flags [calls, slots].

        contexts: prompt rows and frames so far. A slot has no flags after its last frame.
        """
        self.vocoder.upload()  # before the flags: once the host has them, the vocoder's slots are reset
        return self.generator.frame(slots, counts, contexts)

    def decode(
        self, slots: Ints, first: Ints, frames: Ints, after_frames: bool = False, streams_beside: int = 0
    ) -> PendingAudio:
        """Samples of each slot: its first frame and number of frames; see VocoderRunner."""
        return self.vocoder.decode(slots, first, frames, after_frames, streams_beside)

    def flush(self, slot: int, frames: int) -> Audio | None:
        """The vocoder's samples after the last frame of a stream with this many frames; None: not finite."""
        return self.vocoder.flush(slot, frames)

    def capture(self) -> None:
        """Captures the CUDA graphs of those parts that are on a GPU."""
        parts = []
        if self.generator.graphs is not None and self.model.generator.device.type == "cuda":
            parts.append((self.generator.graphs.families, torch.cuda.Stream(self.model.generator.device)))
        if self.vocoder.graphs is not None and self.vocoder.stream is not None:
            parts.append((self.vocoder.graphs.families, self.vocoder.stream))
        if parts:
            capture_graphs(parts, max_compilers(machine_memory()))

    def wait(self) -> None:
        """Until all launched calls have completed; raises if a device is broken."""
        if self.model.generator.device.type == "cuda":
            torch.cuda.synchronize(self.model.generator.device)
        self.vocoder.wait()

    def close(self) -> None:
        """Ends the vocoder's thread, if it has one. Idempotent."""
        self.vocoder.close()

    def memory(self) -> list[MemoryUsage]:
        """What uses the memory of the generator's device, and of the vocoder's if it is another one."""
        generator, vocoder, config = self.model.generator, self.model.vocoder, self.config
        streams = f"{config.max_streams} streams (max_streams)"
        pages = f"{streams} × {config.context} positions (context) in {config.pages} pages of {PAGE}"
        same = generator.device == vocoder.device
        weights = generator.nbytes + (vocoder.nbytes if same else 0)
        slots = self.generator.state.nbytes + (self.vocoder.state.nbytes if same else 0)
        types = _name(generator.dtype)
        if generator.weight_dtype != generator.dtype:
            types = f"{_name(generator.weight_dtype)} (weight_dtype) and {types}"
        found = [
            MemoryUsage("weights", weights, f"{types} on {generator.device} (model, dtype)"),
            MemoryUsage("text table", generator.text_table_nbytes, "one row per text id (model, dtype)"),
            MemoryUsage("keys and values", self.generator.cache.nbytes, f"{_name(generator.kv_dtype)}, {pages}"),
            MemoryUsage("slots", slots, streams),
        ]
        found += device_usage(generator.device, found, f"calls of up to {config.max_batch} streams")
        if not same:
            used = vocoder.nbytes + self.vocoder.state.nbytes
            found.append(MemoryUsage("vocoder", used, f"{_name(vocoder.dtype)} on {vocoder.device} (vocoder_device)"))
        return found


def _fixed_sizes(config: EngineConfig, device: torch.device) -> bool:
    """Whether calls on this device are padded to fixed sizes.

    A deterministic engine on a CPU has calls of one stream instead: padded ones would read the longest context.
    """
    on_gpu = device.type == "cuda"
    return (on_gpu and config.deterministic) or (on_gpu if config.cuda_graphs is None else config.cuda_graphs)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
