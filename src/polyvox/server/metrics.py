"""What a dashboard and an autoscaler want to know, in Prometheus' format; never by voice, user or text."""

import os
from collections.abc import Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from polyvox.audio.clip import FinishReason
from polyvox.server.request_log import RequestRecord

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # set where several server processes count together
LATENCIES = (0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0)
RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0, 1.5, 3.0)
# Of the engine's own numbers, what each is called and whether it only grows.
ENGINE = {
    "streams": ("polyvox_engine_streams", "Streams that the engine runs."),
    "capacity": ("polyvox_streams_admissible", "Streams that the engine can keep fed at once."),
    "waiting": ("polyvox_queue_depth", "Requests that wait for a place."),
    "slots": ("polyvox_engine_slots", "Streams that the engine has room for."),
    "slots_free": ("polyvox_engine_slots_free", "Slots that nobody has."),
    "pages_free": ("polyvox_engine_pages_free", "PagedKVView of the cache that nobody has."),
    "steps": ("polyvox_engine_steps_total", "Steps since the start."),
    "frames": ("polyvox_engine_frames_total", "Frames made since the start."),
    "underruns": ("polyvox_engine_underruns_total", "Times that a player ran dry."),
    "step_batch": ("polyvox_engine_step_streams", "Streams in the last step."),
    "step_seconds": ("polyvox_engine_step_seconds", "Length of the last step."),
    "lead_min": ("polyvox_engine_lead_seconds", "The shortest lead of all listeners."),
}


class Metrics:
    """The counters of one server process, which are added up where several share a folder."""

    def __init__(self) -> None:
        self._shared = SHARED in os.environ
        registry = CollectorRegistry()
        self._registry = registry
        own = None if self._shared else registry
        self.requests = Counter("polyvox_requests", "Requests by how they ended.", ["outcome"], registry=own)
        self.aborts = Counter("polyvox_aborts", "Streams that were cut short, by reason.", ["reason"], registry=own)
        for reason in ("cancel", "disconnect", "drain", "error"):  # at 0 from the start, so that a rate sees the first
            self.aborts.labels(reason)
        for outcome in (*get_args(FinishReason), "refused", "overloaded"):
            self.requests.labels(outcome)
        self.ttfa = Histogram(
            "polyvox_ttfa_seconds", "From the request to its first sound.", buckets=LATENCIES, registry=own
        )
        self.rtf = Histogram("polyvox_rtf", "Seconds that a second of sound took.", buckets=RATIOS, registry=own)
        self.queue_wait = Histogram(
            "polyvox_queue_wait_seconds", "Until a place was free.", buckets=LATENCIES, registry=own
        )
        self.audio = Counter("polyvox_audio_seconds", "Seconds of audio generated.", registry=own)
        self.underruns = Counter("polyvox_playback_underruns", "Times that a player ran dry.", registry=own)
        self.characters = Counter("polyvox_characters", "Text that was said.", registry=own)
        self.active = Gauge(
            "polyvox_streams_active", "Requests that are being served.", multiprocess_mode="livesum", registry=own
        )
        self.lag = Gauge(
            "polyvox_event_loop_lag_seconds",
            "How late the event loop was, at its worst in the last seconds.",
            multiprocess_mode="livemax",
            registry=own,
        )

    def ended(self, outcome: RequestRecord) -> None:
        self.requests.labels(outcome.finish_reason or "error").inc()
        self.audio.inc(outcome.audio_seconds)
        self.underruns.inc(outcome.underruns)
        self.characters.inc(outcome.characters)
        self.queue_wait.observe(outcome.queue_wait)
        if outcome.first_audio is not None:
            self.ttfa.observe(outcome.first_audio)
        if outcome.audio_seconds and outcome.finish_reason in ("stop", "length", "runaway"):
            self.rtf.observe(outcome.seconds / outcome.audio_seconds)

    def page(self, engine: Mapping[str, float]) -> bytes:
        """All of it as text, with the engine's own numbers."""
        registry = self._registry
        if self._shared:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        lines = []
        for key, (name, meaning) in ENGINE.items():
            if key in engine and engine[key] != float("inf"):
                kind = "counter" if name.endswith("_total") else "gauge"
                lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", f"{name} {engine[key]:g}"]
        return generate_latest(registry) + "\n".join([*lines, ""]).encode()
