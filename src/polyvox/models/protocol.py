# SPDX-License-Identifier: Apache-2.0
"""The interface between the engine and a model: a generator of codes and a vocoder, each with its own state and device.

A generator turns prompt rows into frames of codes, one frame per call. A vocoder turns codes into samples. The engine
owns the slots of both and moves the codes between them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyvox.audio.samples import Samples
from polyvox.models.info import ModelInfo
from polyvox.models.paged_kv import KVShape, PagedKVView
from polyvox.models.request import ClonedVoice, Request

NO_ID = -1  # a prompt row without a text id or without a code id
GIVEN_ROW = -1  # in place of a text id: the row of this frame was given by the caller
NO_ROWS: NDArray[np.int64] = np.zeros(0, np.int64)


class GeneratorPayload:
    """Base class of what a model's generator needs of a request beside its rows."""

    __slots__ = ()


class VocoderContext:
    """Base class of the state of a model's vocoder after a reference recording."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class PromptRows:
    """Rows of a prompt by id: row t is the sum of the embeddings of ids[:, t], and of a given row if it has one."""

    ids: NDArray[np.int64]  # [2, T]: text ids and code ids, NO_ID where a row has none
    given: Tensor | None = None  # [G, hidden]: parts of rows that are not ids
    given_at: NDArray[np.int64] = field(
        default_factory=NO_ROWS.copy
    )  # [G]: the rows to which they are added, ascending

    def __len__(self) -> int:
        return self.ids.shape[1]

    def __getitem__(self, part: slice) -> "PromptRows":
        ids = self.ids[:, part]
        if self.given is None:
            return PromptRows(ids)
        start, stop, _ = part.indices(len(self))
        inside = np.flatnonzero((start <= self.given_at) & (self.given_at < stop))
        if not len(inside):
            return PromptRows(ids)
        return PromptRows(ids, self.given[inside[0] : inside[-1] + 1], self.given_at[inside] - start)


@dataclass(frozen=True, slots=True, eq=False)
class PreparedRequest:
    """A validated request as the ids that a generator reads."""

    rows: PromptRows
    text: Sequence[int]  # one text id per frame; after the last one the generator reads padding, or more text
    max_frames: int
    guarded: bool  # max_frames follows from the length of the text, not from the request
    tokens: int  # of the text
    generator_payload: GeneratorPayload
    vocoder_context: VocoderContext | None = None  # speech continues a recording
    silent: bool = False  # the text has no words, so the stream ends without audio


class StreamingTokenizer(Protocol):
    """Tokenizes text that arrives in pieces: returns ids as soon as no later text can change them."""

    def append(self, piece: str) -> list[int]: ...

    def append_tokens(self, ids: Sequence[int], /) -> list[int]:
        """The ids of tokens that are spoken; raises InvalidRequest unless the request has a thinker's prompt."""

    def finish(self) -> list[int]: ...

    @property
    def begun(self) -> bool: ...


# attend(layer, q [B,T,heads,dim], k and v [B,T,kv_heads,dim]) -> [B,T,heads,dim]: writes k and v to the cache and
# attends. A PagedKVView lets kernels do both.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor] | PagedKVView


@dataclass(frozen=True, slots=True, eq=False)
class PrefillMetadata:
    """Rows of a prefill by slot: row i is row column[i] of slot slots[owner[i]]."""

    slots: Tensor  # [B]
    owner: Tensor  # [N]
    column: Tensor  # [N]
    max_rows: int  # of one slot


class PagedCache(Protocol):
    """The keys and values of all slots."""

    def view(
        self,
        slots: Tensor,
        positions: Tensor,
        max_context: int,
        metadata: PrefillMetadata | None = None,
        decode_only: bool = False,
    ) -> Attend:
        """Attention for rows at positions [N] of slots [N]; those of a slot are adjacent, in order of position.

        max_context: an upper bound on positions + 1, known to the host. metadata: the same rows by slot, required where
        a slot has several; decode_only: no slot has more than one.
        """


class GeneratorState(Protocol):
    """The generator's memory for a fixed number of slots, and its calls."""

    # [slots, ring_frames, num_codebooks]: frame f of a slot is codes[slot, f % ring_frames]. The codes after the end of
    # speech are valid, too: they may be decoded, and the samples dropped.
    codes: Tensor

    @property
    def nbytes(self) -> int: ...

    def assign(self, slot: int, prepared: PreparedRequest) -> None:
        """Writes everything of a slot that a stream reads before it writes it."""

    def write_text(self, slot: int, start: int, ids: Sequence[int], rows: Tensor | None) -> None:
        """Writes text for the frames from start on: ids, and the rows [n,hidden] of those that are GIVEN_ROW."""

    def close_text(self, slot: int, num_bytes: int) -> int:
        """Marks the text as complete, with its length in bytes; returns the maximum number of frames it can need."""

    def upload(self) -> None:
        """Sends what the methods above changed to the device, in one copy; called before `frame`."""

    def prefill(
        self,
        ids: Tensor,
        given: Tensor | None,
        slots: Tensor,
        positions: Tensor,
        cache: PagedCache,
        max_context: int,
        metadata: PrefillMetadata | None,
    ) -> None:
        """Reads prompt rows into the cache, each at its position [N] of its slot [N].

        ids [2,N]: as in `PromptRows`; given [N,hidden] is added to their embeddings.
        """

    def frame(self, slots: Tensor, cache: PagedCache, max_context: int) -> Tensor:
        """Generates one frame for each slot [B]; returns the flags [B] of flags.py."""

    def reset_scratch(self, slot: int) -> None:
        """Makes the scratch slot, which pads calls of fixed size, valid for one more frame."""

    def poison(self, slot: int) -> None:
        """Fills a free slot with NaN to expose stale reads."""


class Generator(Protocol):
    """Prompt rows to codes."""

    device: torch.device
    dtype: torch.dtype
    weight_dtype: torch.dtype  # of the matrices: dtype, or a quantised one
    kv_dtype: torch.dtype  # of the KV cache
    kv_shape: KVShape
    hidden_size: int
    max_positions: int  # prompt rows and frames of one stream
    default_context: int  # prompt rows and frames of an average stream
    num_codebooks: int
    nbytes: int  # of the weights on the device
    text_table_nbytes: int  # of what is computed from them at load: a row for each text id
    given_rows: int  # text rows of a caller that a slot stores ahead of its frames

    def parameters(self) -> Iterable[Tensor]:
        """The weights."""

    def quantize(self, dtype: torch.dtype) -> None:
        """Stores the matrices in this type (kernels/quantized_matrix.py); before `new_state`, and at most once."""

    def new_state(self, num_slots: int, text_ids: int, ring_frames: int) -> GeneratorState:
        """State for num_slots streams, each with text_ids ids of text ahead and ring_frames frames of codes."""


class VocoderState(Protocol):
    """The vocoder's memory for a fixed number of slots, and its calls."""

    @property
    def nbytes(self) -> int: ...

    def assign(self, slot: int, context: VocoderContext | None) -> None:
        """Resets a slot to the start of a stream, or to the end of a reference recording."""

    def upload(self) -> None:
        """Applies the resets to the device, all at once; called before each `decode` and each frame call."""

    def decode(self, slots: Tensor, codes: Tensor) -> Tensor:
        """The next frames [B, frames, num_codebooks] of each slot to samples [B, frames · samples_per_frame]."""

    def flush(self, slots: Tensor) -> Tensor:
        """The samples [B, tail_samples] after the last frame; called only if tail_samples > 0."""

    def reset_scratch(self, slot: int) -> None:
        """Resets the counters of the scratch slot, which pads calls of fixed size."""

    def poison(self, slot: int) -> None:
        """Fills a free slot with NaN to expose stale reads."""


class Vocoder(Protocol):
    """Codes to samples.

    A stream of n frames has n · samples_per_frame - delay_samples + tail_samples samples, or none if that is negative.
    """

    device: torch.device
    dtype: torch.dtype
    sample_rate: int
    samples_per_frame: int
    delay_samples: int  # at the start of a stream, which the engine drops
    tail_samples: int  # that flush returns after the last frame
    nbytes: int  # of the weights on the device

    def parameters(self) -> Iterable[Tensor]:
        """The weights."""

    def new_state(self, num_slots: int) -> VocoderState: ...


class SpeechModel(Protocol):
    """A loaded model. Its methods run in the caller's thread."""

    @property
    def generator(self) -> Generator: ...

    @property
    def vocoder(self) -> Vocoder: ...

    def info(self) -> ModelInfo:
        """What the model is and can do."""

    def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:
        """The voice of a recording at the vocoder's sample rate; raises InvalidRequest."""

    def prepare(self, request: Request, ids: list[int] | None = None) -> PreparedRequest:
        """Validates a request that has a seed and builds its prompt; raises InvalidRequest.

        ids: the first tokens of a text to which more will be appended.
        """

    def streaming_tokenizer(self, request: Request) -> StreamingTokenizer:
        """A tokenizer for a request whose text arrives in pieces; raises InvalidRequest."""

    def text_ids(self, ids: list[int], last: bool) -> list[int]:
        """Text ids of further tokens of a stream; the last ones close its text."""
