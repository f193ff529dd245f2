# SPDX-License-Identifier: Apache-2.0
"""What a recorded soak shows: the checks it must pass, a table and a plot.

    python tests/soak/soak_report.py --report FOLDER --out docs/soak --page docs/testing.md

FOLDER has the files of `recorder.py`. Writes soak-PROFILE.png and soak-PROFILE.json, and tables and plot into the page,
between `<!-- soak: PROFILE -->` and `<!-- end -->`. Ends with status 1 if a check fails.
"""

import argparse
import json
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CLIENTS_FILE, SAMPLES_FILE, EVENTS_FILE = "clients.jsonl", "samples.jsonl", "events.jsonl"
RUN_FILE, LOG_FILE = "run.json", "server.log"
PLAYED_KINDS = ("http", "sse", "live", "elevenlabs", "long")
WHOLE_TEXT_KINDS = ("http", "sse", "long")
MAX_UNDERRUN_SHARE = 1 / 200  # of the streams that were played to their end
MAX_GROWTH = 50_000_000  # bytes of a process, over the second half
MAX_NEW_DESCRIPTORS, MAX_NEW_THREADS = 10, 10  # of a process, over the second half
KILL_GRACE = 3.0  # seconds after a kill in which a request may still reach the dead process
MIN_SAMPLES = 4  # for a trend
WARMUP_SECONDS = 60.0  # of a process
MAX_LATE_SHARE = 0.15  # of the run: a process that starts later in the second half has no trend
MB = 1e6

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """One requirement, and what was found."""

    name: str
    passed: bool
    found: str


@dataclass(frozen=True, slots=True)
class SoakRecord:
    """The files of a run."""

    run: Row
    samples: Sequence[Row]
    clients: Sequence[Row]
    events: Sequence[Row]

    @classmethod
    def read(cls, folder: Path) -> "SoakRecord":
        lists = [_read_lines(folder / name) for name in (SAMPLES_FILE, CLIENTS_FILE, EVENTS_FILE)]
        run = json.loads((folder / RUN_FILE).read_text())
        log = (folder / LOG_FILE).read_text(errors="replace")
        return cls({**run, "streams_left": count_streams_left(log)}, *lists)

    @property
    def kills(self) -> list[float]:
        return [event["at"] for event in self.events if event["event"] == "kill"]


def count_streams_left(log: str) -> int | None:
    """Streams of idle server processes that the engine process still had when they stopped; None if none stopped."""
    found = re.findall(r"worker disconnected streams=(\d+)", log.partition("server stopping")[2])
    return sum(map(int, found)) if found else None


def _read_lines(path: Path) -> list[Row]:
    """The complete lines; the run may still be writing."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def fit_slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the least-squares line."""
    if len(points) < 2:
        return 0.0
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def percentile(values: Iterable[float], share: float) -> float | None:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def process_series(samples: Sequence[Row], column: str) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Points over time of each (role, pid)."""
    series: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        for pid, process in sample["processes"].items():
            if not process["rss"]:
                continue  # it is ending
            series[process["role"], pid].append((sample["at"], process[column]))
    return dict(series)


def growth(record: SoakRecord, column: str) -> dict[str, float]:
    """By process: what the trend of the second half adds in that time, for processes that lived through it.

    The first minute of a process is not counted: caches fill and threads start.
    """
    half, end = record.run["seconds"] / 2, record.run["seconds"]
    found = {}
    for (role, pid), points in process_series(record.samples, column).items():
        start = max(half, points[0][0] + WARMUP_SECONDS)
        kept = [(at, value) for at, value in points if start <= at <= end]
        if role in ("main", "engine", "server") and len(kept) >= MIN_SAMPLES and start < half + MAX_LATE_SHARE * end:
            found[f"{role} {pid}"] = fit_slope(kept) * (end - half)
    return found


def total_of_counter(samples: Sequence[Row], column: str) -> float:
    """The total of a counter that starts again at 0 with its process."""
    total = last = 0.0
    for sample in samples:
        if (value := sample["metrics"].get(column)) is not None:
            total += value - last if value >= last else value
            last = value
    return total


def excused(client: Row, kills: Sequence[float]) -> bool:
    """Whether a process was killed while the client was connected, or just before."""
    return any(client["started"] - KILL_GRACE <= kill <= client["ended"] for kill in kills)


def run_checks(record: SoakRecord) -> list[Check]:
    run, clients = record.run, record.clients
    by_outcome = Counter(client["outcome"] for client in clients)
    unexcused = [c for c in clients if c["outcome"] == "interrupted" and not excused(c, record.kills)]
    played = [c for c in clients if c["outcome"] == "complete" and c["kind"] in PLAYED_KINDS]
    with_underrun = sum(c["underruns"] > 0 for c in played)
    restarts = [event for event in record.events if event["event"] in ("ready", "not ready")]
    lost = [event for event in record.events if event["event"] in ("not ready", "harness failed")]
    checks = [
        Check("every request ended", by_outcome["hung"] == 0, f"{by_outcome['hung']} of {len(clients)} did not"),
        Check(
            "no unexpected response; no 5xx but 503",
            by_outcome["failed"] == 0,
            _examples([c for c in clients if c["outcome"] == "failed"]),
        ),
        Check("no stream was interrupted without a kill", not unexcused, _examples(unexcused)),
        Check(
            "the server was ready again after each kill",
            not lost and len(restarts) == len(record.kills),
            f"{len(restarts) - len(lost)} of {len(record.kills)} in {_range(event['seconds'] for event in restarts)} s",
        ),
        Check("stalled readers were disconnected", *_stalled(clients)),
        Check("slots, pages and streams were free at the end", run.get("freed") is True, str(run.get("freed"))),
        Check("no stream was left in the engine process", run["streams_left"] == 0, str(run["streams_left"])),
        Check(
            "the server ended by itself, with all its processes",
            run.get("exit_code") == 0 and run.get("processes_left") == 0,
            f"status {run.get('exit_code')}, {run.get('processes_left')} left, {run.get('stop_seconds')} s",
        ),
        Check(
            f"at most {MAX_UNDERRUN_SHARE:.1%} of the played streams had an underrun",
            bool(played) and with_underrun <= MAX_UNDERRUN_SHARE * len(played),
            f"{with_underrun} of {len(played)}",
        ),
    ]
    if "max_slow_seconds" in run:
        checks.append(_slow(clients, run["max_slow_seconds"]))
    if run["model"] == "simulated":
        checks.append(_equal_audio(clients))
    checks += [
        _flat(record, "rss", MAX_GROWTH, "memory", MB, "MB"),
        _flat(record, "descriptors", MAX_NEW_DESCRIPTORS, "descriptors", 1, ""),
        _flat(record, "threads", MAX_NEW_THREADS, "threads", 1, ""),
    ]
    return checks


def _examples(clients: Sequence[Row]) -> str:
    details = Counter(f"{c['kind']}: {c.get('detail', '')[:80]}" for c in clients)
    return f"{len(clients)}" + "".join(f"; {count} × {detail}" for detail, count in details.most_common(3))


def _range(values: Iterable[float]) -> str:
    found = list(values)
    return f"{min(found):.1f} to {max(found):.1f}" if found else "-"


def _stalled(clients: Sequence[Row]) -> tuple[bool, str]:
    outcomes = Counter(c["outcome"] for c in clients if c["kind"] == "stalled")
    return outcomes["complete"] == 0, ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())


def _slow(clients: Sequence[Row], max_seconds: float) -> Check:
    ends = [
        c["ended"] - c["started"] for c in clients if c["kind"] == "slow" and c["outcome"] in ("aborted", "cut_off")
    ]
    passed = all(seconds <= max_seconds for seconds in ends)
    return Check(f"slow readers were disconnected within {max_seconds:g} s", passed, f"{_range(ends)} s")


def _equal_audio(clients: Sequence[Row]) -> Check:
    """Equal text and seed must give equal audio: no stream got samples of another."""
    digests: dict[str, set[str]] = defaultdict(set)
    count = 0
    for client in clients:
        if client["outcome"] == "complete" and client.get("digest"):
            digests[client["request"]].add(client["digest"])
            count += 1
    different = sum(len(found) > 1 for found in digests.values())
    return Check(
        "equal requests gave equal audio",
        count > len(digests) > 0 and different == 0,
        f"{different} of {len(digests)} requests differ, repeated {count} times in all",
    )


def _flat(record: SoakRecord, column: str, limit: float, name: str, unit: float, unit_name: str) -> Check:
    found = growth(record, column)
    grown = ", ".join(f"{process.split()[0]} {value / unit:+.1f}" for process, value in found.items())
    return Check(
        f"{name} of each process flat in the second half (below {limit / unit:g} {unit_name}".rstrip() + ")",
        bool(found) and all(value <= limit for value in found.values()),
        f"{grown} {unit_name}".rstrip() if found else "no process lived through it",
    )


# Table and plot


def kind_rows(clients: Sequence[Row]) -> list[list[str]]:
    """By kind of client: outcomes, underruns and time to first audio."""
    kinds: dict[str, list[Row]] = defaultdict(list)
    for client in clients:
        kinds[client["kind"]].append(client)
    rows = []
    for kind, found in sorted(kinds.items(), key=lambda item: -len(item[1])):
        outcomes = Counter(client["outcome"] for client in found)
        first = [c["first_audio"] for c in found if c.get("first_audio") is not None]
        marks = [percentile(first, share) for share in (0.5, 0.95, 0.99)]
        counts = [
            len(found),
            outcomes["complete"] + outcomes["refused"],
            outcomes["aborted"] + outcomes["cut_off"],
            outcomes["rejected"],
            outcomes["interrupted"],
            outcomes["failed"] + outcomes["hung"],
            sum(c["underruns"] > 0 for c in found),
        ]
        latency = " / ".join(f"{1e3 * mark:.0f}" for mark in marks if mark is not None)
        rows.append([kind, *map(str, counts), latency])
    return rows


HEADINGS = (
    "clients", "count", "served or refused (4xx)", "left or disconnected", "503", "interrupted by a kill", "failed",
    "with underrun", "TTFA p50 / p95 / p99, ms",
)  # fmt: skip


def markdown(record: SoakRecord, checks: Sequence[Check]) -> str:
    run = record.run
    roles = Counter(event["role"] for event in record.events if event["event"] == "kill")
    elapsed = record.samples[-1]["at"] if record.samples else 0.0
    audio = sum(c["audio_seconds"] for c in record.clients)
    lines = [
        f"{elapsed / 60:.0f} minutes on the {run['model']} model: capacity {run['capacity']:g} streams, "
        f"{run['rate']:g} clients per second, {len(record.clients):,} clients, {audio / 3600:.1f} hours of PCM audio "
        f"played, {roles['engine']} kills of the engine process and {roles['server']} of a server process. Underruns: "
        f"{sum(c['underruns'] for c in record.clients)} counted by the players, "
        f"{total_of_counter(record.samples, 'engine_underruns'):g} by the engine.",
        "",
        _table(HEADINGS, kind_rows(record.clients)),
        "",
        _table(
            ("check", "result", "found"), [[c.name, "passed" if c.passed else "**failed**", c.found] for c in checks]
        ),
    ]
    return "\n".join(lines) + "\n"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (headings, ["---"] * len(headings), *rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)


def draw(record: SoakRecord, path: Path) -> None:
    """Writes one figure: streams, KV pages, latency, underruns, memory, descriptors and threads over time."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"font.size": 9})
    figure, panels = pyplot.subplots(7, 1, figsize=(10, 14), sharex=True, layout="constrained")
    minutes = [sample["at"] / 60 for sample in record.samples]

    def metric(name: str) -> list[float]:
        return [sample["metrics"].get(name, float("nan")) for sample in record.samples]

    panels[0].plot(minutes, metric("streams"), label="streams in the engine")
    panels[0].plot(minutes, metric("queue"), label="queued")
    panels[0].plot(minutes, metric("capacity"), "--", label="real-time capacity", color="grey")
    panels[0].set_ylabel("streams")
    pages = record.run["pages"]
    panels[1].plot(minutes, [100 * (1 - free / pages) for free in metric("pages_free")], label="KV pages used")
    panels[1].set_ylabel("%")
    for label, points in latency_series(record.clients).items():
        panels[2].plot([minute for minute, _ in points], [value for _, value in points], label=label)
    panels[2].set_yscale("log")
    panels[2].set_ylabel("TTFA, s")
    panels[3].plot(minutes, [s["clients"]["underruns"] for s in record.samples], label="underruns, by the players")
    panels[3].plot(minutes, _running_total(record.samples, "engine_underruns"), label="underruns, by the engine")
    rejected = [s["clients"]["outcomes"].get("rejected", 0) for s in record.samples]
    interrupted = [s["clients"]["outcomes"].get("interrupted", 0) for s in record.samples]
    panels[3].plot(minutes, rejected, label="503")
    panels[3].plot(minutes, interrupted, label="interrupted")
    panels[3].set_ylabel("count since the start")
    columns = (("rss", "memory, MB", MB), ("descriptors", "descriptors", 1.0), ("threads", "threads", 1.0))
    colours = {"main": "#5f6b76", "engine": "#2a6fbb", "server": "#e8a15b"}
    for panel, (column, label, unit) in zip(panels[4:], columns, strict=True):
        seen: set[str] = set()
        for (role, _), points in process_series(record.samples, column).items():
            if role in colours:
                name = "_" if role in seen else role  # one legend entry for each role
                seen.add(role)
                times, sizes = zip(*points, strict=True)
                panel.plot([t / 60 for t in times], [size / unit for size in sizes], color=colours[role], label=name)
        panel.set_ylabel(label)
        panel.set_ylim(bottom=0)
    for panel in panels:
        for event in record.events:
            if event["event"] == "kill":
                panel.axvline(event["at"] / 60, color=colours[event["role"]], alpha=0.25, linewidth=0.8)
        panel.grid(color="#e6eaee")
        panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    panels[-1].set_xlabel("minutes; vertical lines are kills")
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def latency_series(clients: Sequence[Row]) -> dict[str, list[tuple[float, float]]]:
    """Percentiles of the time to first audio of whole texts, by minute."""
    by_minute: dict[int, list[float]] = defaultdict(list)
    for client in clients:
        if client["kind"] in WHOLE_TEXT_KINDS and client.get("first_audio") is not None:
            by_minute[int(client["started"] // 60)].append(client["first_audio"])
    return {
        label: [(minute + 0.5, percentile(found, share) or 0.0) for minute, found in sorted(by_minute.items())]
        for label, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    }


def _running_total(samples: Sequence[Row], column: str) -> list[float]:
    return [total_of_counter(samples[: index + 1], column) for index in range(len(samples))]


def write_report(record: SoakRecord, checks: Sequence[Check], out: Path) -> None:
    """Writes the plot and the checks."""
    out.mkdir(parents=True, exist_ok=True)
    name = report_name(record)
    draw(record, out / f"{name}.png")
    summary = {"run": record.run, "checks": [asdict(check) for check in checks], "events": record.events}
    (out / f"{name}.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def report_name(record: SoakRecord) -> str:
    return f"soak-{record.run['profile']}"


def update_page(page: Path, record: SoakRecord, checks: Sequence[Check], out: Path) -> None:
    """Replaces the marked block of a page by the tables and the plot of a report."""
    begin, end = f"<!-- soak: {record.run['profile']} -->", "<!-- end -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    if not found:
        raise SystemExit(f"{page} has no {begin}")
    after = rest.partition(end)[2]
    plot = os.path.join(os.path.relpath(out, page.parent), f"{report_name(record)}.png")
    title = "Streams, pages, latency, underruns, memory, descriptors and threads over time"
    block = f"{begin}\n{markdown(record, checks)}\n![{title}]({plot})\n{end}"
    page.write_text(before + block + after, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, required=True, help="folder of a recorded run")
    parser.add_argument("--out", type=Path, required=True, help="folder for the plot and the checks")
    parser.add_argument("--page", type=Path, help="page whose block is replaced by tables and plot")
    given = parser.parse_args()
    record = SoakRecord.read(given.report)
    checks = run_checks(record)
    write_report(record, checks, given.out)
    if given.page is not None:
        update_page(given.page, record, checks, given.out)
    for check in checks:
        sys.stdout.write(f"{'passed' if check.passed else 'FAILED'}  {check.name}: {check.found}\n")
    sys.exit(any(not check.passed for check in checks))


if __name__ == "__main__":
    main()
