# SPDX-License-Identifier: Apache-2.0
"""Runs the vocoder on its device, and moves the codes from the generator to it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from polyvox.audio.pcm import Audio
from polyvox.engine.call_thread import CallThread
from polyvox.engine.cpu_threads import threads_for
from polyvox.engine.graphs import VocoderGraphs, gather_codes
from polyvox.engine.pending import DecodedGroup, Pending, PendingAudio, PendingCall
from polyvox.engine.stream_arrays import Ints
from polyvox.kernels.quantize import quantize
from polyvox.models.protocol import Vocoder, VocoderContext

MIN_STREAMS_BESIDE = 2  # of the frame call beside which a thread decodes


class VocoderRunner:
    """The vocoder's state for all slots, and its calls.

    On the generator's device the vocoder gathers codes from the generator's ring itself, on a CUDA stream of its own.
    On another device they are gathered on the generator's device and copied through pinned memory.

    Beside a small generator on a CPU, calls run in a thread of their own while the generator computes frames of several
    streams; those of one stream are too short for that. Slots are assigned meanwhile: a call uses only its own.
    """

    def __init__(
        self,
        vocoder: Vocoder,
        ring: Tensor,
        max_streams: int,
        small_model: bool,
        fixed_sizes: bool,
        deterministic: bool = False,
        copies_codes: bool | None = None,
        pcm: bool = False,
    ) -> None:
        """ring: the generator's codes. copies_codes: by default if the devices differ; tests set it on one device.

        deterministic: every call has the same size, that of one stream without fixed_sizes.
        pcm: audio is 16-bit PCM, converted on the vocoder's device, instead of float samples.
        """
        self.vocoder, self._ring, self._small, self._pcm = vocoder, ring, small_model, pcm
        self._one_by_one = deterministic and not fixed_sizes
        self._copies = ring.device != vocoder.device if copies_codes is None else copies_codes
        self.state = vocoder.new_state(max_streams + fixed_sizes)
        cuda = vocoder.device.type == "cuda"
        self.stream = torch.cuda.Stream(vocoder.device) if cuda else None  # of all calls
        # A decode waits for frame steps only if the host has not seen their flags.
        self._gather_stream = torch.cuda.Stream(ring.device) if ring.is_cuda and self._copies else None
        self._thread: CallThread | None = None
        if not cuda and not ring.is_cuda and small_model and not fixed_sizes:
            self._thread = CallThread("polyvox-vocoder")
        self.graphs: VocoderGraphs | None = None
        if fixed_sizes:
            source = None if self._copies else ring
            self.graphs = VocoderGraphs(vocoder, self.state, source, ring.shape[2], max_streams, deterministic, pcm)

    @property
    def overlaps_frames(self) -> bool:
        """Whether a decode computes beside frame calls that block."""
        return self._thread is not None

    def wait(self) -> None:
        """Until all launched calls have completed."""
        if self.stream is not None:
            torch.cuda.synchronize(self.vocoder.device)
        if self._thread is not None:
            self._thread.wait()

    def close(self) -> None:
        """Ends the thread of the calls, if there is one. Idempotent."""
        if self._thread is not None:
            self._thread.close()

    def assign(self, slot: int, context: VocoderContext | None) -> None:
        """Resets a slot to the start of a stream, or to the end of a reference recording, from `upload` on."""
        with self._between_calls():
            self.state.assign(slot, context)

    def upload(self) -> None:
        """Applies the assignments; called before each frame call and each decode."""
        with self._between_calls():
            self.state.upload()

    def poison(self, slots: Sequence[int]) -> None:
        with self._between_calls():
            for slot in slots:
                self.state.poison(slot)

    def decode(
        self, slots: Ints, first: Ints, frames: Ints, after_frames: bool = False, streams_beside: int = 0
    ) -> PendingAudio:
        """Samples of each slot: its first frame and number of frames; the frame steps that made them have completed.

        after_frames: they have not; the call waits on the device for all frame calls launched so far.
        streams_beside: the number of streams in the frame call that is launched next.
        """
        self.upload()
        if after_frames:
            self._wait_for_frames()
        groups = []
        for count in np.unique(frames).tolist():
            indices = np.flatnonzero(frames == count)
            group, starts = slots[indices], first[indices]
            source: Ints | Tensor = self._copy_codes(group, starts, count) if self._copies else starts
            samples = self._launch(group, count, source, streams_beside >= MIN_STREAMS_BESIDE)
            dropped = None
            if self.vocoder.delay_samples:
                size = self.vocoder.samples_per_frame
                dropped = [self._delay_left(frame * size, count * size) for frame in starts.tolist()]
            groups.append(DecodedGroup(indices.tolist(), dropped, samples, self._pcm))
        return PendingAudio(groups)

    def flush(self, slot: int, frames: int) -> Audio | None:
        """The samples after the last frame of a stream with this many frames; waits for them. See PendingAudio.get."""
        if self._thread is not None:
            self._thread.wait()
        with self._on_stream():
            samples = self.state.flush(self._indices(np.array([slot])))
            pending = Pending(quantize(samples) if self._pcm else samples)
        dropped = self._delay_left(frames * self.vocoder.samples_per_frame, self.vocoder.tail_samples)
        (found,) = PendingAudio([DecodedGroup([0], [dropped], pending, self._pcm)]).get()
        return found

    def _launch(self, slots: Ints, frames: int, source: Ints | Tensor, beside: bool) -> Pending | PendingCall:
        """A call for chunks of one size; source: their codes, or the first frame of each in the ring.

        beside: in a thread, if there is one.
        """
        with self._on_stream():
            if self.graphs is not None:
                return Pending(self.graphs.decode(slots, frames, source))
            indices, codes = self._indices(slots), source
            if not isinstance(codes, Tensor):  # before the generator writes to the ring again
                codes = gather_codes(self._ring, indices, self._indices(codes), frames)
            if self._thread is None:
                return Pending(self._decode(indices, codes))
        if beside:
            return PendingCall(self._thread.launch(lambda: Pending(self._decode(indices, codes))))
        self._thread.wait()
        return Pending(self._decode(indices, codes))

    def _decode(self, slots: Tensor, codes: Tensor) -> Tensor:
        with threads_for(self.vocoder.device, self._small, codes.shape[0] * codes.shape[1]):
            if self._one_by_one:
                rows = [self.state.decode(slots[i : i + 1], codes[i : i + 1]) for i in range(len(slots))]
                samples = torch.cat(rows)
            else:
                samples = self.state.decode(slots, codes)
            return quantize(samples) if self._pcm else samples

    def _copy_codes(self, slots: Ints, first: Ints, frames: int) -> Tensor:
        """The codes [B, frames, codebooks] on the vocoder's device."""
        ring = self._ring
        if self._gather_stream is None:
            codes = gather_codes(ring, torch.from_numpy(slots), torch.from_numpy(first), frames)
            with self._on_stream():  # the stream that reads the copy, or its memory could be reused too early
                return codes.to(self.vocoder.device, copy=True)
        with torch.cuda.stream(self._gather_stream):
            at = torch.from_numpy(np.stack([slots, first])).pin_memory().to(ring.device, non_blocking=True)
            gathered = gather_codes(ring, at[0], at[1], frames)
            codes = torch.empty(gathered.shape, dtype=gathered.dtype, pin_memory=True)
            codes.copy_(gathered, non_blocking=True)
            copied = torch.cuda.Event(blocking=True)
            copied.record(self._gather_stream)
        if self.stream is None:
            copied.synchronize()
            return codes
        self.stream.wait_event(copied)
        with self._on_stream():
            return codes.to(self.vocoder.device, non_blocking=True)

    def _wait_for_frames(self) -> None:
        """Orders the calls that follow after all frame calls launched so far, on the device."""
        stream = self._gather_stream or self.stream
        if stream is not None and self._ring.is_cuda:
            stream.wait_stream(torch.cuda.current_stream(self._ring.device))

    def _delay_left(self, start: int, size: int) -> int:
        """Samples to drop from a chunk of this size that starts at this sample."""
        return min(max(self.vocoder.delay_samples - start, 0), size)

    def _on_stream(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self.stream) if self.stream else nullcontext()

    def _between_calls(self) -> AbstractContextManager[object]:
        """Orders a change of a free slot with the vocoder's calls.

        On the generator's device the change runs on the current stream, before the frame steps that a decode follows:
        the host has seen their flags, or the vocoder's stream waits for them. On another device it runs on the
        vocoder's stream, after the contexts that other threads computed on the default stream.
        """
        if self.stream is None or not self._copies:
            return nullcontext()
        self.stream.wait_stream(torch.cuda.default_stream(self.vocoder.device))
        return torch.cuda.stream(self.stream)

    def _indices(self, values: Ints) -> Tensor:
        return torch.from_numpy(values).to(self.vocoder.device)
