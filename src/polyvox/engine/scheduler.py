"""Who runs in the next step, and who is let in: arithmetic on plain values, no tensors, the clock an argument.

A listener hears audio at a fixed rate, so a stream has a *lead*, the seconds of audio it has been given beyond what it
has played, and a *deadline*, the moment the lead is used up. Every step goes to the streams that need it most, and a
new stream is let in only if all of them can still be kept fed.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, inf

from polyvox.errors import Overloaded

# Frames of a codec chunk; a stream's chunk grows with its lead.
CHUNKS = (1, 2, 4, 8, 16)


@dataclass(slots=True)
class CostModel:
    """Seconds of a step by what is in it; measured at start, corrected while running."""

    step: float  # any frame step at all
    stream: float  # each stream of a frame step
    prefill_row: float
    codec: float  # any codec call at all
    codec_frame: float
    correction: float = 1.0

    def seconds(self, streams: int, prefill_rows: int, codec_frames: int) -> float:
        frames = self.step + self.stream * streams if streams else 0.0
        codec = self.codec + self.codec_frame * codec_frames if codec_frames else 0.0
        return self.correction * (frames + self.prefill_row * prefill_rows + codec)

    def observe(self, predicted: float, actual: float) -> None:
        """Follows the machine slowly: one stall must not close the door, a slower machine must."""
        if predicted > 0:
            ratio = min(max(actual / predicted, 0.5), 2.0)
            self.correction = min(max(self.correction * (0.98 + 0.02 * ratio), 0.2), 10.0)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the scheduler works within; the engine derives them from its configuration."""

    frame_seconds: float
    slots: int
    pages: int
    page_size: int
    ring: int  # frames that a slot keeps for its codec
    queue: int  # requests that may wait
    queue_seconds: float  # and for how long
    headroom: float = 0.9  # share of real time that admitted streams may fill
    urgent: float = 0.5  # seconds of lead under which a stream goes before others
    lead_cap: float = 3.0  # seconds of lead beyond which it rests while others need the room
    prefill_rows: int = 512  # of one step, at most


@dataclass(slots=True, eq=False)
class Track:
    """One stream as the scheduler sees it."""

    id: int
    arrived: float
    prompt_rows: int
    max_frames: int
    live: bool = True  # False: a whole file, which has no deadline
    first_chunk: int = 2
    prefilled: int = 0
    made: int = 0  # frames known to be speech
    started: int = 0  # frame steps begun, known or not
    decoded: int = 0  # frames given to the codec
    text_frames: float = inf  # frames for which there is text; later ones must wait for it
    room: float = inf  # frames that its reader's buffer can still take
    ended: bool = False  # no more frames will be made; what is left is flushed
    admitted: float = 0.0
    first_audio: float | None = None
    given: float = 0.0  # seconds of audio given to the reader
    resumed: float = 0.0  # seconds that playback stood still: for text, or for want of audio
    underruns: int = 0

    @property
    def prompt_left(self) -> int:
        return self.prompt_rows - 1 - self.prefilled

    @property
    def deadline(self) -> float:
        """When the player runs dry; a stream that has given nothing yet is due at once."""
        if self.first_audio is None:
            return self.arrived
        return self.first_audio + self.resumed + self.given

    def lead(self, now: float) -> float:
        return inf if not self.live else self.deadline - now if self.first_audio is not None else 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: prefill rows by stream, streams that make a frame, codec frames by stream."""

    prefill: tuple[tuple[Track, int], ...] = ()
    frame: tuple[Track, ...] = ()
    codec: tuple[tuple[Track, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.prefill or self.frame or self.codec)


@dataclass(slots=True)
class Scheduler:
    limits: Limits
    cost: CostModel
    running: list[Track] = field(default_factory=list)
    waiting: deque[Track] = field(default_factory=deque)
    pages_free: int = -1

    def __post_init__(self) -> None:
        self.pages_free = self.limits.pages

    # The door

    def offer(self, track: Track, now: float) -> None:
        """Takes a request into the queue, or refuses it at once with the time to come back."""
        if self.pages(track) > self.limits.pages:
            raise Overloaded("this request alone needs more memory than the engine has", retry_after=0)
        if len(self.waiting) >= self.limits.queue and not (not self.waiting and self._fits(track)):
            raise Overloaded("all streams are taken and the queue is full", retry_after=self.retry_after(now))
        self.waiting.append(track)

    def admit(self, now: float) -> tuple[list[Track], list[Track]]:
        """Those who may begin now, in the order they came, and those who waited too long."""
        expired = [track for track in self.waiting if now - track.arrived > self.limits.queue_seconds]
        for track in expired:
            self.waiting.remove(track)
        admitted = []
        while self.waiting and self._fits(self.waiting[0]):
            track = self.waiting.popleft()
            track.admitted = now
            self.pages_free -= self.pages(track)
            self.running.append(track)
            admitted.append(track)
        return admitted, expired

    def release(self, track: Track) -> None:
        """A stream that is over, for whatever reason; also one that still waits."""
        if track in self.running:
            self.running.remove(track)
            self.pages_free += self.pages(track)
        elif track in self.waiting:
            self.waiting.remove(track)

    def pages(self, track: Track) -> int:
        """Reserved for all that the stream may come to: prompt, frames, and one frame made too late to stop."""
        return ceil((track.prompt_rows + track.max_frames + 1) / self.limits.page_size)

    def round_seconds(self, streams: int) -> float:
        """The time in which every one of so many live streams gets one more frame of audio."""
        return self.cost.seconds(streams, 0, streams)

    def capacity(self) -> int:
        """Live streams that can be kept fed at once; at least one, however slow the machine is."""
        room = self.limits.frame_seconds * self.limits.headroom
        streams = 1
        while streams < self.limits.slots and self.round_seconds(streams + 1) <= room:
            streams += 1
        return streams

    def retry_after(self, now: float) -> float:
        """A guess at when a place comes free: when half of those who speak have come to their middle."""
        ages = sorted(now - track.admitted for track in self.running)
        return max(1.0, ages[len(ages) // 2]) if ages else 1.0

    def _fits(self, track: Track) -> bool:
        if len(self.running) >= self.limits.slots or self.pages(track) > self.pages_free:
            return False
        return not track.live or sum(other.live for other in self.running) < self.capacity()

    # The step

    def plan(self, now: float) -> Plan:
        """What the next step does."""
        ready = sorted((t for t in self.running if self._can_make(t)), key=lambda t: self._order(t, now))
        prefill = self._prefill(now)
        pressing = bool(prefill) or any(t.live and t.lead(now) < self.limits.urgent for t in ready)
        if pressing:
            ready = [t for t in ready if t.lead(now) < self.limits.lead_cap] or ready
        return Plan(tuple(prefill), tuple(ready), tuple(self._codec(now)))

    def observe(self, plan: Plan, seconds: float) -> None:
        """How long a planned step took."""
        rows, frames = sum(n for _, n in plan.prefill), sum(n for _, n in plan.codec)
        self.cost.observe(self.cost.seconds(len(plan.frame), rows, frames), seconds)

    def gave(self, track: Track, frames: int, now: float) -> None:
        """Audio of so many frames has reached the reader's buffer."""
        if track.first_audio is None:
            track.first_audio = now
        elif track.live and now > track.deadline:
            track.underruns += 1
            track.resumed += now - track.deadline
        track.given += frames * self.limits.frame_seconds

    def _can_make(self, track: Track) -> bool:
        return (
            not track.ended
            and track.prompt_left == 0
            and track.started < min(track.max_frames, track.text_frames)
            and track.started - track.decoded < min(self.limits.ring, track.room + CHUNKS[-1])
        )

    def _order(self, track: Track, now: float) -> tuple[int, float]:
        """Starting streams first, then by deadline, files last."""
        if not track.live:
            return 2, track.arrived
        return (0, track.arrived) if track.first_audio is None else (1, track.deadline)

    def _prefill(self, now: float) -> list[tuple[Track, int]]:
        """Prompt rows for this step, as many as nobody's playback can feel."""
        due = sorted((t for t in self.running if t.prompt_left), key=lambda t: (not t.live, t.arrived))
        leads = [t.lead(now) for t in self.running if t.live and t.first_audio is not None and not t.ended]
        slack = max(min(leads, default=inf) / 2, self.limits.frame_seconds / 4)
        row = self.cost.correction * self.cost.prefill_row
        budget = int(min(self.limits.prefill_rows, slack / row if row else inf))
        chosen = []
        for track in due:
            if budget <= 0:
                break
            rows = min(track.prompt_left, budget)
            chosen.append((track, rows))
            budget -= rows
        return chosen

    def _codec(self, now: float) -> Iterable[tuple[Track, int]]:
        """Chunks that are ready: each as large as its stream's lead allows."""
        for track in self.running:
            available = track.made - track.decoded
            want = self.chunk(track, now)
            if available and track.room >= min(available, want) and (available >= want or track.ended):
                yield track, max(size for size in CHUNKS if size <= min(available, want))

    def chunk(self, track: Track, now: float) -> int:
        """Frames of a stream's next chunk: half of its lead may pass while they are made."""
        if not track.live:
            return CHUNKS[-1]
        if track.first_audio is None:
            return track.first_chunk
        frames = track.lead(now) / 2 / self.limits.frame_seconds
        return max([size for size in CHUNKS if size <= frames], default=1)
