# SPDX-License-Identifier: Apache-2.0
"""The scheduler as plain Python, one stream after the other: the reference implementation of the one with arrays."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from math import ceil, inf

from polyvox.engine import scheduler
from polyvox.engine.load import LoadModel
from polyvox.engine.scheduler import (
    BUSY_STEP_SHARE,
    CHUNK_SHARE,
    FULL_CALL_FACTOR,
    LARGE_CHUNK_SHARE,
    MIN_STREAMS_TO_WITHHOLD,
    STALL_FACTOR,
)
from polyvox.engine.stream_state import CHUNK_SIZES, SchedulerLimits, StreamState
from polyvox.engine.stream_table import StreamTable
from polyvox.models.request import MAX_CHUNK_FRAMES


def needs_text(stream: StreamState) -> bool:
    """No frame can be generated before more text arrives."""
    return not stream.ended and stream.text_frames <= stream.started < stream.max_frames


def needs_frames(stream: StreamState) -> bool:
    """The player waits for the engine, not for text or its reader."""
    drained = stream.ended and stream.decoded >= stream.generated
    return not stream.reader_gap and stream.text_gap == inf and not drained


def is_starting(stream: StreamState, now: float) -> bool:
    """The player has nothing to play: at the beginning, or after a gap that the client caused."""
    if not stream.live or stream.first_audio_at == inf:
        return stream.live and now >= stream.plays_at
    return (stream.reader_gap or stream.text_gap < inf) and now >= stream.deadline


def lead(stream: StreamState, now: float) -> float:
    """Seconds until the player's buffer is empty; infinite for a file."""
    if not stream.live:
        return inf
    return stream.deadline - now if stream.first_audio_at < inf else max(0.0, stream.plays_at - now)


def is_text_limited(stream: StreamState, now: float, limits: SchedulerLimits) -> bool:
    seconds = limits.frame_seconds * (stream.text_frames - stream.started)
    return lead(stream, now) + seconds < limits.urgent_lead


def urgency(stream: StreamState, now: float) -> float:
    """Sort key, the smallest first: starting streams, then by lead, then files."""
    return -inf if is_starting(stream, now) else lead(stream, now)


@dataclass(frozen=True, slots=True)
class ReferencePlan:
    prefill: tuple[tuple[StreamState, int], ...]
    frame: tuple[StreamState, ...]
    codec: tuple[tuple[StreamState, int], ...]


@dataclass(slots=True)
class ReferenceScheduler:
    """Decides like `Scheduler`; it reads and writes the same streams."""

    load: LoadModel[StreamState]
    streams: StreamTable[StreamState]
    max_chunk: int = field(init=False)

    def __post_init__(self) -> None:
        limits = self.load.limits
        self.max_chunk = _chunk_size(min(max(1, limits.ring_frames // 2), limits.max_chunk))

    def plan(self, now: float) -> ReferencePlan:
        """The next step; empty only if no stream can do anything."""
        limits, cost = self.load.limits, self.load.cost
        ready: list[tuple[float, float, int, StreamState]] = []
        chunks: list[tuple[float, int, StreamState]] = []
        prompts: list[StreamState] = []
        leads: list[float] = []
        num_live = 0
        for stream in self.streams.active:  # one pass: with a thousand streams the host's time is short
            if (
                stream.reader_gap
                or stream.text_gap < inf
                or stream.buffer_free < 1
                or stream.started >= stream.text_frames
            ):
                self._update_gaps(stream, now)
            priority = urgency(stream, now)
            available = stream.generated - stream.decoded - stream.decoding
            if needs_frames(stream):
                num_live += stream.live
                if priority > -inf:
                    leads.append(priority)
            if stream.prompt_left > 0:
                prompts.append(stream)
            elif self._can_generate(stream):
                ready.append((priority, stream.arrived_at, stream.id, stream))
            if available > 0 and stream.buffer_free >= 1 + stream.decoding:
                chunks.append((priority, stream.id, stream))
        leads.sort()
        min_streams, budget = self._budget(leads[: bisect_left(leads, limits.lead_cap)], num_live)
        num_urgent = sum(entry[0] < limits.urgent_lead for entry in ready)
        busy = num_urgent > 0 or any(stream.live for stream in prompts)
        sized = self._size_chunks(sorted(chunks), busy, now)
        num_below_cap = sum(entry[0] < limits.lead_cap for entry in ready)
        # Seconds that live streams leave to files.
        file_seconds = budget - cost.seconds(max(num_below_cap, min_streams), 0, 0) if num_below_cap else inf
        # All urgent streams generate a frame in any case, so all of their chunks are decoded: frames that pile up
        # undecoded are of no use, and decoding a few large chunks in turn lets the other streams run dry.
        urgent = [frames for stream, frames in sized if urgency(stream, now) < limits.urgent_lead]
        urgent_seconds = cost.seconds(0, 0, sum(urgent), len(set(urgent)))
        codec_seconds = max(budget - cost.seconds(min_streams, 0, 0), urgent_seconds)
        codec, spent = self._plan_codec(sized, codec_seconds, file_seconds)
        free = budget - spent - cost.seconds(max(num_urgent, min_streams), 0, 0)
        prefill = self._plan_prefill(prompts, budget, free, file_seconds - spent)
        complete = [stream for stream, rows in prefill if rows == stream.prompt_left and stream.text_frames > 0]
        ready += [(urgency(stream, now), stream.arrived_at, stream.id, stream) for stream in complete]
        spent += cost.fixed * cost.step + cost.seconds(0, sum(rows for _, rows in prefill), 0)
        count = max(num_urgent + len(complete), min_streams, self._streams_in(budget - spent))
        if busy:
            num_below_cap += sum(stream.live for stream in complete)
            count = min(count, max(num_below_cap, self._streams_in(BUSY_STEP_SHARE * limits.frame_seconds - spent)))
        frame = [entry[3] for entry in sorted(ready)[: min(count, limits.max_batch)]]
        return ReferencePlan(tuple(prefill), tuple(frame), tuple(codec))

    def deliver(self, stream: StreamState, frames: float, now: float) -> None:
        """Moves the deadline: audio of this many frames, already counted in `decoded`, reached the reader's buffer."""
        resumes = stream.decoded > stream.text_gap
        if stream.first_audio_at == inf:
            stream.first_audio_at, stream.deadline = now, max(now, stream.plays_at)
        elif now > stream.deadline:
            stream.deadline = now
            stream.underruns += stream.live and not (stream.reader_gap or resumes)
        stream.reader_gap = False
        stream.text_gap = inf if resumes else stream.text_gap
        stream.delivered_seconds += frames * self.load.limits.frame_seconds
        stream.deadline += frames * self.load.limits.frame_seconds
        stream.undelivered = 0

    def is_due(self, stream: StreamState, now: float) -> bool:
        """Whether undelivered frames are delivered now; each chunk costs the host the same, however short it is."""
        if stream.buffer_free < 1 or stream.undelivered >= self.max_chunk or needs_text(stream):
            return True
        starting = is_starting(stream, now)
        if len(self.streams.active) < MIN_STREAMS_TO_WITHHOLD and not starting:
            return True  # withheld audio would be missed if a step stalls
        if starting:
            return stream.undelivered >= stream.first_chunk
        left = lead(stream, now)
        if (
            self._has_many_streams or left < self.load.limits.urgent_lead
        ):  # withholding more could cause an underrun with audio at hand
            return stream.undelivered >= self.chunk(stream, now)
        return 2 * stream.undelivered * self.load.limits.frame_seconds >= left

    def chunk(self, stream: StreamState, now: float) -> int:
        """Frames of a stream's next chunk: a share of its lead may pass while they are generated."""
        if is_starting(stream, now):
            return min(stream.first_chunk, self.max_chunk)
        share = LARGE_CHUNK_SHARE if self._has_many_streams else CHUNK_SHARE
        frames = lead(stream, now) / (self.load.limits.frame_seconds / share)
        return _chunk_size(min(max(1.0, frames), self.max_chunk))

    @property
    def _has_many_streams(self) -> bool:
        return len(self.streams.active) >= scheduler.MIN_STREAMS_FOR_CHUNKS

    def _update_gaps(self, stream: StreamState, now: float) -> None:
        """Stops the playback clock of a stream that delivered all it can: text or reader is late, not the engine."""
        no_text = needs_text(stream)
        if stream.first_audio_at < inf and now + self.load.resume_seconds() < stream.deadline:
            # Text or reader came back while the engine could still fill the player's buffer: later delays are its own.
            stream.text_gap = inf
            stream.reader_gap = stream.reader_gap and stream.buffer_free < 1
        if no_text and stream.text_gap == inf:  # else the same gap continues: nothing was delivered since
            stream.text_gap = stream.started
        if stream.buffer_free < 1 and stream.generated > stream.decoded:
            stream.reader_gap = True
        elif not (no_text and stream.decoded == stream.started):
            return
        if stream.first_audio_at < inf:
            stream.deadline = max(stream.deadline, now)

    def _can_generate(self, stream: StreamState) -> bool:
        return (
            not stream.ended
            and stream.started < stream.max_frames
            and stream.started < stream.text_frames
            and stream.started - stream.decoded
            < min(self.load.limits.ring_frames, stream.buffer_free + MAX_CHUNK_FRAMES)
        )

    def _budget(self, leads: list[float], num_live: int) -> tuple[int, float]:
        """The minimum number of streams of the step and the seconds that it may take, by the leads in order.

        A stall must not use up the shortest lead, nor may a new stream wait longer than a frame. But short steps cost
        more per frame: there is a minimum batch at which all live streams keep up in the long run. Half of it is
        enough for a moment, if the streams close to their deadlines are among them and the step becomes much shorter.
        """
        if not num_live:
            return 1, inf
        limits = self.load.limits
        fixed, each = self.load.frame_cost()
        spare = limits.frame_seconds * limits.headroom / num_live - each
        minimum = max(1, min(ceil(fixed / spare) if spare > 0 else num_live, num_live, limits.max_batch))
        stalled = STALL_FACTOR * (fixed + each * minimum)
        if leads and leads[0] < stalled and fixed < each * minimum:
            minimum = min(minimum, max(ceil(minimum / 2), bisect_left(leads, stalled)))
        # Streams past their deadline are all served: a smaller step would delay every one of them further.
        minimum = min(max(minimum, bisect_left(leads, 0.0)), limits.max_batch)
        seconds = min(leads[0] / STALL_FACTOR if leads else inf, limits.frame_seconds)
        return minimum, max(fixed + each * minimum, seconds)

    def _streams_in(self, seconds: float) -> int:
        """Streams whose frames fit into this time."""
        each, max_batch = self.load.cost.growing * self.load.cost.stream, self.load.limits.max_batch
        return int(max(0.0, min(seconds / each, max_batch))) if each else max_batch

    def _plan_prefill(
        self, prompts: list[StreamState], budget: float, free: float, file_seconds: float
    ) -> list[tuple[StreamState, int]]:
        """Prompt rows of this step: the time that no deadline needs; live prompts get at least the headroom's share."""
        limits, row = self.load.limits, max(self.load.cost.growing * self.load.cost.prefill_row, 1e-9)
        live_seconds = max(free, row, (1 - limits.headroom) * budget)
        chosen, used = [], 0
        for stream in sorted(prompts, key=lambda stream: (not stream.live, stream.arrived_at, stream.id)):
            seconds = live_seconds if stream.live else min(live_seconds, file_seconds)
            left = min(seconds / row, limits.max_prefill_rows) - used
            if left < 1:
                break
            chosen.append((stream, min(stream.prompt_left, int(left))))
            used += chosen[-1][1]
        return chosen

    def _plan_codec(
        self, chunks: list[tuple[StreamState, int]], live_seconds: float, file_seconds: float
    ) -> tuple[list[tuple[StreamState, int]], float]:
        """As many of the chunks as fit, and their cost in seconds; the first one whatever it costs."""
        cost, max_frames = self.load.cost, max(self.load.limits.max_batch, MAX_CHUNK_FRAMES)
        call, each = cost.fixed * cost.codec, cost.growing * cost.codec_frame
        chosen: list[tuple[StreamState, int]] = []
        sizes: set[int] = set()
        total = 0
        for stream, wanted in chunks:
            frames = wanted
            seconds = live_seconds if stream.live else min(live_seconds, file_seconds)
            while frames and (chosen or not (stream.live or file_seconds == inf)):
                needed = call * (len(sizes) + (frames not in sizes)) + each * (total + frames)
                if total + frames <= max_frames and needed <= seconds:
                    break
                frames //= 2
            if not frames:
                break
            chosen.append((stream, frames))
            sizes.add(frames)
            total += frames
        return chosen, cost.seconds(0, 0, total, len(sizes))

    def _size_chunks(
        self, chunks: list[tuple[float, int, StreamState]], busy: bool, now: float
    ) -> list[tuple[StreamState, int]]:
        """Chunks worth decoding now. Every size is a codec call of its own, so a busy step has few of them."""
        cost, urgent_lead = self.load.cost, self.load.limits.urgent_lead
        # Frames that cost as much as a codec call itself.
        call_frames = cost.codec / cost.codec_frame if busy and cost.codec_frame else 0.0
        candidates: list[tuple[float, StreamState, int, bool]] = []
        relaxed: Counter[int] = Counter()  # frames by size
        for priority, _, stream in chunks:
            available = stream.generated - stream.decoded - stream.decoding
            free = stream.buffer_free - stream.decoding
            size = _chunk_size(min(available, free, self.max_chunk))
            wanted = min(self.chunk(stream, now) - stream.undelivered, free)
            complete = available >= wanted or stream.ended or needs_text(stream)
            candidates.append((priority, stream, size, complete))
            if priority >= urgent_lead and complete:
                relaxed[size] += size
        # A common size whose frames fill one call well: the smallest one for all frames; with many streams the one with
        # the most frames in complete chunks.
        many = self._has_many_streams
        sizes = sorted(one[2] for one in candidates if not many or (one[3] and one[0] > -inf))
        totals = {size: size * (len(sizes) - bisect_left(sizes, size)) for size in CHUNK_SIZES}
        filled = [size for size in CHUNK_SIZES if call_frames and totals[size] >= FULL_CALL_FACTOR * call_frames]
        has_common = bool(filled)
        common_size = (max(filled, key=totals.__getitem__) if many else filled[0]) if filled else 0

        def is_common(priority: float, size: int, complete: bool) -> bool:
            return has_common and size >= common_size and priority > -inf and (complete or not many)

        waits = many and has_common
        running = Counter([common_size] if waits else [])
        for priority, _, size, complete in candidates:
            joins = waits and is_common(priority, size, complete)
            if complete and not joins and -inf < priority < urgent_lead:
                running[1 if waits else size] += 1
        chosen = []
        for priority, stream, size, complete in candidates:
            if is_common(priority, size, complete):
                chosen.append((stream, common_size))
            elif complete:
                if waits and -inf < priority < urgent_lead:
                    size = 1
                if priority >= urgent_lead and (waits or relaxed[size] < call_frames) and not running[size]:
                    if stream.ended:  # its slot is wanted: it joins a call that runs anyway
                        size = max((other for other in CHUNK_SIZES if other <= size and running[other]), default=size)
                    elif size < min(self.max_chunk, _chunk_size(stream.buffer_free - stream.decoding)):
                        continue
                chosen.append((stream, size))
        return chosen


def _chunk_size(frames: float) -> int:
    """The largest chunk size of at most this many frames."""
    return 1 << int(min(frames, MAX_CHUNK_FRAMES)).bit_length() - 1
