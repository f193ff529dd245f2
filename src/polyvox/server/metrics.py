# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics. Labels never contain voices, users or text."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from polyvox import __version__
from polyvox.audio.clip import FinishReason
from polyvox.engine.capacity import LIMIT_PREFIX
from polyvox.engine.step_histogram import STEP_BUCKET_PREFIX
from polyvox.engine.stream_status import STATS_PREFIX
from polyvox.errors import Overloaded, OverloadReason, PolyvoxError
from polyvox.server.request_log import RequestRecord
from polyvox.server.synthesis.first_packet import STAGES
from polyvox.transcription.interface import TranscriptionOutcome

MULTIPROCESS_DIR = "PROMETHEUS_MULTIPROC_DIR"  # set when several server processes count together
# What took too long: the headers or the body of a request, a client that reads nothing (reader) or reads slower than
# the audio plays (reader_slow), or a message on a WebSocket.
TimeoutKind = Literal["headers", "body", "reader", "reader_slow", "websocket_idle"]
LATENCY_BUCKETS = (0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0)
STAGE_BUCKETS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
LEAD_BUCKETS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
GAP_BUCKETS = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.12, 0.16, 0.25, 0.5, 1.0, 2.0, 5.0)
RTF_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0, 1.5, 3.0)
# Metrics made from the statistics of each engine, with its label. Names that end in _total are counters, the others
# gauges.
ENGINE_METRICS = {
    "streams": ("polyvox_engine_streams", "Streams admitted by the engine."),
    "capacity": ("polyvox_streams_admissible", "Streams that the engine can serve in real time."),
    "waiting": ("polyvox_queue_depth", "Queued requests."),
    "slots": ("polyvox_engine_slots", "Stream slots."),
    "slots_free": ("polyvox_engine_slots_free", "Free stream slots."),
    "pages": ("polyvox_engine_kv_pages", "KV cache pages."),
    "pages_free": ("polyvox_engine_kv_pages_free", "Free KV cache pages."),
    "streams_out_of_pages": (
        "polyvox_engine_streams_out_of_pages_total",
        "Streams ended because they were longer than expected and no KV cache page was free.",
    ),
    "steps": ("polyvox_engine_steps_total", "Engine steps since the start."),
    "frames": ("polyvox_engine_frames_total", "Frames generated since the start."),
    "underruns": ("polyvox_engine_underruns_total", "Playback underruns since the start."),
    "step_batch": ("polyvox_engine_step_streams", "Batch size of the last step."),
    "step_seconds": ("polyvox_engine_last_step_seconds", "Duration of the last step in seconds."),
    "lead_min": ("polyvox_engine_min_lead_seconds", "Smallest lead of all streams in seconds."),
    "restarts": ("polyvox_engine_restarts_total", "Restarts of the engine since the start of the server."),
    "ready": ("polyvox_engine_ready", "1 if the engine is ready, otherwise 0."),
}
REPLICA = "replica"  # label of all metrics of an engine: its index, 0 if there is one only
READY = ("polyvox_ready", "1 if the server is ready, otherwise 0.")
STEP_HISTOGRAM = ("polyvox_engine_step_seconds", "Duration of engine steps in seconds.")
STREAMS_BY_STATUS = ("polyvox_streams", "Streams by status.")
CAPACITY_BY_LIMIT = (
    "polyvox_streams_admissible_by_limit",
    "Streams that each limit allows in real time; the smallest determines polyvox_streams_admissible.",
)
BUILD_INFO = ("polyvox_build_info", "Version of Polyvox and of Python, and the loaded model.")
HTTP_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
OTHER = "other"  # label of a method or path that the server does not have
# Reasons of rejections that exist from the start, for rate(). The others are the codes of errors.
COMMON_REJECTIONS = (
    *get_args(OverloadReason),
    "engine_down",
    "too_many_requests",
    "spool_full",
    "invalid_api_key",
    "invalid_request",
)
Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """A metric as /metrics has it. A histogram has _bucket, _sum and _count after its name."""

    name: str
    kind: Kind
    description: str
    labels: tuple[str, ...] = ()


def definitions() -> list[MetricDefinition]:
    """All metrics of /metrics."""
    found = [
        *Metrics(multiprocess=False).definitions(),
        *(MetricDefinition(name, _kind(name), text, (REPLICA,)) for name, text in ENGINE_METRICS.values()),
        MetricDefinition(STEP_HISTOGRAM[0], "histogram", STEP_HISTOGRAM[1], (REPLICA,)),
        MetricDefinition(STREAMS_BY_STATUS[0], "gauge", STREAMS_BY_STATUS[1], (REPLICA, "status")),
        MetricDefinition(CAPACITY_BY_LIMIT[0], "gauge", CAPACITY_BY_LIMIT[1], (REPLICA, "limit")),
        MetricDefinition(READY[0], "gauge", READY[1]),
        MetricDefinition(BUILD_INFO[0], "gauge", BUILD_INFO[1], ("version", "python", "model")),
    ]
    return sorted(found, key=lambda definition: definition.name)


class Metrics:
    """The metrics of one server process; in multiprocess mode a scrape adds those of all processes."""

    def __init__(self, model: str = "", multiprocess: bool | None = None) -> None:
        self._model = model
        self._multiprocess = MULTIPROCESS_DIR in os.environ if multiprocess is None else multiprocess
        self._registry = CollectorRegistry()
        own = None if self._multiprocess else self._registry

        def counter(name: str, text: str, labels: Sequence[str] = (), values: Sequence[str] = ()) -> Counter:
            """values: of the label, which exist from the start, for rate()."""
            found = Counter(name, text, labels, registry=own)
            for value in values:
                found.labels(value)
            return found

        def gauge(name: str, text: str, mode: Literal["livesum", "livemax"] = "livesum") -> Gauge:
            """mode: how the values of several server processes are joined."""
            return Gauge(name, text, multiprocess_mode=mode, registry=own)

        def histogram(
            name: str, text: str, buckets: Sequence[float] = LATENCY_BUCKETS, labels: Sequence[str] = ()
        ) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=own)

        outcomes = (*get_args(FinishReason), "rejected", "overloaded")
        self.requests = counter("polyvox_requests", "Requests by outcome.", ["outcome"], outcomes)
        abort_reasons = ("cancel", "disconnect", "drain", "error", "timeout")
        self.aborts = counter("polyvox_aborts", "Streams aborted, by reason.", ["reason"], abort_reasons)
        self._timeouts = counter("polyvox_timeouts", "Timeouts by kind.", ["kind"], get_args(TimeoutKind))
        text = "Rejected requests, by the reason or the code of their error."
        self._rejections = counter("polyvox_rejections", text, ["reason"], COMMON_REJECTIONS)
        text = "HTTP requests and WebSockets by method, route and status; a WebSocket has status 101."
        self._http_requests = counter("polyvox_http_requests", text, ["method", "route", "status"])
        text = "Lead of the client's player when a chunk is ready to be sent, in seconds; 0 is an underrun."
        self._lead = histogram("polyvox_lead_seconds", text, LEAD_BUCKETS)
        text = "Time from sending a chunk until the next one is ready, in seconds."
        self._chunk_gap = histogram("polyvox_chunk_gap_seconds", text, GAP_BUCKETS)
        self.ttfa = histogram("polyvox_ttfa_seconds", "Time to first audio in seconds.")
        text = "Time of each stage of a request before its first packet, in seconds."
        self._stages = histogram("polyvox_first_packet_stage_seconds", text, STAGE_BUCKETS, ["stage"])
        for stage in STAGES:
            self._stages.labels(stage)
        self.rtf = histogram("polyvox_rtf", "Real-time factor of finished requests.", RTF_BUCKETS)
        self.queue_wait = histogram("polyvox_queue_wait_seconds", "Queue wait in seconds.")
        self.audio = counter("polyvox_audio_seconds", "Audio generated, in seconds.")
        self.underruns = counter("polyvox_playback_underruns", "Playback underruns of finished requests.")
        self.characters = counter("polyvox_characters", "Characters synthesised.")
        outcomes = ("finished", "rejected", "failed", "timeout", "cancelled")
        self.llm_requests = counter("polyvox_llm_requests", "Chat completions by outcome.", ["outcome"], outcomes)
        self.llm_first_token = histogram("polyvox_llm_first_token_seconds", "Seconds until the LLM's first text.")
        self.realtime_sessions = gauge("polyvox_realtime_sessions", "Open realtime sessions.")
        text, statuses = "Responses of realtime sessions by status.", ("completed", "cancelled", "incomplete", "failed")
        self.realtime_responses = counter("polyvox_realtime_responses", text, ["status"], statuses)
        text, outcomes = "Requests to the STT server by outcome.", get_args(TranscriptionOutcome)
        self._stt_requests = counter("polyvox_stt_requests", text, ["outcome"], outcomes)
        text = "Duration of finished requests to the STT server in seconds."
        self._stt_seconds = histogram("polyvox_stt_seconds", text)
        text = "Request records dropped because the disk is slow."
        self.dropped_records = counter("polyvox_request_records_dropped", text)
        self.spool_bytes = gauge("polyvox_spool_bytes", "Size of whole-file responses in bytes.")
        self.active = gauge("polyvox_streams_active", "Active requests.")
        text = "Largest event loop lag of the last 10 seconds."
        self.lag = gauge("polyvox_event_loop_lag_seconds", text, "livemax")

    def record_finished(self, record: RequestRecord) -> None:
        self.requests.labels(record.finish_reason or "error").inc()
        self.audio.inc(record.audio_seconds)
        self.underruns.inc(record.underruns)
        self.characters.inc(record.characters)
        self.queue_wait.observe(record.queue_wait)
        if record.first_audio is not None:
            self.ttfa.observe(record.first_audio)
        for stage, seconds in (record.stages or {}).items():
            self._stages.labels(stage).observe(seconds)
        if record.audio_seconds and record.finish_reason in ("stop", "length", "runaway"):
            self.rtf.observe(record.seconds / record.audio_seconds)

    def record_chunk(self, gap: float, lead: float) -> None:
        """Called for each chunk of audio but the first of an utterance, with seconds."""
        self._chunk_gap.observe(gap)
        self._lead.observe(lead)

    def record_rejected(self, error: PolyvoxError) -> None:
        outcome, reason = "rejected", error.code
        if isinstance(error, Overloaded):
            outcome, reason = "overloaded", error.reason or error.code
        self.requests.labels(outcome).inc()
        self._rejections.labels(reason).inc()

    def record_transcription(self, outcome: TranscriptionOutcome, seconds: float) -> None:
        self._stt_requests.labels(outcome).inc()
        if outcome == "finished":
            self._stt_seconds.observe(seconds)

    def count_http_request(self, method: str, route: str | None, status: int) -> None:
        """route: the path of the endpoint with its parameters' names; None for unknown paths."""
        self._http_requests.labels(method if method in HTTP_METHODS else OTHER, route or OTHER, str(status)).inc()

    def definitions(self) -> list[MetricDefinition]:
        """The metrics that the server itself counts."""
        found = []
        for metric in vars(self).values():
            if isinstance(metric, Counter | Gauge | Histogram):
                (family,) = metric.describe()
                name = f"{family.name}_total" if isinstance(metric, Counter) else family.name
                kind: Kind = "counter" if isinstance(metric, Counter) else _gauge_or_histogram(metric)
                found.append(MetricDefinition(name, kind, family.documentation, metric._labelnames))
        return found

    def count_timeout(self, kind: TimeoutKind) -> None:
        self._timeouts.labels(kind).inc()

    def render(self, engines: Sequence[Mapping[str, float]] = (), ready: bool = False) -> bytes:
        """The text format. engines: the statistics of each engine. ready: whether the server is."""
        registry = self._registry
        if self._multiprocess:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        lines = [*self._build_info(), *_header(READY[0], "gauge", READY[1]), f"{READY[0]} {ready:d}"]
        for key, (name, description) in ENGINE_METRICS.items():
            values = [(index, stats[key]) for index, stats in enumerate(engines) if isfinite(stats.get(key, inf))]
            if values:
                lines += _header(name, _kind(name), description)
                lines += [f'{name}{{{REPLICA}="{index}"}} {value:.15g}' for index, value in values]
        lines += _by_label(STREAMS_BY_STATUS, "status", STATS_PREFIX, engines)
        lines += _by_label(CAPACITY_BY_LIMIT, "limit", LIMIT_PREFIX, engines)
        if steps := [line for index, stats in enumerate(engines) for line in _step_histogram(index, stats)]:
            lines += [*_header(STEP_HISTOGRAM[0], "histogram", STEP_HISTOGRAM[1]), *steps]
        return generate_latest(registry) + "\n".join([*lines, ""]).encode()

    def _build_info(self) -> list[str]:
        labels = {"version": __version__, "python": platform.python_version(), "model": self._model}
        pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
        name, description = BUILD_INFO
        return [*_header(name, "gauge", description), f"{name}{{{pairs}}} 1"]


def _step_histogram(replica: int, stats: Mapping[str, float]) -> list[str]:
    """An engine's histogram of step times. Its statistics have the steps of each bucket, by upper bound."""
    buckets = sorted(
        (float(key.removeprefix(STEP_BUCKET_PREFIX)), count)
        for key, count in stats.items()
        if key.startswith(STEP_BUCKET_PREFIX)
    )
    if not buckets:
        return []
    name, label, total, lines = STEP_HISTOGRAM[0], f'{REPLICA}="{replica}"', 0.0, []
    for bound, count in buckets:
        total += count
        lines.append(f'{name}_bucket{{{label},le="{bound if isfinite(bound) else "+Inf"}"}} {total:.15g}')
    seconds = stats["step_seconds_total"]
    return [*lines, f"{name}_sum{{{label}}} {seconds:.15g}", f"{name}_count{{{label}}} {total:.15g}"]


def _by_label(metric: tuple[str, str], label: str, prefix: str, engines: Sequence[Mapping[str, float]]) -> list[str]:
    """A gauge with one value for each statistic that begins with the prefix; the rest of its name is the label."""
    name, description = metric
    values = [
        f'{name}{{{REPLICA}="{index}",{label}="{key.removeprefix(prefix)}"}} {value:g}'
        for index, stats in enumerate(engines)
        for key, value in stats.items()
        if key.startswith(prefix)
    ]
    return [*_header(name, "gauge", description), *values] if values else []


def _header(name: str, kind: Kind, description: str) -> list[str]:
    return [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]


def _kind(name: str) -> Kind:
    return "counter" if name.endswith("_total") else "gauge"


def _gauge_or_histogram(metric: Gauge | Histogram) -> Kind:
    return "gauge" if isinstance(metric, Gauge) else "histogram"


def _escaped(value: str) -> str:
    """A label's value in Prometheus's text format."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
