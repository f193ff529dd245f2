"""What the faces of one server process share."""

import logging
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from polyvox.engine.interface import Engine
from polyvox.errors import Overloaded, PolyvoxError
from polyvox.models.info import ModelInfo
from polyvox.server.health import Health
from polyvox.server.metrics import Metrics
from polyvox.server.recordings import Recordings
from polyvox.server.request_log import RequestLog, RequestRecord
from polyvox.server.responses import shown_fields
from polyvox.server.settings import Settings
from polyvox.server.synthesis.service import SynthesisService
from polyvox.server.voice_catalog import VoiceCatalog

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AppState:
    settings: Settings
    engine: Engine
    facts: ModelInfo
    speaker: SynthesisService
    voices: VoiceCatalog
    recordings: Recordings
    outcomes: RequestLog
    metrics: Metrics
    health: Health

    def ended(self, outcome: RequestRecord) -> None:
        """Counts an utterance, writes its line and keeps how it went for whoever asks."""
        self.metrics.ended(outcome)
        self.outcomes.put(outcome)
        told = {name: value for name, value in outcome.told().items() if name not in ("created", "model")}
        log.info("said", extra={name: _short(value) for name, value in told.items() if value is not None})

    def refused(self, error: PolyvoxError, request_id: str) -> None:
        self.metrics.requests.labels("overloaded" if isinstance(error, Overloaded) else "refused").inc()
        level = logging.INFO if error.status < 500 or isinstance(error, Overloaded) else logging.ERROR
        log.log(level, "refused", extra={"request_id": request_id, "status": error.status, "error": str(error)})

    def ignored(self, names: list[str], request_id: str) -> None:
        """One line for the fields that a caller sent in vain."""
        if names:
            extra = {"request_id": request_id, "ignored": shown_fields(names)}
            log.info("fields that are not known were ignored", extra=extra)


def of(request: HTTPConnection) -> AppState:
    desk = request.app.state.desk
    assert isinstance(desk, AppState)
    return desk


def _short(value: object) -> object:
    return round(value, 3) if isinstance(value, float) else value
