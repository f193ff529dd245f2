# SPDX-License-Identifier: Apache-2.0
"""Metrics of one request, as pure functions over its trace. Definitions: docs/benchmark.md."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Arrival = tuple[float, int]  # time, number of samples

TIME_TOLERANCE = 1e-6  # seconds by which a packet may be late without an underrun: times are floating-point numbers
DROPPED = "dropped"  # error of a request that was never sent because too many were in flight


@dataclass(slots=True)
class RequestTrace:
    """What the client observed of one request. Times are seconds on the clock of the run.

    `arrivals` holds audio only: a packet without samples, such as a header, sets `first_byte` at most.
    """

    index: int  # in the run's sequence of requests
    prompt: int  # index of the text in the prompt set
    words: int  # number of words in that text
    measured: bool  # False during warm-up
    scheduled: float  # when the request was due
    sent: float = 0.0
    first_byte: float | None = None
    arrivals: list[Arrival] = field(default_factory=list)
    ended: float = 0.0
    sample_rate: int = 24_000
    stages: dict[str, float] = field(default_factory=dict)  # seconds up to the first packet, as the server reports them
    onset: int | None = None  # the first audible sample
    error: str | None = None  # kind of failure
    detail: str | None = None  # error message
    pcm: bytearray | None = field(default=None, repr=False)  # 16-bit samples; None: not recorded. Never saved
    transcript: str | None = None
    word_errors: tuple[int, int] | None = None  # word errors in the transcript, words in the text

    @property
    def succeeded(self) -> bool:
        return self.error is None

    @property
    def samples(self) -> int:
        return sum(count for _, count in self.arrivals)

    @property
    def audio(self) -> float:
        """Seconds of audio received."""
        return self.samples / self.sample_rate


@dataclass(frozen=True, slots=True)
class Stall:
    """An underrun: the player stops before this sample, for this long."""

    before: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Playback:
    """A simulated playback: its start time and its underruns."""

    start: float
    stalls: tuple[Stall, ...]
    sample_rate: int

    @property
    def count(self) -> int:
        return len(self.stalls)

    @property
    def longest(self) -> float:
        return max((stall.seconds for stall in self.stalls), default=0.0)

    @property
    def total(self) -> float:
        return sum(stall.seconds for stall in self.stalls)

    def played_at(self, sample: int) -> float:
        """The time at which this sample is played."""
        stalled = sum(stall.seconds for stall in self.stalls if stall.before <= sample)
        return self.start + sample / self.sample_rate + stalled


def play(arrivals: Sequence[Arrival], sample_rate: int, ended: float, buffer: float = 0.0) -> Playback | None:
    """Simulates a player that starts as soon as `buffer` seconds of audio have arrived (or the stream has ended).

    It stalls when the audio runs out and resumes with the next packet; it never rebuffers. None without audio.
    """
    arrivals = [(when, count) for when, count in arrivals if count > 0]
    if not arrivals:
        return None
    start, buffered = ended, 0
    for when, count in arrivals:
        buffered += count
        if buffered >= buffer * sample_rate:
            start = when
            break
    played_out, received, stalls = start, 0, []  # played_out: when all audio received so far has been played
    for when, count in arrivals:
        if when > played_out + TIME_TOLERANCE:
            stalls.append(Stall(received, when - played_out))
            played_out = when
        played_out += count / sample_rate
        received += count
    return Playback(start, tuple(stalls), sample_rate)


def needed_buffer(arrivals: Sequence[Arrival], sample_rate: int) -> float:
    """Seconds after the first packet at which a player must start to avoid every underrun."""
    arrivals = [(when, count) for when, count in arrivals if count > 0]
    deficit, received = 0.0, 0
    for when, count in arrivals:
        deficit = max(deficit, when - arrivals[0][0] - received / sample_rate)
        received += count
    return deficit if deficit > TIME_TOLERANCE else 0.0


def gaps(arrivals: Sequence[Arrival]) -> list[float]:
    """Seconds between consecutive audio packets."""
    times = [when for when, count in arrivals if count > 0]
    return [after - before for before, after in pairwise(times)]


def peak_in_flight(traces: Iterable[RequestTrace]) -> int:
    """Maximum number of concurrent requests. A request that ends when another starts does not overlap it."""
    events = []
    for trace in traces:
        if trace.error != DROPPED:
            events += [(trace.sent, 1), (trace.ended, -1)]
    peak = current = 0
    for _, change in sorted(events):
        current += change
        peak = max(peak, current)
    return peak


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Metrics of one successful request, in seconds unless noted."""

    e2e: float
    ttfb: float  # time to the first byte of the response body
    ttfp: float  # time to the first packet with audio
    ttfa: float | None  # time to the first audible sample in a player without a buffer; None: all silent
    silence: float | None  # audio before that sample
    rtf: float  # e2e / audio
    audio: float
    per_word: float  # seconds of audio per word of the text
    gaps: tuple[float, ...]
    needed: float  # smallest start delay without underruns
    stalls: tuple[float, ...]
    buffered_stalls: tuple[float, ...]  # of a player with a start buffer
    late: float  # client lag: from when the request was due to when it was sent


def measure(trace: RequestTrace, buffer: float) -> RequestMetrics | None:
    """The metrics of a trace; None for a failed request."""
    if not trace.succeeded:
        return None
    unbuffered = play(trace.arrivals, trace.sample_rate, trace.ended)
    buffered = play(trace.arrivals, trace.sample_rate, trace.ended, buffer)
    if unbuffered is None or buffered is None:
        raise ValueError(f"request {trace.index} succeeded without audio")
    first_byte = unbuffered.start if trace.first_byte is None else min(trace.first_byte, unbuffered.start)
    return RequestMetrics(
        e2e=trace.ended - trace.sent,
        ttfb=first_byte - trace.sent,
        ttfp=unbuffered.start - trace.sent,
        ttfa=None if trace.onset is None else unbuffered.played_at(trace.onset) - trace.sent,
        silence=None if trace.onset is None else trace.onset / trace.sample_rate,
        rtf=(trace.ended - trace.sent) / trace.audio,
        audio=trace.audio,
        per_word=trace.audio / max(trace.words, 1),
        gaps=tuple(gaps(trace.arrivals)),
        needed=needed_buffer(trace.arrivals, trace.sample_rate),
        stalls=tuple(stall.seconds for stall in unbuffered.stalls),
        buffered_stalls=tuple(stall.seconds for stall in buffered.stalls),
        late=trace.sent - trace.scheduled,
    )
