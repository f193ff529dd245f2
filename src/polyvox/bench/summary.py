"""One run in numbers: what all its streams had, as distributions and counts. Definitions: docs/benchmark.md."""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from polyvox.bench.metrics import DROPPED, Measures, Trace, measure, peak_in_flight
from polyvox.errors import InvalidRequest

PERCENTILES = (50, 90, 95, 99)
CONTINUITY = (50, 100, 200)  # milliseconds of start buffer
START_BUFFER = 0.2  # seconds, of the player that has one


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution. Percentiles are by nearest rank: a value that was measured, none in between."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    least: float
    most: float


def percentile(ordered: Sequence[float], percent: float) -> float:
    """By nearest rank, of values in order."""
    return ordered[max(math.ceil(percent / 100 * len(ordered)), 1) - 1]


def spread(values: Sequence[float]) -> Spread | None:
    """None where nothing was measured: there is no number to tell."""
    if not values:
        return None
    ordered = sorted(values)
    p50, p90, p95, p99 = (percentile(ordered, percent) for percent in PERCENTILES)
    return Spread(len(ordered), math.fsum(ordered) / len(ordered), p50, p90, p95, p99, ordered[0], ordered[-1])


@dataclass(frozen=True, slots=True)
class Underruns:
    """What players met: how often they ran dry, and in what share of the streams."""

    count: int
    streams: int
    rate: float  # share of the successful streams that ran dry at least once
    longest: float
    total: float
    per_minute: float  # underruns in a minute of audio


def underruns(stalls: Sequence[Sequence[float]], audio: float) -> Underruns:
    """Of the stalls of each stream."""
    every = [seconds for stream in stalls for seconds in stream]
    dry = sum(1 for stream in stalls if stream)
    return Underruns(
        count=len(every),
        streams=dry,
        rate=dry / len(stalls) if stalls else 0.0,
        longest=max(every, default=0.0),
        total=math.fsum(every),
        per_minute=len(every) / audio * 60 if audio else 0.0,
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """A run. Only measured requests count, except where all that were under way matter: peak and throughput."""

    requests: int  # measured, the dropped ones with them
    succeeded: int
    failed: int
    dropped: int
    silent: int  # succeeded without one audible sample
    errors: dict[str, int]  # by kind
    wall: float  # from the first measured request to the end of the last
    request_rate: float  # successful ones a second
    audio: float
    throughput: float  # seconds of audio a second of wall time
    received: float | None  # the same of what came from anyone while requests were still being begun
    peak: int
    e2e: Spread | None
    ttfb: Spread | None
    ttfp: Spread | None
    ttfa: Spread | None
    silence: Spread | None
    rtf: Spread | None
    length: Spread | None
    per_word: Spread | None
    gap: Spread | None
    needed: Spread | None
    late: Spread | None
    underruns: Underruns
    buffered: Underruns
    continuity: dict[int, float]  # by milliseconds: the share of streams that need no more start buffer
    heard: int = 0  # given to a recogniser
    wer: float | None = None  # word errors by words, of those


def summarise(traces: Sequence[Trace], buffer: float = START_BUFFER) -> Summary:
    """All that a run's traces tell."""
    measured = [trace for trace in traces if trace.measured]
    sent = [trace for trace in measured if trace.error != DROPPED]
    heard = [found for trace in measured if (found := measure(trace, buffer))]
    wall = max(trace.ended for trace in sent) - min(trace.sent for trace in sent) if sent else 0.0
    audio = math.fsum(found.audio for found in heard)
    misheard = [trace.misheard for trace in measured if trace.misheard is not None]
    return Summary(
        requests=len(measured),
        succeeded=len(heard),
        failed=len(sent) - len(heard),
        dropped=len(measured) - len(sent),
        silent=sum(found.ttfa is None for found in heard),
        errors=dict(Counter(trace.error for trace in sent if trace.error)),
        wall=wall,
        request_rate=len(heard) / wall if wall else 0.0,
        audio=audio,
        throughput=audio / wall if wall else 0.0,
        received=_received(traces, sent),
        peak=peak_in_flight(traces),
        e2e=spread([found.e2e for found in heard]),
        ttfb=spread([found.ttfb for found in heard]),
        ttfp=spread([found.ttfp for found in heard]),
        ttfa=spread([found.ttfa for found in heard if found.ttfa is not None]),
        silence=spread([found.silence for found in heard if found.silence is not None]),
        rtf=spread([found.rtf for found in heard]),
        length=spread([found.audio for found in heard]),
        per_word=spread([found.per_word for found in heard]),
        gap=spread([gap for found in heard for gap in found.gaps]),
        needed=spread([found.needed for found in heard]),
        late=spread([trace.sent - trace.scheduled for trace in sent]),
        underruns=underruns([found.stalls for found in heard], audio),
        buffered=underruns([found.buffered_stalls for found in heard], audio),
        continuity={limit: _continuity(heard, limit) for limit in CONTINUITY},
        heard=len(misheard),
        wer=sum(errors for errors, _ in misheard) / max(1, sum(words for _, words in misheard)) if misheard else None,
    )


def _continuity(heard: Sequence[Measures], milliseconds: int) -> float:
    return sum(found.needed <= milliseconds / 1e3 for found in heard) / len(heard) if heard else 0.0


def _received(traces: Sequence[Trace], sent: Sequence[Trace]) -> float | None:
    """Audio that came between the first and the last beginning of a measured request, of all streams, a second."""
    if len(sent) < 2:
        return None
    begin, end = min(trace.sent for trace in sent), max(trace.sent for trace in sent)
    if end <= begin:
        return None
    came = (count / t.sample_rate for t in traces for when, count in t.arrivals if begin <= when < end)
    return math.fsum(came) / (end - begin)


# Names for one number of a summary, as service levels and comparisons have them

SPREADS = ("e2e", "ttfb", "ttfp", "ttfa", "silence", "rtf", "length", "per_word", "gap", "needed", "late")
RATIOS = ("rtf",)  # the other spreads are seconds
STATISTICS = ("mean", *(f"p{percent}" for percent in PERCENTILES))
SINGLE: dict[str, Callable[[Summary], float]] = {
    "underrun": lambda s: s.underruns.count,
    "underrun_rate": lambda s: s.underruns.rate,
    "underrun_longest": lambda s: s.underruns.longest,
    "underrun_total": lambda s: s.underruns.total,
    "buffered_underrun": lambda s: s.buffered.count,
    "buffered_underrun_rate": lambda s: s.buffered.rate,
    "failed": lambda s: s.failed,
    "dropped": lambda s: s.dropped,
    "silent": lambda s: s.silent,
    "success": lambda s: s.succeeded / s.requests if s.requests else 0.0,
    "throughput": lambda s: s.throughput,
    "request_rate": lambda s: s.request_rate,
    "peak": lambda s: s.peak,
    "continuity_50": lambda s: s.continuity[50],
    "continuity_100": lambda s: s.continuity[100],
    "continuity_200": lambda s: s.continuity[200],
}
WER = "wer"  # not for service levels: it is known after the run
SECONDS = ("underrun_longest", "underrun_total")
MORE_IS_BETTER = ("success", "throughput", "request_rate", *(f"continuity_{limit}" for limit in CONTINUITY))


def metric(summary: Summary, name: str) -> float | None:
    """A number by its name, such as ttfa_p95 or underrun; None where the run has none. Raises InvalidRequest."""
    if name == WER:
        return summary.wer
    check_name(name)
    if name in SINGLE:
        return float(SINGLE[name](summary))
    base, statistic = name.rsplit("_", 1)
    found = getattr(summary, base)
    return None if found is None else float(getattr(found, statistic))


def check_name(name: str) -> None:
    pattern = rf"({'|'.join(SPREADS)})_({'|'.join(STATISTICS)})"
    if name not in SINGLE and not re.fullmatch(pattern, name):
        spreads = f"{', '.join(SPREADS)} with _{', _'.join(STATISTICS)}"
        raise InvalidRequest("metric", name, f"must be one of {', '.join(SINGLE)}; {spreads}")


def in_seconds(name: str) -> bool:
    """Whether this number is a time."""
    return name in SECONDS or (name not in (*SINGLE, WER) and not name.startswith(RATIOS))


def plain(value: Any) -> Any:
    """Any of the values above as JSON has them."""
    if isinstance(value, Spread | Underruns | Summary):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value
