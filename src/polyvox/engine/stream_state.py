"""What the scheduler knows: its limits, a stream's progress and deadline, and the plan of a step."""

from dataclasses import dataclass, field
from math import inf

from polyvox.engine.slots import SlotAllocation

FIRST_CHUNK = 2  # frames, where nothing else is asked for and steps are not quick
# Frames of a codec chunk, powers of two; a stream's chunk grows with its lead.
CHUNK_SIZES = (1, 2, 4, 8, 16)
RING_FRAMES = 2 * CHUNK_SIZES[-1]  # frames of codes that a slot keeps: one chunk for the codec, one being generated


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What the scheduler works within; the engine derives them from its configuration."""

    frame_seconds: float
    slots: int
    pages: int
    page_size: int
    ring: int  # frames that a slot keeps for its codec
    max_queue: int  # requests that may wait
    max_queue_seconds: float  # that they may have to wait, as far as can be foreseen
    prefill_rows: int  # of one step, at most
    batch: int  # streams of one frame step and frames of one codec step, at most
    chunk: int = CHUNK_SIZES[-1]  # frames of one chunk, at most
    # Share of real time that admitted streams may fill. On small simulated engines with noise and stalls, at four times
    # their load, 0.9 has four times the underruns and serves 2 % more.
    headroom: float = 0.85
    urgent: float = 0.5  # seconds of lead under which a stream goes before others
    lead_cap: float = 3.0  # seconds of lead beyond which it rests while others need the room


@dataclass(slots=True, eq=False)
class StreamState:
    """One stream as the scheduler sees it."""

    id: int
    arrived: float
    prompt_rows: int
    max_frames: int
    live: bool = True  # False: a whole file, which has no deadline
    continues: bool = False  # a later sentence of an utterance that is being heard
    first_chunk: int = FIRST_CHUNK  # frames; 0: as steps allow when it is admitted
    prefilled: int = 0
    made: int = 0  # frames known to be speech
    started: int = 0  # frame steps begun, known or not
    sent: int = 0  # frames that the codec is at work on
    decoded: int = 0  # frames that it is done with
    held: int = 0  # frames of those that wait for more, to be given as one chunk
    text_frames: float = inf  # frames for which there is text; later ones must wait for it
    room: float = inf  # frames that its reader's buffer can still take, those held counted as there
    ended: bool = False  # no more frames will be made; what is left is flushed
    admitted: float | None = None
    allocation: SlotAllocation | None = None
    first_audio: float | None = None
    given: float = 0.0  # seconds of audio given to the reader
    deadline: float = field(init=False)  # when the player runs dry; due at once where nothing was given yet
    underruns: int = 0
    waited: int | None = None  # frames begun when the text ran out: the pause after them is not an underrun
    paused: bool = False  # the reader's buffer was full: the pause before the next chunk is not an underrun

    def __post_init__(self) -> None:
        self.deadline = self.arrived

    @property
    def prompt_left(self) -> int:
        return self.prompt_rows - 1 - self.prefilled

    @property
    def needs_text(self) -> bool:
        """No frame can be made before more text comes."""
        return not self.ended and self.text_frames <= self.started < self.max_frames

    @property
    def owes_audio(self) -> bool:
        """Its player waits for the engine, not for more text, a reader or nothing at all."""
        return not self.paused and self.waited is None and not (self.ended and self.decoded >= self.made)

    def starts(self, now: float) -> bool:
        """Its player waits for a first chunk: at the beginning, or after a pause that was not the engine's."""
        if not self.live or self.first_audio is None:
            return self.live
        return (self.paused or self.waited is not None) and now >= self.deadline

    def lead(self, now: float) -> float:
        """Seconds until the player runs dry; of a file, which is never heard while it is made, infinitely many."""
        return inf if not self.live else self.deadline - now if self.first_audio is not None else 0.0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: prefill rows by stream, then streams that make a frame; beside them codec frames by stream.

    A stream whose prompt is complete after this plan's rows makes its first frame in the same step.
    """

    prefill: tuple[tuple[StreamState, int], ...] = ()
    frame: tuple[StreamState, ...] = ()
    codec: tuple[tuple[StreamState, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.prefill or self.frame or self.codec)

    def sizes(self) -> tuple[int, int, int, int]:
        """Streams, prefill rows, codec frames, codec calls: what the step costs by."""
        chunks = [frames for _, frames in self.codec]
        return len(self.frame), sum(rows for _, rows in self.prefill), sum(chunks), len(set(chunks))
