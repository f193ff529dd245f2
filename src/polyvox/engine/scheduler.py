"""Who runs in the next step, and who is let in: arithmetic on plain values, no tensors, the clock an argument.

A listener hears audio at a fixed rate, so a stream has a *lead*, the seconds of audio it has been given beyond
what it has played, and a *deadline*, the moment the lead is used up. Every step goes to the streams that need it
most and lasts no longer than the shortest lead allows; a new one is let in only if all can still be kept fed.
`benchmarks/scheduling.py` shows what comes of it.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, inf

from polyvox.engine.cost_model import FOLLOW, CostModel
from polyvox.engine.slots import SlotLedger
from polyvox.engine.stream_state import CHUNK_SIZES, FIRST_CHUNK, SchedulerLimits, StepPlan, StreamState
from polyvox.errors import InvalidRequest, Overloaded

# A step may last so many times what was predicted (a stall of 3, noise of 1.2) before the shortest lead is used up.
STALL = 3.6
# In a step in which somebody starts, streams far ahead and files fill it to this share of a frame and no further.
QUICK = 0.25
# Share of slots, pages and queue that whole files may take: a flood of them must not shut out live streams.
FILES = 0.5
# Seconds that a stream holds its place, as long as none has ended.
USUAL_HELD = 3.0
# How many ends are remembered, for each stream that runs.
REMEMBERED = 4
# Whoever was let into the queue is served, even if later than was foreseen. So many seconds later it is told that there
# is no place: they are held by streams that do not come to an end.
GIVE_UP = 30.0
# A codec call is well filled when its frames cost so many times what the call itself does.
FULL_CALL = 3
# Steps that may pass from one chunk of a frame to the next: the frame's, the codec's, one that runs, one that stalls.
NEXT_STEPS = 5
# Streams from which on sound is held until it is worth a chunk; with fewer the host has time for each.
CROWD = 64
# Seconds for which a look at all streams tells those at the door how things stand.
FRESH = 0.05


@dataclass(slots=True)
class _Ends:
    """Streams that have ended lately, and the seconds that they had held their places."""

    number: float = 1.0
    held: float = USUAL_HELD

    def count(self, seconds: float, running: int) -> None:
        kept = 1 - 1 / (REMEMBERED * running + 1)
        self.number = self.number * kept + 1
        self.held = self.held * kept + seconds

    def seconds(self, ages: float) -> float:
        """That a place is held, where those who have not ended have held theirs for `ages` together.

        Without these, only the short ones would count while long ones run.
        """
        return (self.held + ages) / self.number


@dataclass(slots=True)
class _Look:
    """How all streams stood at a moment."""

    moment: float
    owing: int  # live ones whose players wait for the engine
    leads: list[float]  # of those who listen and wait for the engine, the shortest first
    _slack: tuple[float, float] | None = None  # as it was last asked for

    def slack(self, each: float) -> float:
        """Seconds that could be lost and all would still meet their next deadlines, where a frame takes so many."""
        if self._slack is None or self._slack[0] != each:
            self._slack = each, min((lead - each * place for place, lead in enumerate(self.leads, 1)), default=inf)
        return self._slack[1]


@dataclass(slots=True)
class Scheduler:
    limits: SchedulerLimits
    cost: CostModel
    ledger: SlotLedger
    running: list[StreamState] = field(default_factory=list)
    waiting: deque[StreamState] = field(default_factory=deque)
    longest: int = field(init=False)  # chunk; the other half of the ring is for the frames made meanwhile
    files: int = 0  # of those that run
    file_pages: int = 0
    ends: dict[bool, "_Ends"] = field(default_factory=lambda: {True: _Ends(), False: _Ends()})  # by whether live
    # Means of late steps: prompt rows for each frame, codec calls.
    rows: float = 0.0
    calls: float = 1.0
    _seen: _Look | None = None  # until something changes

    def __post_init__(self) -> None:
        self.longest = _whole(min(max(1, self.limits.ring // 2), self.limits.chunk))

    # The door

    def offer(self, track: StreamState, now: float) -> None:
        """Takes a request into the queue, or refuses it at once with the time to come back."""
        if self.pages(track) > self.limits.pages:
            most = self.limits.pages * self.limits.page_size
            requirement = f"prompt and speech must fit into {most} positions"
            hint = "Shorten the text or raise the engine's context."
            raise InvalidRequest("text", track.prompt_rows + track.max_frames, requirement, hint)
        self._check_door(track.live, track.continues, self.pages(track), now)
        self.waiting.append(track)

    def look(self, live: bool, continues: bool, now: float) -> None:
        """Raises Overloaded where one that comes now will be refused however small it is."""
        self._check_door(live, continues, 0, now)

    def admit(self, now: float) -> tuple[list[StreamState], list[StreamState]]:
        """Those who may begin now, and those who waited too long.

        The next sentence of an utterance goes first, as somebody hears it already; then live ones, then files, each
        kind as it came.
        """
        expired = [track for track in self.waiting if now - track.arrived > self.give_up_seconds]
        for track in expired:
            self.waiting.remove(track)
        relaxed = bool(self.waiting) and self._relaxed(now)
        admitted: list[StreamState] = []
        shut: set[bool] = set()
        for track in sorted(self.waiting, key=lambda track: (not track.live, not track.continues)):
            if track.live in shut or not self._places(track.live, track.continues, self.pages(track), relaxed, now):
                shut.add(track.live)
                continue
            self.waiting.remove(track)
            track.admitted, track.allocation = now, self.ledger.allocate(self.pages(track))
            self._count(track, 1)
            self.running.append(track)
            if self._seen is not None:
                self._seen.owing += track.live
            admitted.append(track)
        for track in admitted:  # now that all who begin together are counted
            track.first_chunk = track.first_chunk or self.first_chunk(now)
        return admitted, expired

    @property
    def give_up_seconds(self) -> float:
        """After which one that was let into the queue is sent away all the same."""
        return self.limits.max_queue_seconds + GIVE_UP

    def wait(self, live: bool, pages: int, now: float) -> float:
        """Seconds until one that comes now may begin: by how many go before it, and how long places are held."""
        before = sum(track.live is live for track in self.waiting)
        free = self._free(live, now)
        missing = before + 1 - free
        if pages > len(self.ledger.free_pages):
            missing = max(missing, 1)
        if missing <= 0:
            return 0.0
        holding = [track for track in self.running if track.live is live]
        ages = sum(now - track.admitted for track in holding if track.admitted is not None)
        return missing * self.ends[live].seconds(ages) / max(len(holding) + max(free, 0), 1)

    def ends_now(self, track: StreamState) -> None:
        """Nothing more of a stream will be heard, so nothing is made or decoded for it, and its place may be taken."""
        track.ended, track.made = True, track.decoded + track.sent
        self._seen = None

    def release(self, track: StreamState, now: float) -> None:
        """A stream that is over, for whatever reason; also one that still waits."""
        if track in self.running:
            self.running.remove(track)
            self._seen = None
            self._count(track, -1)
            if track.admitted is not None:
                self.ends[track.live].count(now - track.admitted, len(self.running) + 1)
            if track.allocation is not None:
                self.ledger.release(track.allocation)
                track.allocation = None
        elif track in self.waiting:
            self.waiting.remove(track)

    def pages(self, track: StreamState) -> int:
        """Reserved for all that the stream may come to: prompt, frames, and one frame made too late to stop."""
        return ceil((track.prompt_rows + track.max_frames + 1) / self.limits.page_size)

    def shrink(self, track: StreamState) -> Sequence[int]:
        """Frees the pages that a stream no longer needs after its max_frames became smaller, and returns them."""
        assert track.allocation is not None
        self._count(track, -1)
        freed = self.ledger.shrink(track.allocation, self.pages(track))
        self._count(track, 1)
        return freed

    def capacity(self) -> int:
        """Live streams that can be kept fed at once; at least one, however slow the machine is."""
        room = self.limits.frame_seconds * self.limits.headroom
        fixed, each = self._per_frame()
        streams = (room - fixed) / each if each else inf
        if streams > self.limits.batch:  # a frame of each takes several steps
            streams = room / (fixed / self.limits.batch + each)
        return max(1, int(min(streams, self.limits.slots)))

    def first_chunk(self, now: float) -> int:
        """Frames of a first chunk: one, where the next ones surely come before it is played, else FIRST_CHUNK."""
        fixed, each = self._per_frame()
        step = fixed + each * self._look(now).owing
        return 1 if NEXT_STEPS * step <= self.limits.frame_seconds else FIRST_CHUNK

    def retry_after(self, live: bool, now: float) -> float:
        """Seconds until one that comes then may be let into the queue."""
        return max(1.0, self.wait(live, 0, now) - self.limits.max_queue_seconds)

    def leads(self, now: float) -> list[float]:
        """Of those who listen, the shortest first."""
        return sorted(t.lead(now) for t in self.running if t.live and t.first_audio is not None)

    def _check_door(self, live: bool, continues: bool, pages: int, now: float) -> None:
        """Refuses at once whoever would wait too long: one that is let into the queue is served.

        The next sentence of an utterance was promised with its first.
        """
        places = self._places(live, continues, pages, self._relaxed(now), now)  # who waits for these waits no longer
        queue = self.limits.max_queue + (self.limits.slots if continues else 0)
        files = sum(not track.live for track in self.waiting)
        if len(self.waiting) >= places + queue or (not live and files >= places + FILES * queue):
            raise Overloaded("all streams are taken and the queue is full", self.retry_after(live, now))
        if not continues and self.wait(live, pages, now) > self.limits.max_queue_seconds:
            allowed = f"a place would not come free within {self.limits.max_queue_seconds:g} s"
            raise Overloaded(f"all streams are taken, and {allowed}", self.retry_after(live, now))

    def _free(self, live: bool, now: float) -> int:
        """Places for streams of this kind, by capacity or share and by slots; below 0 where too many run."""
        # A live one that waits for its text or its reader has given its share of the step to others.
        files = max(int(FILES * self.limits.slots), 1)
        free = self.capacity() - self._look(now).owing if live else files - self.files
        return min(free, self.limits.slots - len(self.running))

    def _places(self, live: bool, continues: bool, pages: int, relaxed: bool, now: float) -> int:
        """How many like this one could be let in now, by deadlines, slots and, for this one, pages."""
        if pages > len(self.ledger.free_pages):
            return 0
        free = self._free(live, now)
        if continues and live:  # it has the place of the sentence before it, or follows it there
            return max(0, min(free + 1, self.limits.slots - len(self.running)))
        if live and not relaxed and self._look(now).owing:
            return 0
        if not live and self.files and self.file_pages + pages > FILES * self.limits.pages:
            return 0
        return max(0, free)

    def _relaxed(self, now: float) -> bool:
        """Whether all could meet their next deadlines, the nearest first, if a step stalled or a frame were lost."""
        look, (fixed, each) = self._look(now), self._per_frame()
        lost = min(STALL * (fixed + each * (look.owing + 1)), self.limits.frame_seconds)
        return look.slack(each) - (now - look.moment) >= lost

    def _look(self, now: float) -> _Look:
        """Requests come by the hundred: not each of them counts all streams anew."""
        if self._seen is None or not 0 <= now - self._seen.moment < FRESH:
            owing = [track for track in self.running if track.owes_audio]
            leads = sorted(lead for track in owing if (lead := _need(track, now)) > -inf)
            self._seen = _Look(now, sum(track.live for track in owing), leads)
        return self._seen

    def _count(self, track: StreamState, sign: int) -> None:
        if not track.live:
            self.files += sign
            self.file_pages += sign * len(track.allocation.pages if track.allocation is not None else ())

    def _per_frame(self) -> tuple[float, float]:
        """Seconds of any step, and of each frame in it with its audio and its share of the prompts."""
        cost = self.cost
        each = cost.growing * (cost.stream + cost.codec_frame + cost.prefill_row * self.rows)
        return cost.fixed * (cost.step + cost.codec * max(1.0, self.calls)), each

    # The step

    def plan(self, now: float) -> StepPlan:
        """What the next step does; nothing only where no stream can do anything."""
        limits, cost = self.limits, self.cost
        ready: list[tuple[float, float, int, StreamState]] = []
        chunks: list[tuple[float, int, StreamState]] = []
        prompts: list[StreamState] = []
        leads: list[float] = []
        live = 0
        for track in self.running:  # all in one pass: with a thousand streams, time is short
            if track.paused or track.waited is not None or track.room < 1 or track.started >= track.text_frames:
                self._hold(track, now)
            need = _need(track, now)
            waits = track.made - track.decoded - track.sent  # frames, for the codec
            if track.owes_audio:
                live += track.live
                if need > -inf:
                    leads.append(need)
            if track.prompt_left > 0:
                prompts.append(track)
            elif self._can_make(track):
                ready.append((need, track.arrived, track.id, track))
            if waits > 0 and track.room >= 1 + track.sent:
                chunks.append((need, track.id, track))
        leads.sort()
        self._seen = _Look(now, live, leads)
        least, budget = self._budget(leads[: bisect_left(leads, limits.lead_cap)], live)
        pressing = sum(entry[0] < limits.urgent for entry in ready)
        busy = pressing > 0 or any(track.live for track in prompts)
        sized = self._sized(sorted(chunks), busy, now)
        behind = sum(entry[0] < limits.lead_cap for entry in ready)
        all_live = budget - cost.seconds(max(behind, least), 0, 0) if behind else inf  # leave so much to files
        # Frames of all that press are made in any case: as many are heard, or they would pile up before the codec.
        heard = max(budget - cost.seconds(least, 0, 0), cost.seconds(0, 0, pressing))
        codec, spent = self._codec(sized, heard, all_live)
        free = budget - spent - cost.seconds(max(pressing, least), 0, 0)
        prefill = self._prefill(prompts, budget, free, all_live - spent)
        complete = [track for track, rows in prefill if rows == track.prompt_left and track.text_frames > 0]
        ready += [(_need(track, now), track.arrived, track.id, track) for track in complete]
        spent += cost.fixed * cost.step + cost.seconds(0, sum(rows for _, rows in prefill), 0)
        count = max(pressing + len(complete), least, self._streams_in(budget - spent))
        if busy:  # those far ahead and files fill only what a quick step leaves
            behind += sum(track.live for track in complete)
            count = min(count, max(behind, self._streams_in(QUICK * limits.frame_seconds - spent)))
        frame = [entry[3] for entry in sorted(ready)[: min(count, limits.batch)]]
        return StepPlan(tuple(prefill), tuple(frame), tuple(codec))

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """How long a planned step took."""
        streams, rows, frames, calls = plan.sizes()
        self.cost.observe(streams, rows, frames, calls, seconds)
        self.calls += FOLLOW * (calls - self.calls)
        # Weighed by its streams, so that many rows beside few frames count for what they are.
        weight = FOLLOW * streams / min(self.limits.batch, self.limits.slots)
        self.rows += weight * (rows / max(streams, 1) - self.rows)

    def gave(self, track: StreamState, frames: float, now: float) -> None:
        """Audio of so many frames, already counted in `decoded`, has reached the reader's buffer."""
        late = now - track.deadline
        resumes = track.waited is not None and track.decoded > track.waited
        if track.first_audio is None:
            track.first_audio = track.deadline = now
        elif late > 0:
            track.deadline = now
            track.underruns += track.live and not (track.paused or resumes)
        track.paused = False
        track.waited = None if resumes else track.waited
        track.given += frames * self.limits.frame_seconds
        track.deadline += frames * self.limits.frame_seconds
        track.held = 0

    def due(self, track: StreamState, now: float) -> bool:
        """Whether the frames that are held are given now; each chunk costs the host, however short it is."""
        if track.room < 1 or track.held >= self.longest or track.needs_text:
            return True
        if len(self.running) < CROWD and not track.starts(now):
            return True  # what is held back is missed where a step stalls
        if track.starts(now):
            return track.held >= track.first_chunk
        lead = track.lead(now)
        if lead < self.limits.urgent:  # to hold more than was waited for could leave its player dry with sound at hand
            return track.held >= self.chunk(track, now)
        return 2 * track.held * self.limits.frame_seconds >= lead

    def chunk(self, track: StreamState, now: float) -> int:
        """Frames that a stream's next chunk waits for: half of its lead may pass while they are made."""
        if track.starts(now):
            return min(track.first_chunk, self.longest)
        return _whole(min(max(1.0, track.lead(now) / 2 / self.limits.frame_seconds), self.longest))

    def _hold(self, track: StreamState, now: float) -> None:
        """Stops the clock of a stream that has given all it can: its text or its reader is late, not the engine."""
        hungry = track.needs_text
        if track.first_audio is not None and now < track.deadline:
            # Text or reader came back before the player ran dry: from here on lateness is the engine's own.
            track.waited = None
            track.paused = track.paused and track.room < 1
        if hungry and track.waited is None:  # else the pause that began then is not over: nothing was given since
            track.waited = track.started
        if track.room < 1 and track.made > track.decoded:
            track.paused = True
        elif not (hungry and track.decoded == track.started):
            return
        if track.first_audio is not None:
            track.deadline = max(track.deadline, now)

    def _can_make(self, track: StreamState) -> bool:
        return (
            not track.ended
            and track.started < track.max_frames
            and track.started < track.text_frames
            and track.started - track.decoded < min(self.limits.ring, track.room + CHUNK_SIZES[-1])
        )

    def _budget(self, leads: list[float], live: int) -> tuple[int, float]:
        """The fewest streams that the step must have, and the seconds that it may take, by the leads in order.

        A stall must not use up the shortest lead, nor a newcomer wait longer than a frame. But short steps cost
        more than long ones: in the long run there is a fewest at which all live streams keep up; half of it will do
        for a moment, if those who are close to their deadline are among them.
        """
        if not live:
            return 1, inf
        fixed, each = self._per_frame()
        spare = self.limits.frame_seconds * self.limits.headroom / live - each
        least = max(1, min(ceil(fixed / spare) if spare > 0 else live, live, self.limits.batch))
        stalled = STALL * (fixed + each * least)
        if leads and leads[0] < stalled:
            least = min(least, max(ceil(least / 2), bisect_left(leads, stalled)))
        # Those who are late already are served at once: a small step would make all of them later.
        least = min(max(least, bisect_left(leads, 0.0)), self.limits.batch)
        seconds = min(leads[0] / STALL if leads else inf, self.limits.frame_seconds)
        return least, max(fixed + each * least, seconds)

    def _streams_in(self, seconds: float) -> int:
        each = self.cost.growing * self.cost.stream
        return int(max(0.0, min(seconds / each, self.limits.batch))) if each else self.limits.batch

    def _prefill(
        self, prompts: list[StreamState], budget: float, free: float, files: float
    ) -> list[tuple[StreamState, int]]:
        """Prompt rows of this step: what nobody's playback can feel; of live ones at least what headroom keeps."""
        row = max(self.cost.growing * self.cost.prefill_row, 1e-9)
        kept = max(free, row, (1 - self.limits.headroom) * budget)
        chosen, used = [], 0
        for track in sorted(prompts, key=lambda track: (not track.live, track.arrived, track.id)):
            seconds = kept if track.live else min(kept, files)
            room = min(seconds / row, self.limits.prefill_rows) - used
            if room < 1:
                break
            chosen.append((track, min(track.prompt_left, int(room))))
            used += chosen[-1][1]
        return chosen

    def _codec(
        self, chunks: list[tuple[StreamState, int]], seconds: float, files: float
    ) -> tuple[list[tuple[StreamState, int]], float]:
        """As many of the chunks as there is time for, and what they cost; the first one whatever it costs."""
        chosen: list[tuple[StreamState, int]] = []
        sizes: set[int] = set()
        total, most = 0, max(self.limits.batch, CHUNK_SIZES[-1])
        call, each = self.cost.fixed * self.cost.codec, self.cost.growing * self.cost.codec_frame
        for track, wanted in chunks:
            frames = wanted
            room = seconds if track.live else min(seconds, files)
            while frames and (chosen or not (track.live or files == inf)):
                cost = call * (len(sizes) + (frames not in sizes)) + each * (total + frames)
                if total + frames <= most and cost <= room:
                    break
                frames //= 2
            if not frames:
                break
            chosen.append((track, frames))
            sizes.add(frames)
            total += frames
        return chosen, self.cost.seconds(0, 0, total, len(sizes))

    def _sized(
        self, chunks: list[tuple[float, int, StreamState]], busy: bool, now: float
    ) -> list[tuple[StreamState, int]]:
        """Chunks worth decoding now. Every size is a call of its own, so a busy step has few of them."""
        worth = self.cost.codec / self.cost.codec_frame if busy and self.cost.codec_frame else 0.0
        found: list[tuple[float, StreamState, int, bool]] = []
        urgent: Counter[int] = Counter()  # frames by size
        easy: Counter[int] = Counter()
        for need, _, track in chunks:
            available, room = track.made - track.decoded - track.sent, track.room - track.sent
            size = _whole(min(available, room, self.longest))
            wanted = min(self.chunk(track, now) - track.held, room)
            complete = available >= wanted or track.ended or track.needs_text
            found.append((need, track, size, complete))
            if need > -inf and complete:
                (urgent if need < self.limits.urgent else easy)[size] += size
        # With many, the smallest size in which all together fill one call well.
        sizes = sorted(entry[2] for entry in found)
        filled = (s for s in CHUNK_SIZES if worth and s * (len(sizes) - bisect_left(sizes, s)) >= FULL_CALL * worth)
        bulk = next(filled, inf)
        chosen = []
        for need, track, size, complete in found:
            if bulk <= size and need > -inf:
                chosen.append((track, int(bulk)))
            elif complete:
                if need >= self.limits.urgent and easy[size] < worth and not urgent[size]:
                    if track.ended:  # its place is wanted: it goes with others
                        size = max((other for other in CHUNK_SIZES if other <= size and urgent[other]), default=size)
                    elif size < min(self.longest, _whole(track.room - track.sent)):
                        continue
                chosen.append((track, size))
        return chosen


def _need(track: StreamState, now: float) -> float:
    """What orders streams, the smallest first: those that start, then by lead, then files."""
    return -inf if track.starts(now) else track.lead(now)


def _whole(frames: float) -> int:
    """The largest chunk of no more than so many frames."""
    return 1 << int(min(frames, CHUNK_SIZES[-1])).bit_length() - 1
