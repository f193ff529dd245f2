# SPDX-License-Identifier: Apache-2.0
"""Text reports: one run in the layout of vLLM's serving benchmark, and one table row per run."""

from collections.abc import Mapping, Sequence

from polyvox.bench.results import Run
from polyvox.bench.summary import PERCENTILES, Distribution, UnderrunSummary

WIDTH, LABEL_WIDTH = 56, 42
MAX_CLIENT_LAG = 0.005  # seconds of event-loop lag at p99 above which the client distorts the measurements
MAX_CLIENT_CPU = 0.8  # of a core
MIN_WORKING_CPU = 0.3  # of a core; below it, lag comes from other processes on the machine
MIN_REQUESTS_FOR_P95 = 20

# title, field of the summary, unit, factor
DISTRIBUTION_SECTIONS = (
    ("Time to First Byte", "ttfb", "TTFB (ms)", 1e3),
    ("Time to First Packet", "ttfp", "TTFP (ms)", 1e3),
    ("Time to First Audio", "ttfa", "TTFA (ms)", 1e3),
    ("Leading Silence", "silence", "leading silence (ms)", 1e3),
    ("End-to-end Latency", "e2e", "E2EL (ms)", 1e3),
    ("Real-Time Factor", "rtf", "RTF", 1.0),
    ("Gap between Packets", "gap", "gap (ms)", 1e3),
    ("Start Buffer Needed", "needed", "needed buffer (ms)", 1e3),
    ("Generated Audio", "length", "seconds per text", 1.0),
    ("Generated Audio per Word", "per_word", "seconds per word", 1.0),
)


def serving_report(run: Run) -> str:
    """All metrics of a run."""
    s = run.summary
    lines = [" Serving Benchmark Result ".center(WIDTH, "=")]
    lines += [
        _line("Successful requests:", s.succeeded),
        _line("Failed requests:", s.failed),
        *(_line(f"  {kind}:", count) for kind, count in sorted(s.errors.items())),
        _line("Silent requests:", s.silent),
    ]
    if run.load.is_closed:
        name = "Maximum request concurrency:" if run.load.mode == "closed" else "Listeners:"
        lines.append(_line(name, f"{run.load.level:g}"))
    else:
        lines += [_line("Request rate configured (RPS):", run.load.level), _line("Dropped requests:", s.dropped)]
    lines += [
        _line("Peak concurrent requests:", s.peak),
        _line("Benchmark duration (s):", s.wall),
        _line("Request throughput (req/s):", s.request_rate),
        _line("Total audio generated (s):", s.audio),
        _line("Audio throughput (audio s/s):", s.throughput),
    ]
    if s.received is not None:
        lines.append(_line("Audio received under load (audio s/s):", s.received))
    lines += _underrun_lines("Underruns, No Buffer", s.underruns)
    lines += _underrun_lines(f"Underruns, Start Buffer of {run.buffer * 1e3:g} ms", s.buffered)
    lines.append(" Continuity ".center(WIDTH, "-"))
    lines += [_line(f"Streams that need at most {ms} ms (%):", 100 * share) for ms, share in s.continuity.items()]
    for title, name, unit, factor in DISTRIBUTION_SECTIONS:
        lines += _distribution_lines(title, unit, getattr(s, name), factor)
        if name == "ttfp":
            lines += _stage_lines(s.stages)
    if s.wer is not None:
        lines.append(" Word Error Rate ".center(WIDTH, "-"))
        lines += [_line("Requests transcribed:", s.transcribed), _line("Word error rate (%):", 100 * s.wer)]
    lines.append(" Benchmark Client ".center(WIDTH, "-"))
    lines += [
        _line("Processes:", run.lag.processes or "shared"),
        _line("CPU of the busiest (% of a core):", 100 * run.lag.cpu),
    ]
    if run.lag.loop is not None:
        lines += [
            _line("P50 event loop lag (ms):", run.lag.loop.p50 * 1e3),
            _line("P99 event loop lag (ms):", run.lag.loop.p99 * 1e3),
            _line("Max event loop lag (ms):", run.lag.loop.max * 1e3),
        ]
    if s.late is not None:
        lines.append(_line("P99 request start delay (ms):", s.late.p99 * 1e3))
    lines.append("=" * WIDTH)
    return "\n".join(lines)


def _line(label: str, value: float | str) -> str:
    shown = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{label:<{LABEL_WIDTH}}{shown:>{WIDTH - LABEL_WIDTH}}"


def _underrun_lines(title: str, found: UnderrunSummary) -> list[str]:
    return [
        f" {title} ".center(WIDTH, "-"),
        _line("Underruns:", found.count),
        _line("Streams with an underrun:", found.streams),
        _line("Streams with an underrun (%):", 100 * found.rate),
        _line("Underruns per minute of audio:", found.per_minute),
        _line("Longest (ms):", found.longest * 1e3),
        _line("Total (ms):", found.total * 1e3),
    ]


def _distribution_lines(title: str, unit: str, found: Distribution | None, factor: float) -> list[str]:
    if found is None:
        return []
    lines = [f" {title} ".center(WIDTH, "-"), _line(f"Mean {unit}:", found.mean * factor)]
    lines += [_line(f"P{p} {unit}:", getattr(found, f"p{p}") * factor) for p in PERCENTILES]
    return lines


def _stage_lines(stages: Mapping[str, Distribution]) -> list[str]:
    if not stages:
        return []
    lines = [" Time to First Packet by Stage ".center(WIDTH, "-")]
    for percent in (50, 95):
        lines += [
            _line(f"P{percent} {stage} (ms):", getattr(found, f"p{percent}") * 1e3) for stage, found in stages.items()
        ]
    return lines


HEADINGS = (
    "load", "ok", "failed", "TTFP p50", "TTFA p50", "TTFA p95", "E2E p50", "RTF p50", "underruns", "longest",
    "cont. 100", "audio s/s", "s/text", "peak", "lag p99",
)  # fmt: skip


def row(run: Run) -> list[str]:
    """One run as a table row; times in milliseconds."""
    s = run.summary

    def ms(found: Distribution | None, name: str) -> str:
        return "–" if found is None else f"{getattr(found, name) * 1e3:.0f}"

    return [
        run.label,
        str(s.succeeded),
        str(s.failed + s.dropped),
        ms(s.ttfp, "p50"),
        ms(s.ttfa, "p50"),
        ms(s.ttfa, "p95"),
        ms(s.e2e, "p50"),
        "–" if s.rtf is None else f"{s.rtf.p50:.2f}",
        str(s.underruns.count),
        f"{s.underruns.longest * 1e3:.0f}",
        f"{100 * s.continuity[100]:.0f} %",
        f"{s.throughput:.2f}",
        "–" if s.length is None else f"{s.length.mean:.2f}",
        str(s.peak),
        "–" if run.lag.loop is None else f"{run.lag.loop.p99 * 1e3:.1f}",
    ]


def brief(run: Run) -> str:
    """One run in one line."""
    s = run.summary
    if s.ttfa is None:
        return f"{s.succeeded} of {s.requests} requests succeeded"
    return (
        f"{s.succeeded} requests succeeded, {s.failed + s.dropped} failed; "
        f"TTFA p50 {s.ttfa.p50 * 1e3:.0f} ms, p95 {s.ttfa.p95 * 1e3:.0f} ms; "
        f"{s.underruns.count} underruns; {s.throughput:.2f} audio s/s"
    )


def warnings(runs: Sequence[Run]) -> list[str]:
    """Reasons to distrust the metrics of these runs."""
    found = []
    for run in runs:
        s, loop = run.summary, run.lag.loop
        if not s.succeeded:
            why = "; ".join(sorted({trace.detail for trace in run.traces if trace.detail})[:2])
            found.append(f"{run.label}: no request succeeded ({', '.join(s.errors) or 'none was sent'}: {why})")
        if loop is not None and loop.p99 > MAX_CLIENT_LAG:
            why = "try --processes" if run.lag.cpu > MIN_WORKING_CPU else "other processes use its machine"
            if not run.lag.processes:
                why = "it shares the GIL with the engine"
            lag = f"client event loop lag was {loop.p99 * 1e3:.1f} ms at p99, which is included in the metrics"
            found.append(f"{run.label}: {lag}: {why}")
        if run.lag.cpu > MAX_CLIENT_CPU:
            found.append(f"{run.label}: the client used {run.lag.cpu:.0%} of a core: try --processes")
        if s.silent:
            found.append(f"{run.label}: {s.silent} streams had no audible sample and are not included in TTFA")
        if 0 < s.requests < MIN_REQUESTS_FOR_P95:
            count = "1 request is" if s.requests == 1 else f"{s.requests} requests are"
            found.append(f"{run.label}: {count} too few for a p95; p99 is the slowest request")
    return found
