# SPDX-License-Identifier: Apache-2.0
"""The vocoder: the codec's decoder over slots, from frames of codes to samples."""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from polyvox.models.layers.conv_decoder import ConvDecoder
from polyvox.models.layers.decoder_pass import DecoderState
from polyvox.models.protocol import VocoderContext


@dataclass(frozen=True, slots=True, eq=False)
class CodecContext(VocoderContext):
    """The codec's state after a reference recording, for one stream."""

    state: DecoderState


class CodecVocoder:
    """The codec's decoder; see protocol.py. Every layer is causal, so there is no tail."""

    tail_samples = 0

    def __init__(self, codec: ConvDecoder) -> None:
        self.codec = codec
        self.device, self.dtype = codec.device, codec.dtype
        self.sample_rate, self.samples_per_frame = codec.config.sample_rate, codec.config.samples_per_frame
        self.delay_samples = codec.delay_samples
        self.nbytes = sum(tensor.nbytes for tensor in codec.parameters())

    def parameters(self) -> Iterable[Tensor]:
        return self.codec.parameters()

    def new_state(self, num_slots: int) -> "CodecVocoderState":
        return CodecVocoderState(self.codec, num_slots)

    def context_after(self, codes: Tensor) -> CodecContext:
        """The context after a recording with these codes [frames, codebooks]."""
        # Kernels are launched on the current device, which in a caller's thread is the generator's.
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            _, state = self.codec(codes[None].to(self.device), self.codec.initial_state(1))
        return CodecContext(state)


class CodecVocoderState:
    """The codec over a fixed number of slots; see protocol.py."""

    def __init__(self, codec: ConvDecoder, num_slots: int) -> None:
        self.codec = codec
        self.layers = codec.initial_state(num_slots)
        self._views: list[DecoderState | None] = [None] * num_slots
        self._to_reset: set[int] = set()  # slots that `upload` resets to the start of a stream

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self.layers.values())

    def assign(self, slot: int, context: VocoderContext | None) -> None:
        if context is None:
            self._to_reset.add(slot)
        else:
            assert isinstance(context, CodecContext)
            self._to_reset.discard(slot)
            views = self._views_of(slot)
            torch._foreach_copy_([*views.values()], [context.state[name][0] for name in views])
            self._keep_until_copied(context)

    def upload(self) -> None:
        if self._to_reset:
            views = [self._views_of(slot) for slot in self._to_reset]
            torch._foreach_zero_([each["position"] for each in views])
            torch._foreach_zero_([rows for each in views for name, rows in each.items() if name != "position"])
            self._to_reset.clear()

    def _views_of(self, slot: int) -> DecoderState:
        views = self._views[slot]
        if views is None:
            views = self._views[slot] = {name: rows[slot] for name, rows in self.layers.items()}
        return views

    def decode(self, slots: Tensor, codes: Tensor) -> Tensor:
        samples, _ = self.codec(codes, self.layers, slots)
        return samples

    def _keep_until_copied(self, context: CodecContext) -> None:
        """A context is allocated on the default stream: its memory must not be reused while another one copies it."""
        device = self.codec.device
        if device.type == "cuda":
            stream = torch.cuda.current_stream(device)
            if stream != torch.cuda.default_stream(device):
                for rows in context.state.values():
                    rows.record_stream(stream)

    def flush(self, slots: Tensor) -> Tensor:
        return torch.zeros(len(slots), 0, device=self.codec.device)

    def reset_scratch(self, slot: int) -> None:
        # Kernels read positions as int32, and the scratch slot decodes in every padded call.
        self.layers["position"][slot].zero_()

    def poison(self, slot: int) -> None:
        self._to_reset.discard(slot)
        for rows in self.layers.values():
            rows[slot].fill_(torch.nan if rows.is_floating_point() else 1)
