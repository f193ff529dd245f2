"""The application: all faces around one engine, which may be in this process or in another. No torch in here."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from polyvox import __version__
from polyvox.engine.interface import Engine
from polyvox.errors import PolyvoxError
from polyvox.server.api import (
    batch,
    elevenlabs,
    elevenlabs_websocket,
    openai,
    ops,
    playground,
    voices,
    websocket,
)
from polyvox.server.app_state import AppState
from polyvox.server.health import Health
from polyvox.server.metrics import Metrics
from polyvox.server.middleware.auth import AuthMiddleware
from polyvox.server.openapi import FAILURES
from polyvox.server.recordings import Recordings
from polyvox.server.request_log import RequestLog
from polyvox.server.responses import Refused, error_answer, fields_of, request_id_of
from polyvox.server.settings import Settings
from polyvox.server.synthesis.service import SynthesisService
from polyvox.server.voice_catalog import VoiceCatalog
from polyvox.voices import VoiceLibrary

EXPOSED = ["x-request-id", "x-seed", "x-polyvox-model", "x-polyvox-ignored", "retry-after", "retry-after-ms"]


def create_app(engine: Engine, settings: Settings | None = None, shared: Path | None = None) -> FastAPI:
    """The application of one server process; shared: a folder that all server processes of this engine see."""
    desk = open_desk(engine, settings or Settings(), shared)
    settings = desk.settings

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        desk.health.start()
        yield
        await desk.health.stop()
        desk.speaker.close()

    app = FastAPI(title="Polyvox", version=__version__, lifespan=lifespan, responses=FAILURES)
    app.state.desk = desk
    for face in (openai, batch, websocket, elevenlabs, elevenlabs_websocket, voices, ops, playground):
        app.include_router(face.router)
    app.add_middleware(HeadAsGet)
    app.add_middleware(AuthMiddleware, settings=settings, shared=shared, refused=desk.refused)
    if settings.cors_origins:  # outermost, so that refusals can be read by pages too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=EXPOSED,
        )

    @app.exception_handler(PolyvoxError)
    async def refuse(request: Request, error: PolyvoxError) -> JSONResponse:
        desk.refused(error, request_id_of(request))
        return error_answer(error, request_id_of(request), fields_of(request.scope))

    @app.exception_handler(HTTPException)
    async def refuse_route(request: Request, error: HTTPException) -> JSONResponse:
        told = Refused(error.status_code, "not_found" if error.status_code == 404 else "refused", str(error.detail))
        answer = error_answer(told, request_id_of(request))
        answer.headers.update(error.headers or {})
        if error.status_code == 405:
            answer.headers["allow"] = _allowed(app, request.scope)
        return answer

    @app.exception_handler(Exception)
    async def fail(request: Request, _: Exception) -> JSONResponse:
        told = Refused(500, "internal_error", "something went wrong here; the log has it under the request's id")
        return error_answer(told, request_id_of(request))

    return app


class HeadAsGet:
    """ASGI middleware: probes may ask by HEAD for all that can be read; uvicorn keeps the body back."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app({**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope, receive, send)


def _allowed(app: FastAPI, scope: Scope) -> str:
    """All methods of a path; the framework tells those of its first route."""
    found = [
        method
        for method in ("DELETE", "GET", "POST")
        if any(route.matches({**scope, "method": method})[0] == Match.FULL for route in app.routes)
    ]
    return ", ".join(sorted([*found, "HEAD"] if "GET" in found else found))


def open_desk(engine: Engine, settings: Settings, shared: Path | None) -> AppState:
    facts = engine.info()
    library = VoiceLibrary() if settings.voices is None else VoiceLibrary(settings.voices)
    book = VoiceCatalog(library, facts, settings.aliases)
    metrics = Metrics()
    speaker = SynthesisService(engine, facts, book.resolve, settings)
    outcomes = RequestLog(None if shared is None else shared / "outcomes")
    recordings, health = Recordings(engine, settings), Health(speaker, facts, metrics)
    desk = AppState(settings, engine, facts, speaker, book, recordings, outcomes, metrics, health)
    speaker.on_end = desk.ended
    return desk
