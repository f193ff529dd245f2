"""Who runs in the next step, and who is let in: arithmetic on plain values, no tensors, the clock an argument.

A listener hears audio at a fixed rate, so a stream has a *lead*, the seconds of audio it has been given beyond what it
has played, and a *deadline*, the moment the lead is used up. Every step goes to the streams that need it most, lasts
no longer than the shortest lead allows, and a new stream is let in only if all of them can still be kept fed.
"""

from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass, field
from math import ceil, inf

from polyvox.errors import Overloaded

# Frames of a codec chunk; a stream's chunk grows with its lead.
CHUNKS = (1, 2, 4, 8, 16)
# A step may take so many times what was predicted (a stall of 3, noise of 1.2) before the shortest lead is used up.
STALL = 3.6
# While somebody starts, streams far ahead and files lengthen the step to this share of a frame and no further.
GATE = -1e9
QUICK = 0.25
# Share of the slots and of the pages that whole files may hold: a flood of them must not shut out live streams.
FILES = 0.5
# How fast the cost model follows the machine: about 50 steps; and how wrong it may come to believe that it was.
FOLLOW, FACTORS = 0.02, (0.2, 10.0)


@dataclass(slots=True)
class CostModel:
    """Seconds of a step by what is in it; measured at start, corrected while running.

    What any call costs and what grows with its size are corrected apart: the small steps of a quiet hour must not
    promise anything about full ones.
    """

    step: float  # any frame step at all
    stream: float  # each stream of a frame step
    prefill_row: float
    codec: float  # any codec call at all; one call for each size of chunk
    codec_frame: float
    fixed: float = 1.0  # correction of `step` and `codec`
    growing: float = 1.0  # correction of the others

    def seconds(self, streams: int, prefill_rows: int, codec_frames: int, codec_calls: int = 1) -> float:
        fixed, growing = self._parts(streams, prefill_rows, codec_frames, codec_calls)
        return self.fixed * fixed + self.growing * growing

    def observe(self, streams: int, prefill_rows: int, codec_frames: int, codec_calls: int, actual: float) -> None:
        """Follows the machine slowly: one stall must not close the door, a slower machine must."""
        fixed, growing = self._parts(streams, prefill_rows, codec_frames, codec_calls)
        predicted = self.fixed * fixed + self.growing * growing
        if predicted <= 0:
            return
        error = min(max(actual, predicted / 2), predicted * 2) - predicted
        # Each part takes as much of the error as it has of the step (normalised least mean squares).
        gain = FOLLOW * error / (fixed * fixed + growing * growing)
        self.fixed = min(max(self.fixed + gain * fixed, FACTORS[0]), FACTORS[1])
        self.growing = min(max(self.growing + gain * growing, FACTORS[0]), FACTORS[1])

    def _parts(self, streams: int, prefill_rows: int, codec_frames: int, codec_calls: int) -> tuple[float, float]:
        fixed = (self.step if streams else 0.0) + (self.codec * codec_calls if codec_frames else 0.0)
        return fixed, self.stream * streams + self.prefill_row * prefill_rows + self.codec_frame * codec_frames


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
    batch: int = 512  # streams of one frame step and frames of one codec step, at most


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
    resumed: float = 0.0  # seconds that playback stood still: for text, for its reader, or for want of audio
    underruns: int = 0
    waited: int | None = None  # frames begun when the text ran out: the pause after them is not an underrun
    paused: bool = False  # the reader's buffer was full: the pause before the next chunk is not an underrun

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
    """One step, in this order: prefill rows by stream, streams that make a frame, codec frames by stream.

    A stream whose prompt is complete after this plan's rows makes its first frame in the same step.
    """

    prefill: tuple[tuple[Track, int], ...] = ()
    frame: tuple[Track, ...] = ()
    codec: tuple[tuple[Track, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.prefill or self.frame or self.codec)

    def sizes(self) -> tuple[int, int, int, int]:
        """Streams, prefill rows, codec frames, codec calls: what the step costs by."""
        chunks = [frames for _, frames in self.codec]
        return len(self.frame), sum(rows for _, rows in self.prefill), sum(chunks), len(set(chunks))


@dataclass(slots=True)
class Scheduler:
    limits: Limits
    cost: CostModel
    running: list[Track] = field(default_factory=list)
    waiting: deque[Track] = field(default_factory=deque)
    pages_free: int = -1
    files: int = 0  # of those that run
    file_pages: int = 0
    slack: float = inf  # seconds by which the deadlines of the last plan could be met
    # Of late steps, each weighing less than the one after it:
    steps_seen: float = 0.0
    frames_seen: float = 0.0
    rows_seen: float = 0.0
    calls_seen: float = 0.0

    def __post_init__(self) -> None:
        self.pages_free = self.limits.pages

    # The door

    def offer(self, track: Track, now: float) -> None:
        """Takes a request into the queue, or refuses it at once with the time to come back."""
        if self.pages(track) > self.limits.pages:
            raise Overloaded("this request alone needs more memory than the engine has", retry_after=0)
        if len(self.waiting) >= self.limits.queue and (self.waiting or not self._fits(track)):
            raise Overloaded("all streams are taken and the queue is full", retry_after=self.retry_after(now))
        self.waiting.append(track)

    def admit(self, now: float) -> tuple[list[Track], list[Track]]:
        """Those who may begin now, live ones first, each kind in the order it came; and those who waited too long."""
        if not self.waiting:
            return [], []
        expired = [track for track in self.waiting if now - track.arrived > self.limits.queue_seconds]
        for track in expired:
            self.waiting.remove(track)
        admitted: list[Track] = []
        for live in (True, False):
            for track in [track for track in self.waiting if track.live is live]:
                if not self._fits(track):
                    break
                self.waiting.remove(track)
                track.admitted = now
                self._count(track, 1)
                self.running.append(track)
                admitted.append(track)
        return admitted, expired

    def release(self, track: Track) -> None:
        """A stream that is over, for whatever reason; also one that still waits."""
        if track in self.running:
            self.running.remove(track)
            self._count(track, -1)
        elif track in self.waiting:
            self.waiting.remove(track)

    def pages(self, track: Track) -> int:
        """Reserved for all that the stream may come to: prompt, frames, and one frame made too late to stop."""
        return ceil((track.prompt_rows + track.max_frames + 1) / self.limits.page_size)

    def capacity(self) -> int:
        """Live streams that can be kept fed at once; at least one, however slow the machine is."""
        room = self.limits.frame_seconds * self.limits.headroom
        fixed, each = self._per_frame()
        streams = (room - fixed) / each if each else inf
        if streams > self.limits.batch:  # the frames of 80 ms take several steps
            streams = room / (fixed / self.limits.batch + each)
        return max(1, int(min(streams, self.limits.slots)))

    def retry_after(self, now: float) -> float:
        """Seconds until a place may be free: half of those who speak will be gone in about their median age."""
        ages = sorted(now - track.admitted for track in self.running)
        if not ages:
            return 1.0
        return max(1.0, ages[len(ages) // 2] * min(1.0, 2 * (len(self.waiting) + 1) / len(ages)))

    def _fits(self, track: Track) -> bool:
        pages = self.pages(track)
        if len(self.running) >= self.limits.slots or pages > self.pages_free:
            return False
        if track.live:
            live = len(self.running) - self.files
            return not live or (live < self.capacity() and self.slack >= GATE * self._budget([])[1])
        places, memory = FILES * self.limits.slots, FILES * self.limits.pages
        return not self.files or (self.files < places and self.file_pages + pages <= memory)

    def _count(self, track: Track, sign: int) -> None:
        pages = self.pages(track)
        self.pages_free -= sign * pages
        if not track.live:
            self.files += sign
            self.file_pages += sign * pages

    def _per_frame(self) -> tuple[float, float]:
        """Seconds of any step, and of each frame in it with its audio and its share of the prompts."""
        cost = self.cost
        rows = self.rows_seen / self.frames_seen if self.frames_seen else 0.0
        calls = max(1.0, self.calls_seen / self.steps_seen) if self.steps_seen else 1.0
        each = cost.growing * (cost.stream + cost.codec_frame + cost.prefill_row * rows)
        return cost.fixed * (cost.step + cost.codec * calls), each

    def _slack(self, leads: list[float]) -> float:
        """Seconds that could be lost now while every stream still got its next frame in time, the nearest first."""
        _, each = self._per_frame()
        return min((lead - each * (place + 1) for place, lead in enumerate(leads)), default=inf)

    # The step

    def plan(self, now: float) -> Plan:
        """What the next step does; nothing only where no stream can do anything."""
        limits, cost = self.limits, self.cost
        ready: list[tuple[float, float, int, Track]] = []
        chunks: list[tuple[float, int, Track]] = []
        prompts: list[Track] = []
        owed: list[float] = []
        for track in self.running:
            self._hold(track, now)
            need = _need(track, now)
            if -inf < need < limits.lead_cap and track.owes_audio:
                owed.append(need)
            if track.prompt_left > 0:
                prompts.append(track)
            elif self._can_make(track):
                ready.append((need, track.arrived, track.id, track))
            if track.made > track.decoded and track.room >= 1:
                chunks.append((need, track.id, track))
        owed.sort()
        self.slack = self._slack(owed)
        least, budget = self._budget(owed)
        pressing = sum(entry[0] < limits.urgent for entry in ready)
        codec, spent = self._codec(chunks, budget - cost.seconds(least, 0, 0), bool(pressing or prompts), now)
        prefill = self._prefill(prompts, budget, spent + cost.seconds(max(pressing, least), 0, 0))
        for track, rows in prefill:
            if rows == track.prompt_left and track.text_frames > 0:
                ready.append((_need(track, now), track.arrived, track.id, track))
        spent += cost.seconds(1, sum(rows for _, rows in prefill), 0)
        count = max(pressing + len(prefill), least, self._streams_in(budget - spent))
        if pressing or prefill:  # those far ahead and files fill only what a quick step leaves
            behind = sum(entry[0] < limits.lead_cap for entry in ready)
            count = min(count, max(behind, self._streams_in(QUICK * limits.frame_seconds - spent)))
        ready.sort()
        frame = tuple(entry[3] for entry in ready[: min(count, limits.batch)])
        return Plan(tuple(prefill), frame, tuple(codec))

    def observe(self, plan: Plan, seconds: float) -> None:
        """How long a planned step took."""
        sizes = plan.sizes()
        self.cost.observe(*sizes, seconds)
        self.steps_seen += 1 - FOLLOW * self.steps_seen
        self.frames_seen += sizes[0] - FOLLOW * self.frames_seen
        self.rows_seen += sizes[1] - FOLLOW * self.rows_seen
        self.calls_seen += sizes[3] - FOLLOW * self.calls_seen

    def gave(self, track: Track, frames: float, now: float) -> None:
        """Audio of so many frames, already counted in `decoded`, has reached the reader's buffer."""
        late = now - track.deadline
        resumes = track.waited is not None and track.decoded > track.waited
        if track.first_audio is None:
            track.first_audio = now
        elif late > 0:
            track.resumed += late
            track.underruns += track.live and not (track.paused or resumes)
        track.paused = False
        track.waited = None if resumes else track.waited
        track.given += frames * self.limits.frame_seconds

    def chunk(self, track: Track, now: float) -> int:
        """Frames that a stream's next chunk waits for: half of its lead may pass while they are made."""
        if track.live and track.first_audio is None:
            return min(track.first_chunk, self._longest())
        frames = max(1.0, track.lead(now) / 2 / self.limits.frame_seconds)
        return _whole(min(frames, self._longest()))

    def _longest(self) -> int:
        return _whole(max(1, self.limits.ring // 2))  # the other half is for the frames made meanwhile

    def _hold(self, track: Track, now: float) -> None:
        """Stops the clock of a stream that has given all it can: its text or its reader is late, not the engine."""
        hungry = track.needs_text
        if hungry:
            track.waited = track.started
        if track.room < 1 and track.made > track.decoded:
            track.paused = True
        elif not (hungry and track.decoded == track.started):
            return
        if track.first_audio is not None:
            track.resumed += max(0.0, now - track.deadline)

    def _can_make(self, track: Track) -> bool:
        return (
            not track.ended
            and track.started < track.max_frames
            and track.started < track.text_frames
            and track.started - track.decoded < min(self.limits.ring, track.room + CHUNKS[-1])
        )

    def _budget(self, leads: list[float]) -> tuple[int, float]:
        """The fewest streams that the step must have, and the seconds that it may take, by the leads in order.

        A stall must not use up the shortest lead, nor a newcomer wait longer than a frame. But short steps cost
        more than long ones: in the long run there is a fewest at which all live streams keep up; half of it will do
        for a moment, if those who are close to their deadline are among them.
        """
        live = len(self.running) - self.files
        if not live:
            return 1, inf
        fixed, each = self._per_frame()
        spare = self.limits.frame_seconds * self.limits.headroom / live - each
        least = min(ceil(fixed / spare) if spare > 0 else live, live, self.limits.batch)
        seconds = min(leads[0] / STALL, self.limits.frame_seconds) if leads else self.limits.frame_seconds
        if leads and seconds < fixed + each * least:
            least = min(least, max(ceil(least / 2), bisect_left(leads, STALL * (fixed + each * least))))
        return least, max(fixed + each * least, seconds)

    def _streams_in(self, seconds: float) -> int:
        each = self.cost.growing * self.cost.stream
        return int(max(0.0, min(seconds / each, self.limits.batch))) if each else self.limits.batch

    def _prefill(self, prompts: list[Track], budget: float, spent: float) -> list[tuple[Track, int]]:
        """Prompt rows of this step: what nobody's playback can feel; to live ones always what headroom keeps free."""
        row = max(self.cost.growing * self.cost.prefill_row, 1e-9)
        free, kept = (budget - spent) / row, (1 - self.limits.headroom) * budget / row
        chosen, used = [], 0
        for track in sorted(prompts, key=lambda track: (not track.live, track.arrived, track.id)):
            room = min(max(free, kept) if track.live else free, self.limits.prefill_rows) - used
            if room < 1:
                break
            chosen.append((track, min(track.prompt_left, int(room))))
            used += chosen[-1][1]
        return chosen

    def _codec(
        self, chunks: list[tuple[float, int, Track]], seconds: float, busy: bool, now: float
    ) -> tuple[list[tuple[Track, int]], float]:
        """The chunks of this step by need, as many as there is time for, and what they cost."""
        chosen: list[tuple[Track, int]] = []
        sizes: set[int] = set()
        total, cost = 0, 0.0
        most = max(self.limits.batch, CHUNKS[-1])
        for track, frames in self._sized(sorted(chunks), busy, now):
            while frames:
                cost = self.cost.seconds(0, 0, total + frames, len(sizes | {frames}))
                if (total + frames <= most and cost <= seconds) or (track.live and not chosen):
                    break
                frames //= 2
            if not frames:
                break
            chosen.append((track, frames))
            sizes.add(frames)
            total += frames
        return chosen, self.cost.seconds(0, 0, total, len(sizes))

    def _sized(self, chunks: list[tuple[float, int, Track]], busy: bool, now: float) -> list[tuple[Track, int]]:
        """Chunks worth decoding now. Each size is a call of its own, so in a busy step few sizes are opened."""
        worth = self.cost.codec / self.cost.codec_frame if busy and self.cost.codec_frame else 0.0
        wanted: list[tuple[float, Track, int]] = []
        pressing: Counter[int] = Counter()
        easy: Counter[int] = Counter()
        for need, _, track in chunks:
            available = min(track.made - track.decoded, track.room)
            if available < self.chunk(track, now) and not (
                track.ended or track.needs_text or available == track.room
            ):
                continue
            size = _whole(available)
            wanted.append((need, track, size))
            (pressing if need < self.limits.urgent else easy)[size] += size
        open_sizes = [size for size in CHUNKS if pressing[size]]
        joins = {size: size for size in CHUNKS}
        for smaller, size in zip(open_sizes, open_sizes[1:], strict=False):
            if pressing[size] < worth or (worth and size == 2 * joins[smaller]):
                joins[size] = joins[smaller]  # in two steps the same frames, and one call less
        return [
            (track, frames)
            for need, track, size in wanted
            if (frames := self._joined(need, track, size, joins, pressing, easy[size] >= worth))
        ]

    def _joined(
        self, need: float, track: Track, size: int, joins: dict[int, int], pressing: Counter[int], worth: bool
    ) -> int:
        """The size in which a stream's chunk takes part, 0 where it can wait for company."""
        if need == -inf:
            return size
        if need < self.limits.urgent:
            return joins[size] if need > 2 * self.limits.frame_seconds else size
        if worth or pressing[size] or size == self._longest():
            return size
        if track.ended:  # its place is wanted
            return max((other for other in joins.values() if pressing[other] and other <= size), default=size)
        return 0


def _need(track: Track, now: float) -> float:
    """What orders streams, the smallest first: those that start, then by lead, then files."""
    return -inf if track.live and track.first_audio is None else track.lead(now)


def _whole(frames: float) -> int:
    """The largest chunk of no more than so many frames."""
    return max(size for size in CHUNKS if size <= frames)
