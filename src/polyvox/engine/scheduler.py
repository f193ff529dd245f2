# SPDX-License-Identifier: Apache-2.0
"""Plans each step: arithmetic on arrays with a value per slot, no tensors, the clock an argument.

A player consumes audio at a fixed rate, so a stream has a *lead*, the seconds of audio delivered beyond what was
played, and a *deadline*, the moment the lead is used up. Every step goes to the streams with the nearest deadlines and
lasts no longer than the shortest lead allows. `admission.py` decides which streams run at all;
`benchmarks/scheduling.py` simulates both.
"""

from dataclasses import dataclass, field
from math import ceil, inf
from typing import Generic

import numpy as np

from polyvox.engine.batch_sizes import next_size, previous_size
from polyvox.engine.load import LoadModel, LoadSnapshot
from polyvox.engine.stream_arrays import Bools, Floats, Ints, StreamArrays
from polyvox.engine.stream_state import CHUNK_SIZES, S, StepPlan
from polyvox.engine.stream_status import StreamStatus
from polyvox.engine.stream_table import StreamTable
from polyvox.models.request import MAX_CHUNK_FRAMES

# A step may last this many times its prediction (a stall of 3, noise of 1.2) before the shortest lead is used up.
STALL_FACTOR = 3.6
# While a stream starts or is urgent, streams beyond the lead cap and files use at most this share of a frame's time. So
# do the frame calls of a step with several of them, because a new stream may wait for its end.
BUSY_STEP_SHARE = 0.25
# Share of its lead that a stream's next chunk may take; the larger one with many streams.
CHUNK_SHARE, LARGE_CHUNK_SHARE = 1 / 2, 2 / 3
# A codec call is well filled when its frames cost this many times the call itself.
FULL_CALL_FACTOR = 3
# Active streams from which on audio is withheld until it makes a chunk; with fewer the host has time for each frame.
MIN_STREAMS_TO_WITHHOLD = 64
# Active streams from which on codec calls have complete chunks instead of one frame of each stream: the host works for
# each chunk. With fewer streams it has the time, and steps with fewer calls are shorter.
MIN_STREAMS_FOR_CHUNKS = 512
# The largest chunk size of at most this many frames, by the number of frames.
LARGEST_CHUNK = np.array([1, *(1 << frames.bit_length() - 1 for frames in range(1, MAX_CHUNK_FRAMES + 1))])


@dataclass(slots=True)
class Scheduler(Generic[S]):
    """Chooses prompts, frames and codec chunks of the next step, and keeps the deadlines."""

    load: LoadModel[S]
    streams: StreamTable[S]
    max_chunk: int = field(init=False)  # the other half of the ring is for the frames generated meanwhile

    def __post_init__(self) -> None:
        limits = self.load.limits
        self.max_chunk = int(_chunk_size(min(max(1, limits.ring_frames // 2), limits.max_chunk)))

    def plan(self, now: float) -> StepPlan[S]:
        """The next step; empty only if no stream can do anything."""
        limits, cost, arrays = self.load.limits, self.load.cost, self.streams.used()
        if not len(arrays.active):
            return StepPlan()
        self._update_gaps(arrays, now)
        starting, lead = arrays.is_starting(now), arrays.lead(now)
        urgency = np.where(starting, -inf, lead)  # sort key, the smallest first: starting, by lead, then files
        needs_frames = arrays.active & arrays.needs_frames()
        num_live = _count(needs_frames & arrays.live)
        playing = needs_frames & (urgency > -inf)
        self.load.set_snapshot(LoadSnapshot(now, num_live, urgency[playing & ~self.load.is_text_limited(arrays, lead)]))
        leads = urgency[playing]
        min_streams, budget = self._budget(leads[leads < limits.lead_cap], num_live)

        has_prompt = arrays.active & (arrays.prompt_left() > 0)
        prompts, frames_left = np.flatnonzero(has_prompt), self._frames_left(arrays)
        ready = np.flatnonzero((frames_left >= 1) & (arrays.active ^ has_prompt))
        ready_urgency = urgency[ready]
        num_urgent = _count(ready_urgency < limits.urgent_lead)
        num_below_cap = _count(ready_urgency < limits.lead_cap)
        busy = num_urgent > 0 or (len(prompts) > 0 and bool(arrays.live[prompts].any()))
        chunks, frames = self._size_chunks(arrays, urgency, self.chunk(arrays, starting, lead), busy)
        # Seconds that live streams leave to files.
        file_seconds = budget - cost.seconds(max(num_below_cap, min_streams), 0, 0) if num_below_cap else inf
        # All urgent streams generate a frame in any case, so all of their chunks are decoded: frames that pile up
        # undecoded are of no use, and decoding a few large chunks in turn causes underruns of the others.
        urgent_seconds = self._codec_seconds(frames[urgency[chunks] < limits.urgent_lead])
        codec_seconds = max(budget - cost.seconds(min_streams, 0, 0), urgent_seconds)
        chunks, frames = self._limit_codec(arrays, chunks, frames, urgency, codec_seconds, file_seconds)
        spent = self._codec_seconds(frames)
        free = budget - spent - cost.seconds(max(num_urgent, min_streams), 0, 0)
        prefill = self._plan_prefill(arrays, prompts, budget, free, file_seconds - spent)
        complete = [
            stream.row for stream, rows in prefill if rows == stream.prompt_left and arrays.text_frames[stream.row] > 0
        ]
        if complete:
            ready = np.concatenate([ready, np.array(complete, np.int64)])
        spent += cost.fixed * cost.step + cost.seconds(0, sum(rows for _, rows in prefill), 0)
        required = max(num_urgent + len(complete), min_streams)
        count = max(required, self._streams_in(budget - spent))
        if busy:
            num_below_cap += int(arrays.live[complete].sum())
            count = min(count, max(num_below_cap, self._streams_in(BUSY_STEP_SHARE * limits.frame_seconds - spent)))
        count = min(count, limits.max_batch)
        limited = busy or count < len(ready)
        count = self._fit_size(count, len(ready), required)
        frame = _first(ready, count, urgency, arrays)
        counts = np.ones(len(frame), np.int64)
        if not limited and (max_calls := self._max_calls(len(frame), num_live)) > 1:
            counts = np.clip(frames_left[frame], 1, max_calls).astype(np.int64)
            order = np.argsort(-counts, kind="stable")
            frame, counts = frame[order], counts[order]
        first_codec = frame[starting[frame] & (arrays.started[frame] == 0) & (arrays.first_chunk[frame] <= 1)]
        if not limits.decodes_first_frames:
            first_codec = first_codec[:0]
        return StepPlan(tuple(prefill), frame, counts, chunks, frames, first_codec, num_live)

    def start(self, plan: StepPlan[S], now: float) -> None:
        """Records that a planned step was launched."""
        arrays = self.streams.arrays
        for stream, rows in plan.prefill:
            stream.prefilled += rows
            if not stream.prompt_left:
                self.streams.transition(stream, StreamStatus.RUNNING, now)
        arrays.started[plan.frame] += plan.frame_counts
        arrays.decoding[plan.codec] += plan.codec_frames
        arrays.decoding[plan.first_codec] += 1

    def on_decoded(self, slots: Ints, frames: Ints) -> None:
        """Records that the codec calls of these slots have completed; their audio is not delivered yet."""
        arrays = self.streams.arrays
        arrays.decoding[slots] -= frames
        arrays.decoded[slots] += frames
        arrays.undelivered[slots] += frames

    def deliver(self, slots: Ints, frames: Floats | Ints, now: float) -> None:
        """Moves deadlines: audio of this many frames, already counted in `decoded`, reached the readers' buffers."""
        arrays, seconds = self.streams.arrays, frames * self.load.limits.frame_seconds
        deadline, text_gap = arrays.deadline[slots], arrays.text_gap[slots]
        resumes = arrays.decoded[slots] > text_gap
        first = arrays.first_audio_at[slots] == inf
        late = ~first & (deadline < now)
        arrays.underruns[slots] += late & arrays.live[slots] & ~(arrays.reader_gap[slots] | resumes)
        arrays.first_audio_at[slots[first]] = now
        starts_at = np.maximum(arrays.plays_at[slots], now)
        arrays.deadline[slots] = np.where(first, starts_at, np.where(late, now, deadline)) + seconds
        arrays.reader_gap[slots] = False
        arrays.text_gap[slots] = np.where(resumes, inf, text_gap)
        arrays.delivered_seconds[slots] += seconds
        arrays.undelivered[slots] = 0

    def discard_rest(self, stream: S) -> None:
        """Drops the frames of a stopped stream that are not in a codec call yet."""
        stream.generated = min(stream.generated, stream.decoded + stream.decoding)  # a first frame may be no speech
        self.load.invalidate()

    def is_due(self, now: float) -> Bools:
        """Of each slot in use: undelivered frames are delivered now. A chunk costs the host the same whatever its size.

        With few streams nothing is withheld from a player that is playing: it would be missed if a step stalls.
        """
        limits, arrays = self.load.limits, self.streams.used()
        starting, lead = arrays.is_starting(now), arrays.lead(now)
        undelivered = arrays.undelivered
        at_once = (arrays.buffer_free < 1) | (undelivered >= self.max_chunk) | arrays.needs_text()
        if len(self.streams.active) < MIN_STREAMS_TO_WITHHOLD:
            at_once |= ~starting
        enough = undelivered >= self.chunk(arrays, starting, lead)
        if not self._has_many_streams:  # they are decoded frame by frame
            close = starting | (lead < limits.urgent_lead)  # more than a chunk would be missed
            enough = np.where(close, enough, 2 * undelivered * limits.frame_seconds >= lead)
        return at_once | enough

    def chunk(self, arrays: StreamArrays, starting: Bools, lead: Floats) -> Ints:
        """Frames of the next chunk of each row: a share of its lead may pass while they are generated."""
        share = LARGE_CHUNK_SHARE if self._has_many_streams else CHUNK_SHARE
        frames = np.maximum(lead / (self.load.limits.frame_seconds / share), 1.0)
        first_chunk = np.minimum(arrays.first_chunk, self.max_chunk)
        return np.where(starting, first_chunk, _chunk_size(np.minimum(frames, self.max_chunk)))

    @property
    def _has_many_streams(self) -> bool:
        return len(self.streams.active) >= MIN_STREAMS_FOR_CHUNKS

    def _update_gaps(self, arrays: StreamArrays, now: float) -> None:
        """Stops the playback clock of streams that delivered all they can: text or reader is late, not the engine."""
        waits = arrays.reader_gap | (arrays.text_gap < inf) | (arrays.buffer_free < 1)
        rows = np.flatnonzero(arrays.active & (waits | (arrays.started >= arrays.text_frames)))
        if not len(rows):
            return
        deadline, text_gap, reader_gap = arrays.deadline[rows], arrays.text_gap[rows], arrays.reader_gap[rows]
        started, decoded = arrays.started[rows], arrays.decoded[rows]
        full, needs_text = arrays.buffer_free[rows] < 1, arrays.needs_text()[rows]
        playing = arrays.first_audio_at[rows] < inf
        # Text or reader came back while the engine could still fill the player's buffer: later delays are its own.
        in_time = playing & (deadline > now + self.load.resume_seconds())
        text_gap[in_time] = inf
        reader_gap &= ~in_time | full
        text_gap = np.where(needs_text & (text_gap == inf), started, text_gap)  # else the same gap continues
        blocked = full & (arrays.generated[rows] > decoded)
        stopped = playing & (blocked | (needs_text & (decoded == started)))
        arrays.text_gap[rows], arrays.reader_gap[rows] = text_gap, reader_gap | blocked
        arrays.deadline[rows] = np.where(stopped, np.maximum(deadline, now), deadline)

    def _frames_left(self, arrays: StreamArrays) -> Floats:
        """Frames that each row can generate before something else must happen: codec calls, reads or more text."""
        undecoded = np.ceil(np.minimum(self.load.limits.ring_frames, arrays.buffer_free + MAX_CHUNK_FRAMES))
        last = np.minimum(np.minimum(arrays.max_frames, arrays.text_frames), arrays.decoded + undecoded)
        return np.where(arrays.ended, 0, last - arrays.started)

    def _max_calls(self, num_streams: int, num_live: int) -> int:
        """Frame calls of a step in which all streams have time: they save the host's work between two steps.

        With few live streams the host has time for each frame, and a new stream need not wait. Otherwise it waits for
        at most the time that a busy step has.
        """
        limits = self.load.limits
        if not num_streams or 0 < num_live < MIN_STREAMS_TO_WITHHOLD:
            return 1
        calls = BUSY_STEP_SHARE * limits.frame_seconds / max(self.load.cost.seconds(num_streams, 0, 0), 1e-9)
        return int(max(1.0, min(calls, limits.max_frames_per_step)))

    def _budget(self, leads: Floats, num_live: int) -> tuple[int, float]:
        """The minimum number of streams of the step and the seconds that it may take, by the leads below the cap.

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
        shortest = float(leads.min()) if len(leads) else inf
        if shortest < stalled and fixed < each * minimum:
            minimum = min(minimum, max(ceil(minimum / 2), _count(leads < stalled)))
        # Streams past their deadline are all served: a smaller step would delay every one of them further.
        minimum = min(max(minimum, _count(leads < 0.0)), limits.max_batch)
        return minimum, max(fixed + each * minimum, min(shortest / STALL_FACTOR, limits.frame_seconds))

    def _codec_seconds(self, frames: Ints) -> float:
        """The time of the codec calls of chunks with this many frames."""
        return self.load.cost.seconds(0, 0, int(frames.sum()), _num_sizes(frames)) if len(frames) else 0.0

    def _streams_in(self, seconds: float) -> int:
        """Streams whose frames fit into this time."""
        each, max_batch = self.load.cost.growing * self.load.cost.stream, self.load.limits.max_batch
        return int(max(0.0, min(seconds / each, max_batch))) if each else max_batch

    def _fit_size(self, count: int, num_ready: int, required: int) -> int:
        """The number of streams of a frame call that is padded to a size: that size, or the next smaller one.

        More streams up to the size cost nothing. With the smaller size some streams, with the latest deadlines, wait
        for the next step, unless they are required in this one. It is chosen if the time is limited, or if it gives
        more frames per second.
        """
        sizes, cost = self.load.limits.frame_sizes, self.load.cost
        if not sizes or min(count, num_ready) < 1:
            return count
        size = next_size(sizes, min(count, num_ready))
        smaller, filled = previous_size(sizes, min(count, num_ready)), min(size, num_ready)
        if smaller in (0, size) or smaller < required:
            return filled
        if count < num_ready or smaller * cost.seconds(size, 0, 0) > filled * cost.seconds(smaller, 0, 0):
            return smaller
        return filled

    def _plan_prefill(
        self, arrays: StreamArrays, prompts: Ints, budget: float, free: float, file_seconds: float
    ) -> list[tuple[S, int]]:
        """Prompt rows of this step: the time that no deadline needs; live prompts get at least the headroom's share."""
        if not len(prompts):
            return []
        limits, row = self.load.limits, max(self.load.cost.growing * self.load.cost.prefill_row, 1e-9)
        live_seconds = max(free, row, (1 - limits.headroom) * budget)
        order = np.lexsort((arrays.id[prompts], arrays.arrived_at[prompts], ~arrays.live[prompts]))
        chosen, used = [], 0
        for stream in self.streams.at(prompts[order]):
            seconds = live_seconds if stream.live else min(live_seconds, file_seconds)
            left = min(seconds / row, limits.max_prefill_rows) - used
            if left < 1:
                break
            chosen.append((stream, min(stream.prompt_left, int(left))))
            used += chosen[-1][1]
        return chosen

    def _limit_codec(
        self,
        arrays: StreamArrays,
        chunks: Ints,
        frames: Ints,
        urgency: Floats,
        live_seconds: float,
        file_seconds: float,
    ) -> tuple[Ints, Ints]:
        """As many of the chunks as fit into the time, the most urgent first; the first one whatever it costs."""
        if not len(frames):
            return chunks, frames
        cost, max_frames = self.load.cost, max(self.load.limits.max_batch, MAX_CHUNK_FRAMES)
        call, each = cost.fixed * cost.codec, cost.growing * cost.codec_frame
        total = int(frames.sum())
        if total <= max_frames and call * _num_sizes(frames) + each * total <= min(live_seconds, file_seconds):
            return chunks, frames
        order = np.lexsort((arrays.id[chunks], urgency[chunks]))
        chunks, frames = chunks[order], frames[order]
        live = arrays.live[chunks]
        seconds = np.where(live, live_seconds, min(live_seconds, file_seconds))
        totals, num_sizes = np.cumsum(frames), np.zeros(len(frames))
        for size in CHUNK_SIZES:
            num_sizes += np.maximum.accumulate(frames == size)
        fits = (totals <= max_frames) & (call * num_sizes + each * totals <= seconds)
        fits[0] |= live[0] or file_seconds == inf
        num_whole = len(frames) if fits.all() else int(np.argmin(fits))
        # The others in smaller chunks, until not even one frame fits.
        chosen = frames[:num_whole].tolist()
        sizes, total = set(chosen), sum(chosen)
        for size, limit in zip(frames[num_whole:].tolist(), seconds[num_whole:].tolist(), strict=True):
            while size:
                needed = call * (len(sizes) + (size not in sizes)) + each * (total + size)
                if total + size <= max_frames and needed <= limit:
                    break
                size //= 2
            if not size:
                break
            chosen.append(size)
            sizes.add(size)
            total += size
        return chunks[: len(chosen)], np.array(chosen, np.int64)

    def _size_chunks(self, arrays: StreamArrays, urgency: Floats, chunk: Ints, busy: bool) -> tuple[Ints, Ints]:
        """Chunks worth decoding now: slots and frames. chunk: the size of the next chunk of each row.

        Every size is a codec call of its own, so a busy step has few of them.
        """
        cost, urgent_lead = self.load.cost, self.load.limits.urgent_lead
        frames = arrays.available()
        rows = np.flatnonzero((frames > 0) & (arrays.buffer_free >= 1 + arrays.decoding) & arrays.active)
        if not len(rows):
            return rows, rows
        urgency = urgency[rows]
        available, free = frames[rows], arrays.buffer_free[rows] - arrays.decoding[rows]
        ended, max_size = arrays.ended[rows], _chunk_size(np.minimum(free, self.max_chunk))
        size = np.minimum(_chunk_size(available), max_size)
        wanted = np.minimum(chunk[rows] - arrays.undelivered[rows], free)
        complete = (available >= wanted) | ended | arrays.needs_text()[rows]
        # Frames that cost as much as a codec call itself.
        call_frames = cost.codec / cost.codec_frame if busy and cost.codec_frame else 0.0
        if not call_frames:
            return rows[complete], size[complete]
        counted, urgent_rows = complete & (urgency > -inf), urgency < urgent_lead
        # A common size whose frames fill one call well: the smallest one for all frames. With many streams the one with
        # the most frames in complete chunks, because the host works for each chunk; it takes more calls.
        many = self._has_many_streams
        considered = size[counted] if many else size
        frames_in_call = np.array([each * _count(considered >= each) for each in CHUNK_SIZES])
        well_filled = frames_in_call >= FULL_CALL_FACTOR * call_frames
        common_size = CHUNK_SIZES[int(np.argmax(frames_in_call if many else well_filled))]
        has_common = bool(well_filled.any())
        common = (counted if many else urgency > -inf) & (size >= common_size) & has_common
        waits = many and has_common  # relaxed streams that are not in this call wait, and urgent ones share one, too
        size = np.where(counted & urgent_rows & ~common, 1, size) if waits else size
        others = counted & ~common if waits else counted
        running, relaxed = (_frames_by_size(size[others & which]) for which in (urgent_rows, ~urgent_rows))
        running[common_size] += waits
        # A call that few relaxed frames would share waits for full chunks; the rest of an ended stream, whose slot is
        # wanted, joins a call that runs anyway.
        alone = ~urgent_rows & ~common & (waits | (relaxed[size] < call_frames)) & (running[size] == 0)
        sizes = np.arange(len(running))
        largest_running = np.maximum.accumulate(np.where(running > 0, sizes, 0))  # of at most this many frames
        joined = np.where(largest_running > 0, largest_running, sizes)
        chosen = common | (complete & ~(alone & ~ended & (size < max_size)))
        frames = np.where(common, common_size, np.where(alone & ended, joined[size], size))
        return rows[chosen], frames[chosen]


def _first(rows: Ints, count: int, urgency: Floats, arrays: StreamArrays) -> Ints:
    """This many of the rows: those with the smallest urgency; of equal ones those that arrived first."""
    if count >= len(rows):
        return rows
    if count <= 0:
        return rows[:0]
    keys = urgency[rows]
    last = np.partition(keys, count - 1)[count - 1]
    before, equal = rows[keys < last], rows[keys == last]
    order = np.lexsort((arrays.id[equal], arrays.arrived_at[equal]))
    return np.concatenate([before, equal[order[: count - len(before)]]])


def _chunk_size(frames: Floats | Ints | float) -> Ints:
    """The largest chunk size of at most this many frames."""
    sizes: Ints = LARGEST_CHUNK[np.minimum(frames, MAX_CHUNK_FRAMES).astype(np.int64)]
    return sizes


def _frames_by_size(sizes: Ints) -> Ints:
    """The total frames of the chunks of each size."""
    return np.bincount(sizes, minlength=MAX_CHUNK_FRAMES + 1) * np.arange(MAX_CHUNK_FRAMES + 1)


def _num_sizes(sizes: Ints) -> int:
    return _count(np.bincount(sizes) > 0)


def _count(values: Bools) -> int:
    return int(np.count_nonzero(values))
