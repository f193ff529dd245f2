# SPDX-License-Identifier: Apache-2.0
"""The scheduler's view of a stream, the limits it works within, and the plan of a step."""

from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

from polyvox.engine.slots import SlotAllocation
from polyvox.engine.stream_status import ENDED, StreamStatus
from polyvox.models.request import MAX_CHUNK_FRAMES

DEFAULT_FIRST_CHUNK = 2  # frames, unless the request asks for another number or steps are quick
DEFAULT_TEXT_BYTES = 60  # of an average sentence
# Frames of a codec chunk, powers of two; a stream's chunk grows with its lead.
CHUNK_SIZES = tuple(1 << i for i in range(MAX_CHUNK_FRAMES.bit_length()))
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
    # Share of real time that admitted streams may use. On small simulated engines with noise and stalls, at four times
    # their load, 0.9 has four times the underruns and serves 2 % more.
    headroom: float = 0.85
    urgent_lead: float = 0.5  # seconds; streams with a shorter lead go first
    lead_cap: float = 3.0  # seconds; streams with a longer lead pause while others need the time


@dataclass(slots=True, eq=False)
class StreamState:
    """The part of a stream that scheduling and admission read and write: plain values, no tensors.

    `status` and `ended` are written by `StreamTable.transition` only. Moments that have not come yet are `inf`.
    """

    id: int
    arrived_at: float
    prompt_rows: int
    max_frames: int
    live: bool = True  # False: a whole file, which has no deadline
    continues: bool = False  # a later segment of an utterance that is being played
    utterance_id: int = 0  # the same for all segments of an utterance; 0: the stream is the only one
    text_bytes: int = DEFAULT_TEXT_BYTES
    following_bytes: int = 0  # of text in later segments of the utterance, as far as it is known
    owner: str = ""  # the API key by name; utterances of different owners get their turns
    fingerprint: int = 0  # the same when a rejected request is sent again; 0: unknown
    may_reserve: bool = True  # a rejection reserves the time to retry after
    first_chunk: int = DEFAULT_FIRST_CHUNK  # frames; 0: chosen on admission
    status: StreamStatus = StreamStatus.QUEUED
    status_since: float = field(init=False)
    ended: bool = field(init=False)  # status in ENDED, kept apart because a plan reads it for every stream
    allocation: SlotAllocation | None = None
    # Progress, in prompt rows and frames
    prefilled: int = 0
    started: int = 0  # frame steps launched
    generated: int = 0  # frames known to be speech
    decoding: int = 0  # frames in codec calls that have not completed
    decoded: int = 0
    undelivered: int = 0  # decoded frames that wait for more, to be delivered as one chunk
    text_frames: float = inf  # frames that have text; later ones wait for it
    buffer_free: float = inf  # frames that still fit into the reader's buffer, the undelivered ones counted as there
    # Playback
    expected_wait: float = 0.0  # seconds in the queue, as estimated on arrival
    admitted_at: float = inf
    first_frame_at: float = inf
    plays_at: float = -inf  # when the player needs the first audio: after the segment before it
    first_audio_at: float = inf
    delivered_seconds: float = 0.0  # of audio
    deadline: float = field(init=False)  # when the player's buffer is empty
    underruns: int = 0
    # Gaps that the client causes are no underruns: the frames started when the text ran out, and a full buffer.
    text_gap: float = inf
    reader_gap: bool = False

    def __post_init__(self) -> None:
        self.deadline = self.status_since = self.arrived_at
        self.ended = self.status in ENDED

    @property
    def prompt_left(self) -> int:
        """Rows to prefill; the last row of the prompt belongs to the first frame."""
        return self.prompt_rows - 1 - self.prefilled

    @property
    def needs_text(self) -> bool:
        """No frame can be generated before more text arrives."""
        return not self.ended and self.text_frames <= self.started < self.max_frames

    @property
    def needs_frames(self) -> bool:
        """The player waits for the engine, not for text or its reader."""
        return not self.reader_gap and self.text_gap == inf and not (self.ended and self.decoded >= self.generated)

    def is_starting(self, now: float) -> bool:
        """The player has nothing to play: at the beginning, or after a gap that the client caused."""
        if not self.live or self.first_audio_at == inf:
            return self.live and now >= self.plays_at
        return (self.reader_gap or self.text_gap < inf) and now >= self.deadline

    def lead(self, now: float) -> float:
        """Seconds until the player's buffer is empty; infinite for a file."""
        if not self.live:
            return inf
        return self.deadline - now if self.first_audio_at < inf else max(0.0, self.plays_at - now)

    def urgency(self, now: float) -> float:
        """Sort key, the smallest first: starting streams, then by lead, then files."""
        return -inf if self.is_starting(now) else self.lead(now)


S = TypeVar("S", bound=StreamState)


@dataclass(frozen=True, slots=True)
class StepPlan(Generic[S]):
    """One step: prompt rows by stream, then the streams that generate a frame; beside them codec frames by stream.

    A stream whose prompt is complete after this plan's rows generates its first frame in the same step.
    """

    prefill: tuple[tuple[S, int], ...] = ()
    frame: tuple[S, ...] = ()
    codec: tuple[tuple[S, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.prefill or self.frame or self.codec)

    @property
    def streams(self) -> list[S]:
        """Every stream of the step once."""
        return list(dict.fromkeys([*(s for s, _ in self.prefill), *self.frame, *(s for s, _ in self.codec)]))

    def sizes(self) -> tuple[int, int, int, int]:
        """Streams, prefill rows, codec frames, codec calls: the arguments of the cost model."""
        chunks = [frames for _, frames in self.codec]
        return len(self.frame), sum(rows for _, rows in self.prefill), sum(chunks), len(set(chunks))
