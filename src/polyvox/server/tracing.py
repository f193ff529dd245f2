# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry traces: a span for each request, with its utterances, their sentences, queue waits and prefills.

Spans are exported by a thread with a bounded queue; spans that do not fit are dropped. Texts and keys are not recorded.
"""

import logging
import threading
import time
from collections.abc import Sequence

from opentelemetry import context, propagate
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, format_trace_id, set_span_in_context
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyvox import __version__
from polyvox.engine.interface import AsyncStream, Result
from polyvox.server.logs import current_line
from polyvox.server.middleware.paths import PROBE_PATHS, path_of
from polyvox.server.request_log import RequestRecord

SHUTDOWN_TIMEOUT = 3.0  # seconds to export the last spans
HEADERS_LOGGER = "opentelemetry.util.re"  # its warnings have the invalid value of OTEL_EXPORTER_OTLP_HEADERS
SWITCHING_PROTOCOLS = 101  # HTTP status of an accepted WebSocket
Attributes = dict[str, str | int | float]


class Tracing:
    """The tracer of one server process. The standard OTEL_… variables configure exporter, sampler and limits."""

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            logging.getLogger(HEADERS_LOGGER).addFilter(_hide_values)
            exporter = OTLPSpanExporter()
        # Variables override the name: OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES.
        resource = Resource({"service.name": "polyvox", "service.version": __version__}).merge(_named_resource())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self.tracer: Tracer = self._provider.get_tracer("polyvox", __version__)

    def new_utterance(self, request_id: str) -> "SpanUtteranceTrace":
        """The span of an utterance, in the request that is served now."""
        return SpanUtteranceTrace(self.tracer, request_id)

    def flush(self) -> None:
        """Exports all spans that have ended."""
        self._provider.force_flush()

    def close(self) -> None:
        """Exports the last spans, or gives up after SHUTDOWN_TIMEOUT: the receiver may be down."""
        closing = threading.Thread(target=self._provider.shutdown, name="polyvox-tracing", daemon=True)
        closing.start()
        closing.join(SHUTDOWN_TIMEOUT)


def _named_resource() -> Resource:
    """The resource of the variables; empty without a name in them, which the SDK would make up."""
    found = Resource.create()
    name = found.attributes.get("service.name", "")
    unnamed = isinstance(name, str) and name.startswith("unknown_service")
    return Resource({key: value for key, value in found.attributes.items() if not (unnamed and key == "service.name")})


class SpanUtteranceTrace:
    """A span of an utterance with a child for each sentence, made from the engine's result when it ends."""

    def __init__(self, tracer: Tracer, request_id: str) -> None:
        self._tracer = tracer
        self._span = tracer.start_span("utterance", attributes={"polyvox.request_id": request_id})
        self._context = set_span_in_context(self._span)
        self._submitted: dict[AsyncStream, float] = {}

    def on_submitted(self, stream: AsyncStream, start: float) -> None:
        self._submitted[stream] = start

    def on_sentence_finished(self, stream: AsyncStream, result: Result) -> None:
        start, end = self._submitted.pop(stream), time.time()
        attributes: Attributes = {
            "polyvox.finish_reason": result.finish_reason,
            "polyvox.frames": result.frames,
            "polyvox.audio_seconds": result.seconds,
            "polyvox.underruns": result.underruns,
        }
        sentence = self._tracer.start_span("sentence", self._context, attributes=attributes, start_time=_ns(start))
        parent = set_span_in_context(sentence)
        admitted = start + result.queue_wait
        self._add_span("queue", parent, start, admitted)
        if result.first_frame is not None:
            self._add_span("prefill", parent, admitted, start + result.first_frame)
            sentence.add_event("first frame", timestamp=_ns(start + result.first_frame))
        if result.first_audio is not None:
            sentence.add_event("first audio", timestamp=_ns(start + result.first_audio))
        if result.error is not None:
            sentence.set_status(Status(StatusCode.ERROR, result.error))
        sentence.end(_ns(end))

    def on_first_packet(self, stages: dict[str, float] | None) -> None:
        seconds = {f"polyvox.{name}_seconds": value for name, value in (stages or {}).items()}
        self._span.add_event("first packet", seconds)

    def on_finished(self, record: RequestRecord) -> None:
        for start in self._submitted.values():  # without a result
            self._add_span("sentence", self._context, start, time.time())
        self._submitted.clear()
        self._span.set_attributes(
            {
                "polyvox.finish_reason": record.finish_reason or "rejected",
                "polyvox.characters": record.characters,
                "polyvox.sentences": record.sentences,
                "polyvox.audio_seconds": record.audio_seconds,
                "polyvox.queue_wait_seconds": record.queue_wait,
                "polyvox.underruns": record.underruns,
            }
        )
        if record.first_audio is not None:
            self._span.set_attribute("polyvox.ttfa_seconds", record.first_audio)
        if record.finish_reason == "error":
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()

    def _add_span(self, name: str, parent: context.Context, start: float, end: float) -> None:
        self._tracer.start_span(name, parent, start_time=_ns(start)).end(_ns(end))


class TracingMiddleware:
    """A span for each HTTP request and WebSocket, as a child of the caller's `traceparent`."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self.app, self._tracer = app, tracing.tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or path_of(scope) in PROBE_PATHS:
            await self.app(scope, receive, send)
            return
        method = scope.get("method", "GET")
        span = self._tracer.start_span(
            method,
            propagate.extract(_text_headers(scope["headers"])),
            SpanKind.SERVER,
            {"http.request.method": method, "url.path": scope["path"], "url.scheme": scope["scheme"]},
        )
        if (line := current_line.get()) is not None and span.is_recording():
            line.fields["trace_id"] = format_trace_id(span.get_span_context().trace_id)

        async def send_and_note(message: Message) -> None:
            match message["type"]:
                case "http.response.start" | "websocket.http.response.start":
                    _set_status(span, message["status"])
                case "websocket.accept":
                    _set_status(span, SWITCHING_PROTOCOLS)
            await send(message)

        token = context.attach(set_span_in_context(span))
        try:
            await self.app(scope, receive, send_and_note)
        except Exception as error:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            context.detach(token)
            if (route := getattr(scope.get("route"), "path", None)) is not None:
                span.update_name(f"{method} {route}")
                span.set_attribute("http.route", route)
            span.end()


def _hide_values(record: logging.LogRecord) -> bool:
    """A filter of log lines that keeps all of them, without their values."""
    record.args = tuple("(hidden)" for _ in record.args or ())
    return True


def _set_status(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(Status(StatusCode.ERROR))


def _text_headers(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
