"""What a listener had of one stream: pure functions over its trace. Each is defined in docs/benchmark.md."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Arrival = tuple[float, int]  # when, and how many samples came

ON_TIME = 1e-6  # seconds that a chunk may be late: times are floating-point numbers
DROPPED = "dropped"  # the error of a request that was never sent: too many were under way


@dataclass(slots=True)
class Trace:
    """What one client saw of one request; times are seconds on the clock of the run.

    Arrivals hold audio only: a packet that is all header has none, and is the first byte at most.
    """

    index: int  # in the run's sequence of requests
    prompt: int  # which text of the set
    words: int  # in that text
    measured: bool  # False while warming up
    scheduled: float  # when it was due
    sent: float = 0.0  # when the client began it
    first_byte: float | None = None
    arrivals: list[Arrival] = field(default_factory=list)
    ended: float = 0.0
    sample_rate: int = 24_000
    onset: int | None = None  # the first audible sample
    error: str | None = None  # the kind of failure
    detail: str | None = None  # and what was told of it
    sound: bytearray | None = field(default=None, repr=False)  # 16 bits a sample; None: not kept, and never in a file
    heard: str | None = None  # what a recogniser understood
    misheard: tuple[int, int] | None = None  # word errors in it, by how many words

    @property
    def succeeded(self) -> bool:
        return self.error is None

    @property
    def samples(self) -> int:
        return sum(count for _, count in self.arrivals)

    @property
    def audio(self) -> float:
        """Seconds of sound that came."""
        return self.samples / self.sample_rate


@dataclass(frozen=True, slots=True)
class Stall:
    """A player that ran dry: before which sample, and for how long."""

    before: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Playback:
    """What came out of a player: when it began, and when it stood still."""

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

    def heard(self, sample: int) -> float:
        """When this sample was played."""
        stood = sum(stall.seconds for stall in self.stalls if stall.before <= sample)
        return self.start + sample / self.sample_rate + stood


def play(arrivals: Sequence[Arrival], sample_rate: int, ended: float, buffer: float = 0.0) -> Playback | None:
    """A player that begins as soon as `buffer` seconds of audio are there (or no more will come).

    From then on it plays what has come, and waits where nothing has: it never buffers again. None without audio.
    """
    arrivals = [(when, count) for when, count in arrivals if count > 0]
    if not arrivals:
        return None
    start, held = ended, 0
    for when, count in arrivals:
        held += count
        if held >= buffer * sample_rate:
            start = when
            break
    dry, come, stalls = start, 0, []  # dry: when all that has come is played
    for when, count in arrivals:
        if when > dry + ON_TIME:
            stalls.append(Stall(come, when - dry))
            dry = when
        dry += count / sample_rate
        come += count
    return Playback(start, tuple(stalls), sample_rate)


def needed_buffer(arrivals: Sequence[Arrival], sample_rate: int) -> float:
    """Seconds by which a player should have begun later than the first packet, never to run dry."""
    arrivals = [(when, count) for when, count in arrivals if count > 0]
    deficit, come = 0.0, 0
    for when, count in arrivals:
        deficit = max(deficit, when - arrivals[0][0] - come / sample_rate)
        come += count
    return deficit if deficit > ON_TIME else 0.0


def gaps(arrivals: Sequence[Arrival]) -> list[float]:
    """Seconds between one audio packet and the next."""
    times = [when for when, count in arrivals if count > 0]
    return [after - before for before, after in pairwise(times)]


def peak_in_flight(traces: Iterable[Trace]) -> int:
    """The most requests that were under way at once; one that ends as another begins is not beside it."""
    events = []
    for trace in traces:
        if trace.error != DROPPED:
            events += [(trace.sent, 1), (trace.ended, -1)]
    most = now = 0
    for _, change in sorted(events):
        now += change
        most = max(most, now)
    return most


@dataclass(frozen=True, slots=True)
class Measures:
    """One successful stream in numbers; seconds, except where said."""

    e2e: float
    ttfb: float  # the first byte of the answer's body
    ttfp: float  # the first packet with audio
    ttfa: float | None  # the first audible sample, out of a player without a buffer; None: all was silent
    silence: float | None  # audio before that sample
    rtf: float  # e2e by seconds of audio
    audio: float
    per_word: float  # seconds of audio for each word of the text
    gaps: tuple[float, ...]
    needed: float  # the start buffer without which it ran dry
    stalls: tuple[float, ...]
    buffered_stalls: tuple[float, ...]  # of a player with a start buffer
    late: float  # the client's own lateness: from when it was due to when it was sent


def measure(trace: Trace, buffer: float) -> Measures | None:
    """The measures of a trace; None for one that failed, which is counted but has none."""
    if not trace.succeeded:
        return None
    bare = play(trace.arrivals, trace.sample_rate, trace.ended)
    buffered = play(trace.arrivals, trace.sample_rate, trace.ended, buffer)
    if bare is None or buffered is None:
        raise ValueError(f"request {trace.index} succeeded without audio")
    first_byte = bare.start if trace.first_byte is None else min(trace.first_byte, bare.start)
    return Measures(
        e2e=trace.ended - trace.sent,
        ttfb=first_byte - trace.sent,
        ttfp=bare.start - trace.sent,
        ttfa=None if trace.onset is None else bare.heard(trace.onset) - trace.sent,
        silence=None if trace.onset is None else trace.onset / trace.sample_rate,
        rtf=(trace.ended - trace.sent) / trace.audio,
        audio=trace.audio,
        per_word=trace.audio / max(trace.words, 1),
        gaps=tuple(gaps(trace.arrivals)),
        needed=needed_buffer(trace.arrivals, trace.sample_rate),
        stalls=tuple(stall.seconds for stall in bare.stalls),
        buffered_stalls=tuple(stall.seconds for stall in buffered.stalls),
        late=trace.sent - trace.scheduled,
    )
