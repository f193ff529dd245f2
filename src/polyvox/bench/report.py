"""A run for people: in the layout that benchmarks of serving are known by, and as one row for each load."""

from collections.abc import Sequence

from polyvox.bench.results import Run
from polyvox.bench.summary import PERCENTILES, Spread, Underruns

WIDTH, LABEL = 56, 42
LATE_CLIENT = 0.005  # seconds of lag at p99 beyond which the client's own times are in the figures
BUSY_CLIENT = 0.8  # of a core
WORKING_CLIENT = 0.3  # of a core, below which its lateness is not its own work

# title, field of the summary, unit, factor
SPREADS = (
    ("Time to First Byte", "ttfb", "TTFB (ms)", 1e3),
    ("Time to First Packet", "ttfp", "TTFP (ms)", 1e3),
    ("Time to First Audible Sample", "ttfa", "TTFA (ms)", 1e3),
    ("Silence before It", "silence", "leading silence (ms)", 1e3),
    ("End-to-end Latency", "e2e", "E2EL (ms)", 1e3),
    ("Real-Time Factor", "rtf", "RTF", 1.0),
    ("Gap between Packets", "gap", "gap (ms)", 1e3),
    ("Start Buffer Needed", "needed", "needed buffer (ms)", 1e3),
    ("Generated Audio", "length", "seconds per text", 1.0),
    ("Generated Audio per Word", "per_word", "seconds per word", 1.0),
)


def serving_report(run: Run) -> str:
    """All that is known of a run."""
    s = run.summary
    lines = [" Serving Benchmark Result ".center(WIDTH, "=")]
    lines += [
        _line("Successful requests:", s.succeeded),
        _line("Failed requests:", s.failed),
        *(_line(f"  {kind}:", count) for kind, count in sorted(s.errors.items())),
        _line("Silent requests:", s.silent),
    ]
    if run.load.mode == "closed":
        lines.append(_line("Maximum request concurrency:", f"{run.load.level:g}"))
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
    lines += _underruns("Underruns, No Buffer", s.underruns)
    lines += _underruns(f"Underruns, Start Buffer of {run.buffer * 1e3:g} ms", s.buffered)
    lines.append(" Continuity ".center(WIDTH, "-"))
    lines += [_line(f"Streams that need at most {ms} ms (%):", 100 * share) for ms, share in s.continuity.items()]
    for title, name, unit, factor in SPREADS:
        lines += _spread(title, unit, getattr(s, name), factor)
    if s.wer is not None:
        lines.append(" Word Errors ".center(WIDTH, "-"))
        lines += [_line("Requests heard:", s.heard), _line("Word error rate (%):", 100 * s.wer)]
    lines.append(" The Client Itself ".center(WIDTH, "-"))
    lines += [
        _line("Processes:", run.lag.processes or "the engine's"),
        _line("CPU of the busiest (% of a core):", 100 * run.lag.cpu),
    ]
    if run.lag.loop is not None:
        lines += [
            _line("Event loop late, P50 (ms):", run.lag.loop.p50 * 1e3),
            _line("Event loop late, P99 (ms):", run.lag.loop.p99 * 1e3),
            _line("Event loop late, most (ms):", run.lag.loop.most * 1e3),
        ]
    if s.late is not None:
        lines.append(_line("Requests begun late, P99 (ms):", s.late.p99 * 1e3))
    lines.append("=" * WIDTH)
    return "\n".join(lines)


def _line(label: str, value: float | str) -> str:
    shown = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{label:<{LABEL}}{shown:>{WIDTH - LABEL}}"


def _underruns(title: str, found: Underruns) -> list[str]:
    return [
        f" {title} ".center(WIDTH, "-"),
        _line("Underruns:", found.count),
        _line("Streams with an underrun:", found.streams),
        _line("Streams with an underrun (%):", 100 * found.rate),
        _line("Underruns per minute of audio:", found.per_minute),
        _line("Longest (ms):", found.longest * 1e3),
        _line("Total (ms):", found.total * 1e3),
    ]


def _spread(title: str, unit: str, found: Spread | None, factor: float) -> list[str]:
    if found is None:
        return []
    lines = [f" {title} ".center(WIDTH, "-"), _line(f"Mean {unit}:", found.mean * factor)]
    lines += [_line(f"P{p} {unit}:", getattr(found, f"p{p}") * factor) for p in PERCENTILES]
    return lines


HEADINGS = (
    "load", "ok", "failed", "TTFP p50", "TTFA p50", "TTFA p95", "E2E p50", "RTF p50", "underruns", "longest",
    "cont. 100", "audio s/s", "s/text", "peak", "lag p99",
)  # fmt: skip


def row(run: Run) -> list[str]:
    """The same in one line; times in milliseconds."""
    s = run.summary

    def ms(found: Spread | None, name: str) -> str:
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


def warnings(runs: Sequence[Run]) -> list[str]:
    """What a reader of these figures must know."""
    told = []
    for run in runs:
        s, loop = run.summary, run.lag.loop
        if not s.succeeded:
            why = "; ".join(sorted({trace.detail for trace in run.traces if trace.detail})[:2])
            told.append(f"{run.label}: no request succeeded ({', '.join(s.errors) or 'none was sent'}: {why})")
        if loop is not None and loop.p99 > LATE_CLIENT:
            late = f"{loop.p99 * 1e3:.1f} ms late at p99, and that is in the figures"
            why = "try --processes" if run.lag.cpu > WORKING_CLIENT else "its machine is busy with something else"
            if not run.lag.processes:
                why = "it shares its interpreter with the engine"
            told.append(f"{run.label}: the client itself was {late}: {why}")
        if run.lag.cpu > BUSY_CLIENT:
            told.append(f"{run.label}: the client took {run.lag.cpu:.0%} of a core: try --processes")
        if s.silent:
            told.append(f"{run.label}: {s.silent} streams had no audible sample; TTFA is of the others")
        if s.requests and s.requests < 20:
            few = "1 request is" if s.requests == 1 else f"{s.requests} requests are"
            told.append(f"{run.label}: {few} few for a p95, and p99 is the slowest of them")
    return told
