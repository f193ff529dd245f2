# SPDX-License-Identifier: Apache-2.0
"""The objects that the endpoints of one server process share."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from polyvox.engine.interface import AsyncEngine
from polyvox.errors import Overloaded, PolyvoxError
from polyvox.models.info import ModelInfo
from polyvox.server.conversation.services import ConversationServices
from polyvox.server.health import HealthMonitor
from polyvox.server.logs import log_request
from polyvox.server.metrics import Metrics
from polyvox.server.recordings import RecordingReader
from polyvox.server.request_log import RequestLog, RequestRecord
from polyvox.server.responses import Disconnected
from polyvox.server.settings import Settings
from polyvox.server.synthesis.service import SynthesisService
from polyvox.server.voice_catalog import VoiceCatalog
from polyvox.text.dictionary_library import DictionaryLibrary
from polyvox.text.languages import load_all_rules
from polyvox.voices import VoiceLibrary

DICTIONARIES = "dictionaries"  # the folder of pronunciation dictionaries in the store of the voice library


@dataclass(frozen=True, slots=True)
class AppState:
    """Created once, when the engine runs; endpoints get it as the dependency `State`."""

    settings: Settings
    engine: AsyncEngine
    info: ModelInfo
    synthesis: SynthesisService
    voices: VoiceCatalog
    dictionaries: DictionaryLibrary
    recordings: RecordingReader
    request_log: RequestLog
    metrics: Metrics
    health: HealthMonitor
    conversation: ConversationServices

    @classmethod
    async def create(
        cls, engine: AsyncEngine, settings: Settings, request_log: RequestLog, shared_dir: Path | None
    ) -> "AppState":
        """Queries the engine for its model. shared_dir: see create_app."""
        info = await engine.info()
        library = VoiceLibrary() if settings.voices_dir is None else VoiceLibrary(settings.voices_dir)
        voices = VoiceCatalog(library, info, settings.voice_aliases)
        metrics = Metrics(info.identity.name)
        synthesis = SynthesisService(engine, info, voices.resolve, settings)
        await synthesis.in_thread(load_all_rules)  # before the first request, which the event loop may prepare itself
        state = cls(
            settings,
            engine,
            info,
            synthesis,
            voices,
            DictionaryLibrary(library.store.subfolder(DICTIONARIES)),
            RecordingReader(settings, engine.sample_rate),
            request_log,
            metrics,
            HealthMonitor(synthesis, info, metrics),
            ConversationServices.create(settings, shared_dir, metrics),
        )
        synthesis.num_slots = lambda: state.max_streams
        synthesis.on_finished = state.record_finished
        synthesis.on_chunk = metrics.record_chunk
        return state

    @property
    def max_streams(self) -> int:
        """Slots of all engines that run."""
        return int(self.health.stats.get("slots", 0))

    def record_finished(self, record: RequestRecord) -> None:
        """Counts, logs and stores a finished request."""
        self.metrics.record_finished(record)
        if not self.request_log.put(record):
            self.metrics.dropped_records.inc()
        hidden = ("created", "model", "request_id", "stages")
        fields = {name: value for name, value in record.as_dict().items() if name not in hidden}
        event = {"cancelled": "request aborted", "error": "request failed"}.get(record.finish_reason or "error")
        log_request(
            event or "request finished",
            record.request_id,
            {name: _rounded(value) for name, value in fields.items() if value is not None},
            logging.ERROR if event == "request failed" else logging.INFO,
        )

    def record_rejected(self, error: PolyvoxError, request_id: str) -> None:
        """Counts and logs a rejected request, or one whose client has disconnected before its end."""
        if isinstance(error, Disconnected):
            self.metrics.requests.labels("cancelled").inc()
            self.metrics.aborts.labels("disconnect").inc()
        else:
            self.metrics.record_rejected(error)
        level = logging.INFO if error.status < 500 or isinstance(error, Overloaded) else logging.ERROR
        log_request("request rejected", request_id, {"status": error.status, "error": str(error)}, level)


def get_state(connection: HTTPConnection) -> AppState:
    state = connection.app.state.startup.state
    assert isinstance(state, AppState)
    return state


async def _get_state(connection: HTTPConnection) -> AppState:
    """FastAPI would run a plain function in one of 40 threads."""
    return get_state(connection)


State = Annotated[AppState, Depends(_get_state)]


def _rounded(value: object) -> object:
    return round(value, 3) if isinstance(value, float) else value
