"""What an engine asks of a speech model; a second family of models is another class with these calls."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from polyvox.audio.clip import Samples
from polyvox.kernels.frame_end import ENDED as ENDED  # the flags of a frame, for whoever reads them
from polyvox.kernels.frame_end import REPETITION_LOOP as REPETITION_LOOP
from polyvox.kernels.paged_kv import PagedKVView
from polyvox.models.info import ModelInfo
from polyvox.models.request import ClonedVoice, Request


@dataclass(frozen=True, slots=True, eq=False)
class PreparedRequest:
    """A request that has passed every check, as the rows that a model reads."""

    rows: Tensor  # [T, hidden]: the prompt
    text: Tensor  # [N, hidden]: text for the frames, one row each; after it comes the pad, or more text
    max_frames: int
    guarded: bool  # max_frames is what the text can need at most, not what was asked for
    tokens: int  # of the text
    own: Any  # what the model itself wants to find again when it takes the slot


class StreamingTokenizer(Protocol):
    """Text that comes in pieces: the ids that are certain so far, then the rest."""

    def append(self, piece: str) -> list[int]: ...

    def finish(self) -> list[int]: ...

    @property
    def begun(self) -> bool: ...


# attend(layer, q [B,T,heads,dim], k and v [B,T,kv_heads,dim]) -> [B,T,heads,dim]: whoever owns the cache
# writes k and v to it and attends, so a layer need not know how the past is kept. Or pages, for kernels.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor] | PagedKVView


@dataclass(frozen=True, slots=True, eq=False)
class PrefillMetadata:
    """Several rows of each of some slots, behind one another: row i is number column[i] of slot slots[owner[i]]."""

    slots: Tensor  # [B]
    owner: Tensor  # [N]
    column: Tensor  # [N]
    width: int  # the most rows that a slot has


class Cache(Protocol):
    """Where the keys and values of all slots are kept."""

    def at(
        self,
        slots: Tensor,
        positions: Tensor,
        span: int,
        pack: PrefillMetadata | None = None,
        decode_only: bool = False,
    ) -> Attend | PagedKVView:
        """Attention for rows at positions [N] of these slots [N].

        pack may say the same by slots, of which each may have several rows; decode_only: none has more than one. span
        is a bound, known to the host, on the largest position plus one. Kernels get a PagedKVView.
        """


class SlotRows(Protocol):
    """A model's memory for a fixed number of streams, and the three calls over it."""

    nbytes: int  # of all of it

    def assign(self, slot: int, prepared: PreparedRequest) -> None:
        """Writes all of a slot that a stream reads before it writes it."""

    def write_text(self, slot: int, start: int, text: Tensor) -> None:
        """Text for the frames from start on."""

    def close_text(self, slot: int, size: int) -> int:
        """No more text will come, and it was so many bytes in all; the frames that it can need at most."""

    def prefill(
        self, rows: Tensor, slots: Tensor, positions: Tensor, cache: Cache, span: int, pack: PrefillMetadata | None
    ) -> None:
        """Reads prompt rows [N,hidden] into the cache, each at its position [N] of its slot [N].

        pack says the same by slots, which is faster to attend by; a call of fixed size has none.
        """

    def frame(self, slots: Tensor, cache: Cache, span: int) -> Tensor:
        """One frame for each of these slots; what it tells of them, as a small tensor of flags."""

    def decode(self, slots: Tensor, first: Tensor, frames: int) -> Tensor:
        """Samples [B, samples] of so many frames of each of these slots, from frame first [B] on."""

    def idle(self, slot: int) -> None:
        """Makes a slot that nobody has good for one more frame that nobody reads; it fills up calls of fixed size."""

    def poison(self, slot: int) -> None:
        """Spoils a free slot, so that whoever reads what was not written anew is found out."""


class SpeechModel(Protocol):
    sample_rate: int
    samples_per_frame: int
    hidden_size: int
    max_positions: int  # of one stream: prompt rows and frames
    kv_shape: tuple[int, int, int]  # layers, heads, head size of what the cache keeps
    device: torch.device
    dtype: torch.dtype
    nbytes: int  # of the weights

    def info(self) -> ModelInfo:
        """What it is, and what may be asked of it."""

    def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:
        """The voice of a recording at the model's sample rate, in the caller's thread; raises InvalidRequest."""

    def prepare(self, request: Request, ids: list[int] | None = None) -> PreparedRequest:
        """Checks a request, which has a seed, and makes its rows; ids are the first of a text that grows.

        Raises InvalidRequest.
        """

    def growing_text(self, request: Request) -> StreamingTokenizer:
        """For a request whose text comes in pieces; raises InvalidRequest."""

    def text_rows(self, ids: list[int], last: bool) -> Tensor:
        """More text for the frames of a stream whose text grows; the last rows close it."""

    def new_slots(self, count: int, text_rows: int, ring: int) -> SlotRows:
        """Memory for so many streams, each with text for so many frames and so many frames for the codec."""
