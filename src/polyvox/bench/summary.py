# SPDX-License-Identifier: Apache-2.0
"""Summary of one run: distributions and counts over all its requests. Definitions: docs/benchmark.md."""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from polyvox.bench.metrics import DROPPED, RequestMetrics, RequestTrace, measure, peak_in_flight
from polyvox.errors import InvalidRequest

PERCENTILES = (50, 90, 95, 99)
CONTINUITY_BUFFERS = (50, 100, 200)  # milliseconds of start buffer
NETWORK_AND_CLIENT = "network and client"  # the stage of TTFP that is not the server's
START_BUFFER = 0.2  # seconds, of the player with a start buffer


@dataclass(frozen=True, slots=True)
class Distribution:
    """Statistics of a list of values. Percentiles use the nearest rank, so each is a measured value."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    min: float
    max: float


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of sorted values."""
    return ordered[max(math.ceil(percent / 100 * len(ordered)), 1) - 1]


def distribution(values: Sequence[float]) -> Distribution | None:
    """None if there are no values."""
    if not values:
        return None
    ordered = sorted(values)
    p50, p90, p95, p99 = (percentile(ordered, percent) for percent in PERCENTILES)
    return Distribution(len(ordered), math.fsum(ordered) / len(ordered), p50, p90, p95, p99, ordered[0], ordered[-1])


@dataclass(frozen=True, slots=True)
class UnderrunSummary:
    """Underruns of all successful streams of a run."""

    count: int
    streams: int
    rate: float  # share of the successful streams with at least one underrun
    longest: float
    total: float
    per_minute: float  # underruns per minute of audio


def summarise_underruns(stalls: Sequence[Sequence[float]], audio: float) -> UnderrunSummary:
    """`stalls` has the stall durations of each stream; `audio` is the total length in seconds."""
    durations = [seconds for stream in stalls for seconds in stream]
    streams = sum(1 for stream in stalls if stream)
    return UnderrunSummary(
        count=len(durations),
        streams=streams,
        rate=streams / len(stalls) if stalls else 0.0,
        longest=max(durations, default=0.0),
        total=math.fsum(durations),
        per_minute=len(durations) / audio * 60 if audio else 0.0,
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """One run. Only measured requests count, except in `peak` and `received`, which include the warm-up."""

    requests: int  # measured, including dropped ones
    succeeded: int
    failed: int
    dropped: int
    silent: int  # succeeded without an audible sample
    errors: dict[str, int]  # count by kind
    wall: float  # seconds from the start of the first measured request to the end of the last
    request_rate: float  # successful requests per second
    audio: float
    throughput: float  # seconds of audio per second of wall time
    received: float | None  # audio of all streams received per second while measured requests were being started
    peak: int
    e2e: Distribution | None
    ttfb: Distribution | None
    ttfp: Distribution | None
    ttfa: Distribution | None
    silence: Distribution | None
    rtf: Distribution | None
    length: Distribution | None
    per_word: Distribution | None
    gap: Distribution | None
    needed: Distribution | None
    late: Distribution | None
    underruns: UnderrunSummary
    buffered: UnderrunSummary
    continuity: dict[int, float]  # by milliseconds: the share of streams that need no larger start buffer
    stages: dict[str, Distribution]  # of TTFP, as far as the server reports them, and the rest
    transcribed: int = 0
    wer: float | None = None


def summarise(traces: Sequence[RequestTrace], buffer: float = START_BUFFER) -> Summary:
    """The summary of a run; `buffer` is the start buffer, in seconds, of the buffered player."""
    measured = [trace for trace in traces if trace.measured]
    sent = [trace for trace in measured if trace.error != DROPPED]
    found = [metrics for trace in measured if (metrics := measure(trace, buffer))]
    wall = max(trace.ended for trace in sent) - min(trace.sent for trace in sent) if sent else 0.0
    audio = math.fsum(each.audio for each in found)
    word_errors = [trace.word_errors for trace in measured if trace.word_errors is not None]
    words = sum(words for _, words in word_errors)
    return Summary(
        requests=len(measured),
        succeeded=len(found),
        failed=len(sent) - len(found),
        dropped=len(measured) - len(sent),
        silent=sum(each.ttfa is None for each in found),
        errors=dict(Counter(trace.error for trace in sent if trace.error)),
        wall=wall,
        request_rate=len(found) / wall if wall else 0.0,
        audio=audio,
        throughput=audio / wall if wall else 0.0,
        received=_received_rate(traces, sent),
        peak=peak_in_flight(traces),
        e2e=distribution([each.e2e for each in found]),
        ttfb=distribution([each.ttfb for each in found]),
        ttfp=distribution([each.ttfp for each in found]),
        ttfa=distribution([each.ttfa for each in found if each.ttfa is not None]),
        silence=distribution([each.silence for each in found if each.silence is not None]),
        rtf=distribution([each.rtf for each in found]),
        length=distribution([each.audio for each in found]),
        per_word=distribution([each.per_word for each in found]),
        gap=distribution([gap for each in found for gap in each.gaps]),
        needed=distribution([each.needed for each in found]),
        late=distribution([trace.sent - trace.scheduled for trace in sent]),
        underruns=summarise_underruns([each.stalls for each in found], audio),
        buffered=summarise_underruns([each.buffered_stalls for each in found], audio),
        continuity={limit: _continuity(found, limit) for limit in CONTINUITY_BUFFERS},
        stages=_summarise_stages(measured, buffer),
        transcribed=len(word_errors),
        wer=sum(errors for errors, _ in word_errors) / max(1, words) if word_errors else None,
    )


def _summarise_stages(traces: Sequence[RequestTrace], buffer: float) -> dict[str, Distribution]:
    """The stages of TTFP that the server reports, then what is left: the network and the client."""
    values: dict[str, list[float]] = {}
    for trace in traces:
        if trace.stages and (metrics := measure(trace, buffer)):
            rest = metrics.ttfp - math.fsum(trace.stages.values())
            for stage, seconds in {**trace.stages, NETWORK_AND_CLIENT: max(0.0, rest)}.items():
                values.setdefault(stage, []).append(seconds)
    return {stage: found for stage, seconds in values.items() if (found := distribution(seconds)) is not None}


def _continuity(found: Sequence[RequestMetrics], milliseconds: int) -> float:
    return sum(each.needed <= milliseconds / 1e3 for each in found) / len(found) if found else 0.0


def _received_rate(traces: Sequence[RequestTrace], sent: Sequence[RequestTrace]) -> float | None:
    """Audio seconds per second, of all streams, between the first and the last start of a measured request."""
    if len(sent) < 2:
        return None
    begin, end = min(trace.sent for trace in sent), max(trace.sent for trace in sent)
    if end <= begin:
        return None
    received = (count / t.sample_rate for t in traces for when, count in t.arrivals if begin <= when < end)
    return math.fsum(received) / (end - begin)


# Names of single metrics of a summary, as used in service-level objectives and comparisons

DISTRIBUTIONS = ("e2e", "ttfb", "ttfp", "ttfa", "silence", "rtf", "length", "per_word", "gap", "needed", "late")
RATIOS = ("rtf",)  # the other distributions are in seconds
STATISTICS = ("mean", *(f"p{percent}" for percent in PERCENTILES))
SCALARS: dict[str, Callable[[Summary], float]] = {
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
WER = "wer"  # not available to objectives: it is computed after the run
SCALARS_IN_SECONDS = ("underrun_longest", "underrun_total")
HIGHER_IS_BETTER = ("success", "throughput", "request_rate", *(f"continuity_{limit}" for limit in CONTINUITY_BUFFERS))


def metric(summary: Summary, name: str) -> float | None:
    """A metric by name, such as ttfa_p95 or underrun; None if the run has no value. Raises InvalidRequest."""
    if name == WER:
        return summary.wer
    check_metric_name(name)
    if name in SCALARS:
        return float(SCALARS[name](summary))
    base, statistic = name.rsplit("_", 1)
    found = getattr(summary, base)
    return None if found is None else float(getattr(found, statistic))


def check_metric_name(name: str) -> None:
    """Raises InvalidRequest for an unknown metric name."""
    pattern = rf"({'|'.join(DISTRIBUTIONS)})_({'|'.join(STATISTICS)})"
    if name not in SCALARS and not re.fullmatch(pattern, name):
        distributions = f"{', '.join(DISTRIBUTIONS)} with the suffix _{', _'.join(STATISTICS)}"
        raise InvalidRequest("metric", name, f"must be one of {', '.join(SCALARS)}; or one of {distributions}")


def in_seconds(name: str) -> bool:
    """Whether the metric is a duration in seconds."""
    return name in SCALARS_IN_SECONDS or (name not in (*SCALARS, WER) and not name.startswith(RATIOS))


def to_json(value: Any) -> Any:
    """A summary, or a part of one, as JSON values."""
    if isinstance(value, Distribution | UnderrunSummary | Summary):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    return value
