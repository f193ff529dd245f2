# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry traces: spans of requests, utterances and sentences, and an exporter that fails."""

import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from websockets.sync.client import connect

from ipc.engine_processes import eventually
from polyvox.engine.interface import Result
from polyvox.errors import InvalidRequest
from polyvox.server import tracing
from polyvox.server.request_log import RequestRecord
from polyvox.server.settings import Settings
from polyvox.server.settings_sources import load_settings
from polyvox.server.synthesis.first_packet import STAGES
from polyvox.server.tracing import Tracing
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving

pytestmark = pytest.mark.slow

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
TIMEOUT = 60.0


class Spans:
    """The spans that a server has exported."""

    def __init__(self, traced: Tracing, exporter: InMemorySpanExporter) -> None:
        self._tracing, self._exporter = traced, exporter

    def clear(self) -> None:
        self._tracing.flush()
        self._exporter.clear()

    def named(self, name: str) -> list[ReadableSpan]:
        """Spans in the order of their start."""
        self._tracing.flush()
        found = [span for span in self._exporter.get_finished_spans() if span.name == name]
        return sorted(found, key=lambda span: span.start_time or 0)

    def wait_for(self, name: str) -> ReadableSpan:
        eventually(lambda: bool(self.named(name)) or threading.Event().wait(0.01))
        return self.named(name)[0]


@pytest.fixture(scope="module")
def shared_spans(shared_engine: PausableEngine) -> Iterator[tuple[RunningServer, Spans]]:
    exporter = InMemorySpanExporter()
    traced = Tracing(exporter)
    with serving(shared_engine, tracing=traced) as server:
        yield server, Spans(traced, exporter)


@pytest.fixture
def traced_server(shared_spans: tuple[RunningServer, Spans], engine: PausableEngine) -> RunningServer:
    del engine  # resumed at the end
    return shared_spans[0]


@pytest.fixture
def spans(shared_spans: tuple[RunningServer, Spans]) -> Spans:
    shared_spans[1].clear()
    return shared_spans[1]


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def test_a_request_has_a_span_with_its_utterance_sentences_and_waits(
    traced_server: RunningServer, spans: Spans
) -> None:
    body = {"input": "One sentence. Another sentence. " * 8, "response_format": "pcm"}
    with traced_server.client(headers=TRACEPARENT) as client:
        assert client.post("/v1/audio/speech", json=body).status_code == 200
    request = spans.wait_for("POST /v1/audio/speech")
    (utterance,) = spans.named("utterance")
    sentences, queues = spans.named("sentence"), spans.named("queue")
    context = request.get_span_context()
    assert context is not None
    assert f"{context.trace_id:032x}" == TRACE_ID
    assert f"{parent_of(request):016x}" == PARENT_ID
    assert parent_of(utterance) == id_of(request)
    assert request.attributes is not None
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["http.route"] == "/v1/audio/speech"
    assert len(sentences) > 1
    assert {parent_of(sentence) for sentence in sentences} == {id_of(utterance)}
    assert [parent_of(queue) for queue in queues] == [id_of(sentence) for sentence in sentences]
    assert [event.name for event in utterance.events] == ["first packet"]
    stages = {f"polyvox.{stage}_seconds" for stage in STAGES if stage != "words"}
    assert set(utterance.events[0].attributes or ()) == stages
    assert utterance.attributes is not None
    assert utterance.attributes["polyvox.sentences"] == len(sentences)
    assert "sentence. Another" not in str([span.to_json() for span in (request, utterance, *sentences)])


def test_a_sentence_has_its_prefill_and_its_first_frame(spans: Spans, traced_server: RunningServer) -> None:
    del traced_server
    trace = spans._tracing.new_utterance("req-1")
    stream, start = object(), time.time()
    result = Result("stop", 1, frames=5, queue_wait=0.25, first_frame=0.5, first_audio=0.75)
    trace.on_submitted(stream, start)  # type: ignore[arg-type]
    trace.on_sentence_finished(stream, result)  # type: ignore[arg-type]
    trace.on_finished(RequestRecord("req-1", "model", 0.0, 1, finish_reason="stop"))
    (sentence,), (queue,), (prefill,) = spans.named("sentence"), spans.named("queue"), spans.named("prefill")
    assert queue.end_time == prefill.start_time
    assert prefill.end_time is not None
    assert prefill.start_time is not None
    assert prefill.end_time - prefill.start_time == pytest.approx(0.25e9, abs=1e3)
    assert [event.name for event in sentence.events] == ["first frame", "first audio"]


def test_a_rejected_request_has_a_span_with_its_status(traced_server: RunningServer, spans: Spans) -> None:
    with traced_server.client() as client:
        assert traced_server.speak(client, "overloaded").status_code == 503
    traced_server.state.synthesis._rejections.clear()
    request = spans.wait_for("POST /v1/audio/speech")
    assert request.attributes is not None
    assert request.attributes["http.response.status_code"] == 503
    assert request.parent is None
    assert not request.status.is_ok
    (utterance,) = spans.named("utterance")
    assert utterance.attributes is not None
    assert utterance.attributes["polyvox.finish_reason"] == "rejected"


def test_a_websocket_has_a_span_with_its_utterances(traced_server: RunningServer, spans: Spans) -> None:
    url = f"ws://127.0.0.1:{traced_server.port}/v1/audio/speech/stream"
    with connect(url, additional_headers=TRACEPARENT, proxy=None, open_timeout=TIMEOUT) as websocket:
        websocket.send(json.dumps({"type": "session.config", "response_format": "pcm"}))
        websocket.send(json.dumps({"type": "input.text", "text": "Hello there."}))
        websocket.send(json.dumps({"type": "input.done"}))
        message: str | bytes = b""
        while isinstance(message, bytes) or json.loads(message)["type"] != "session.done":
            message = websocket.recv(TIMEOUT)
    request = spans.wait_for("GET /v1/audio/speech/stream")
    (utterance,) = spans.named("utterance")
    assert f"{parent_of(request):016x}" == PARENT_ID
    assert parent_of(utterance) == id_of(request)
    assert request.attributes is not None
    assert request.attributes["http.response.status_code"] == 101


def test_health_requests_have_no_spans(traced_server: RunningServer, spans: Spans) -> None:
    with traced_server.client() as client:
        for path in ("/livez", "/readyz", "/health", "/metrics", "/v1/models"):
            assert client.get(path).status_code == 200
    spans.wait_for("GET /v1/models")
    assert not [name for name in ("GET /livez", "GET /readyz", "GET /health", "GET /metrics") if spans.named(name)]


def test_the_log_line_has_the_trace_id(
    traced_server: RunningServer, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with traced_server.client(headers=TRACEPARENT) as client:
        client.get("/v1/models")
    spans.wait_for("GET /v1/models")
    eventually(lambda: any(getattr(record, "trace_id", None) == TRACE_ID for record in caplog.records))


class BlockedExporter(SpanExporter):
    """A receiver that never answers."""

    def __init__(self) -> None:
        self.called, self.released = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        del spans
        self.called.set()
        self.released.wait(TIMEOUT)
        return SpanExportResult.FAILURE


def test_an_exporter_that_blocks_delays_no_request_and_not_the_shutdown(
    engine: PausableEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    monkeypatch.setattr(tracing, "SHUTDOWN_TIMEOUT", 0.1)
    exporter = BlockedExporter()
    with serving(engine, tracing=Tracing(exporter)) as server, server.client() as client:
        for _ in range(10):  # more spans than the queue may contain
            assert server.speak(client).status_code == 200
        assert exporter.called.wait(TIMEOUT)
    assert not exporter.released.is_set()  # the server has stopped before the exporter
    exporter.released.set()


class Receiver(BaseHTTPRequestHandler):
    received: list[ExportTraceServiceRequest]

    def do_POST(self) -> None:
        request = ExportTraceServiceRequest()
        request.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
        assert self.path == "/v1/traces"
        self.received.append(request)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_spans_are_sent_by_otlp_to_the_endpoint_of_the_environment(
    engine: PausableEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[ExportTraceServiceRequest] = []
    handler = type("Handler", (Receiver,), {"received": received})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as receiver:
        thread = threading.Thread(target=receiver.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.server_port}")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "speech")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with serving(engine, Settings(otel=True)) as server, server.client() as client:
            assert server.speak(client).status_code == 200
        receiver.shutdown()
        thread.join(TIMEOUT)
    (resource,) = {
        each.resource.SerializeToString(): each.resource for one in received for each in one.resource_spans
    }.values()
    assert {each.key: each.value.string_value for each in resource.attributes}["service.name"] == "speech"
    names = [
        span.name
        for request in received
        for spans in request.resource_spans
        for scope in spans.scope_spans
        for span in scope.spans
    ]
    assert {"POST /v1/audio/speech", "utterance", "sentence", "queue"} <= set(names)


def test_the_service_is_named_polyvox_without_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    traced = Tracing(InMemorySpanExporter())
    assert traced._provider.resource.attributes["service.name"] == "polyvox"
    traced.close()


def test_an_invalid_header_for_the_endpoint_is_logged_without_its_value(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization Bearer s3cret")
    Tracing().close()
    assert "Header format invalid" in caplog.text
    assert "s3cret" not in caplog.text


def test_without_otel_requests_are_not_traced(client: httpx.Client, server: RunningServer) -> None:
    assert server.speak(client).status_code == 200
    middleware = [each.cls.__name__ for each in server.server._app.user_middleware]  # type: ignore[attr-defined]
    assert "TracingMiddleware" not in middleware


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(InvalidRequest, match=r"pip install '\.\[otel\]' in the clone"):
        load_settings({"otel": True})
