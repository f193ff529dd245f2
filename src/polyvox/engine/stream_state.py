# SPDX-License-Identifier: Apache-2.0
"""The scheduler's view of a stream, the limits it works within, and the plan of a step."""

from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

import numpy as np

from polyvox.engine.slots import SlotAllocation
from polyvox.engine.stream_arrays import Ints, StreamArrays
from polyvox.engine.stream_status import ENDED, StreamStatus
from polyvox.models.request import MAX_CHUNK_FRAMES

DEFAULT_FIRST_CHUNK = 2  # frames, unless the request asks for another number or steps are quick
DEFAULT_TEXT_BYTES = 60  # of an average sentence
# Frames of a codec chunk, powers of two; a stream's chunk grows with its lead.
CHUNK_SIZES = tuple(1 << i for i in range(MAX_CHUNK_FRAMES.bit_length()))
MAX_FRAMES_PER_STEP = 8  # of one stream
RING_FRAMES = 2 * MAX_CHUNK_FRAMES  # frames of codes that a slot keeps: one chunk for the codec, one being generated


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Limits of scheduling and admission; the engine derives them from its configuration."""

    frame_seconds: float
    num_slots: int
    num_pages: int
    page_size: int
    ring_frames: int  # frames of codes that a slot keeps
    max_queue: int  # queued requests
    max_queue_seconds: float  # the longest wait for a slot that admission accepts, as estimated
    max_prefill_rows: int  # of one step
    max_batch: int  # streams of one frame step, and frames of one codec step
    max_chunk: int = MAX_CHUNK_FRAMES  # frames
    max_frames_per_step: int = 1  # of one stream
    frame_sizes: tuple[int, ...] = ()  # numbers of streams to which frame calls are padded; empty: to none
    decodes_first_frames: bool = False  # a codec call can follow the frame call whose codes it decodes
    # Share of real time that admitted streams may use. On small simulated engines with noise and stalls, at four times
    # their load, 0.9 has four times the underruns and serves 2 % more.
    headroom: float = 0.85
    urgent_lead: float = 0.5  # seconds; streams with a shorter lead go first
    lead_cap: float = 3.0  # seconds; streams with a longer lead pause while others need the time


T = TypeVar("T", bool, int, float)


class ArrayField(Generic[T]):
    """An attribute of a stream whose value is in its row of `StreamArrays`; the scheduler uses whole arrays."""

    def __init__(self, *default: T) -> None:
        self._default: tuple[T, ...] = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, stream: "StreamState | None", owner: type | None = None) -> T:
        if stream is None:  # asked for by `dataclass`
            if not self._default:
                raise AttributeError
            return self._default[0]
        value: T = stream.arrays.__dict__[self._name].item(stream.row)
        return value

    def __set__(self, stream: "StreamState", value: T) -> None:
        stream.arrays.__dict__[self._name][stream.row] = value


@dataclass(eq=False)
class StreamState:
    """The part of a stream that scheduling and admission read and write: plain values, no tensors.

    `status` and `ended` are written by `StreamTable.transition` only, which also moves the row of the stream to the
    arrays of all streams while it has a slot. `StreamArrays` describes the values that are there.
    """

    arrays: StreamArrays = field(init=False, repr=False, default_factory=StreamArrays.of_one_stream)
    row: int = field(init=False, default=0)  # the slot while the stream has one
    id: int
    arrived_at: float
    prompt_rows: int
    max_frames: ArrayField[int] = ArrayField()
    live: bool = True  # False: a whole file, which has no deadline
    continues: bool = False  # a later segment of an utterance that is being played
    utterance_id: int = 0  # the same for all segments of an utterance; 0: the stream is the only one
    utterance_row: ArrayField[int] = ArrayField(0)
    text_bytes: ArrayField[int] = ArrayField(DEFAULT_TEXT_BYTES)
    following_bytes: int = 0  # of text in later segments of the utterance, as far as it is known
    is_answer: bool = False  # its open text is the whole answer of another model, not a sentence
    language: str = ""  # as the request names it
    owner: str = ""  # the API key by name; utterances of different owners get their turns
    fingerprint: int = 0  # the same when a rejected request is sent again; 0: unknown
    may_reserve: bool = True  # a rejection reserves the time to retry after
    first_chunk: ArrayField[int] = ArrayField(DEFAULT_FIRST_CHUNK)
    status: StreamStatus = StreamStatus.QUEUED
    status_since: float = field(init=False)
    ended: bool = field(init=False)  # status in ENDED
    stopping: bool = False  # its end was requested: its slot and pages are free after the steps in flight
    allocation: SlotAllocation | None = None
    paged_frames: ArrayField[int] = ArrayField(0)
    initial_frames: int = field(init=False, default=0)  # what its length is compared with, for later reservations
    admitted_open: bool = field(init=False, default=False)  # more text was to arrive when it was admitted
    out_of_pages: bool = field(init=False, default=False)  # max_frames was lowered: no KV page was free
    prefilled: ArrayField[int] = ArrayField(0)
    started: ArrayField[int] = ArrayField(0)
    generated: ArrayField[int] = ArrayField(0)
    decoding: ArrayField[int] = ArrayField(0)
    decoded: ArrayField[int] = ArrayField(0)
    undelivered: ArrayField[int] = ArrayField(0)
    text_frames: ArrayField[float] = ArrayField(inf)
    buffer_free: ArrayField[float] = ArrayField(inf)
    last_step: ArrayField[int] = ArrayField(0)
    expected_wait: float = 0.0  # seconds in the queue, as estimated on arrival
    admitted_at: float = inf
    first_frame_at: float = inf
    plays_at: ArrayField[float] = ArrayField(-inf)
    first_audio_at: ArrayField[float] = ArrayField(inf)
    delivered_seconds: ArrayField[float] = ArrayField(0.0)
    deadline: ArrayField[float] = ArrayField(0.0)
    underruns: ArrayField[int] = ArrayField(0)
    text_gap: ArrayField[float] = ArrayField(inf)
    reader_gap: ArrayField[bool] = ArrayField(False)
    reader_deadline: ArrayField[float] = ArrayField(inf)
    text_deadline: ArrayField[float] = ArrayField(inf)

    def __post_init__(self) -> None:
        self.deadline = self.status_since = self.arrived_at
        self.ended = self.status in ENDED

    def move(self, arrays: StreamArrays, row: int) -> None:
        """Moves the values of this stream to another row."""
        arrays.copy_row(row, self.arrays, self.row)
        self.arrays, self.row = arrays, row
        arrays.id[row], arrays.arrived_at[row], arrays.live[row] = self.id, self.arrived_at, self.live
        arrays.prompt_rows[row], arrays.ended[row] = self.prompt_rows, self.ended

    @property
    def prompt_left(self) -> int:
        """Rows to prefill; the last row of the prompt belongs to the first frame."""
        return self.prompt_rows - 1 - self.prefilled

    @property
    def text_is_open(self) -> bool:
        """Whether more text may arrive."""
        return self.text_frames < inf

    def lead(self, now: float) -> float:
        """Seconds until the player's buffer is empty; infinite for a file."""
        if not self.live:
            return inf
        return self.deadline - now if self.first_audio_at < inf else max(0.0, self.plays_at - now)


S = TypeVar("S", bound=StreamState)


NO_SLOTS: Ints = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan(Generic[S]):
    """One step: prompt rows by stream, then the slots that generate frames; beside them codec frames by slot.

    A stream whose prompt is complete after this plan's rows generates its first frame in the same step.
    """

    prefill: tuple[tuple[S, int], ...] = ()
    frame: Ints = field(default_factory=NO_SLOTS.copy)  # slots
    frame_counts: Ints = field(default_factory=NO_SLOTS.copy)  # frames of each slot of `frame`, in descending order
    codec: Ints = field(default_factory=NO_SLOTS.copy)  # slots
    codec_frames: Ints = field(default_factory=NO_SLOTS.copy)  # of each slot of `codec`
    first_codec: Ints = field(default_factory=NO_SLOTS.copy)  # slots of `frame` whose first frame is decoded at once
    num_live: int = 0  # live streams that need frames, in this step or in another one

    def __bool__(self) -> bool:
        return bool(self.prefill or len(self.frame) or len(self.codec))

    def sizes(self) -> tuple[int, int, int, int, int]:
        """Frames, prefill rows, codec frames, codec calls, frame calls: the arguments of the cost model."""
        rows, num_first = sum(rows for _, rows in self.prefill), len(self.first_codec)
        codec_calls = np.count_nonzero(np.bincount(self.codec_frames)) + (num_first > 0)
        codec_frames = int(self.codec_frames.sum()) + num_first
        return int(self.frame_counts.sum()), rows, codec_frames, int(codec_calls), self.num_calls

    @property
    def num_calls(self) -> int:
        """Frame calls, one after the other."""
        return int(self.frame_counts[0]) if len(self.frame) else 0

    def slots_of_call(self, call: int) -> Ints:
        """The slots that generate a frame in the call with this number, from 0."""
        return self.frame[: int(np.count_nonzero(self.frame_counts > call))]
