# SPDX-License-Identifier: Apache-2.0
"""The ASGI application: all APIs on one engine, which runs in this process or in another. Does not import torch."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Scope

from polyvox import __version__
from polyvox.engine.interface import AsyncEngine
from polyvox.errors import PolyvoxError, shorten
from polyvox.server.api import (
    batch,
    cartesia,
    chat,
    deepgram,
    elevenlabs,
    elevenlabs_account,
    elevenlabs_dialogue,
    elevenlabs_dictionaries,
    elevenlabs_voices,
    elevenlabs_websocket,
    openai,
    ops,
    playground,
    realtime,
    transcriptions,
    voices,
    websocket,
)
from polyvox.server.api.reference import reference_router
from polyvox.server.app_state import get_state
from polyvox.server.conversation.services import TRANSCRIPTS
from polyvox.server.middleware.access_log import AccessLogMiddleware
from polyvox.server.middleware.auth import AuthMiddleware
from polyvox.server.middleware.cross_site import CrossSiteMiddleware
from polyvox.server.middleware.head import HeadMiddleware
from polyvox.server.middleware.lifecycle import LifecycleMiddleware
from polyvox.server.request_log import RequestLog
from polyvox.server.requests import request_id_of
from polyvox.server.responses import ERROR_RESPONSES, APIError, error_response, field_names, validation_error
from polyvox.server.settings import Settings
from polyvox.server.startup import Startup

if TYPE_CHECKING:
    from polyvox.server.tracing import Tracing

# Opens the connection to an engine inside the server's event loop.
Connect = Callable[[], AbstractAsyncContextManager[AsyncEngine]]

EXPOSED_HEADERS = [
    "x-request-id",
    "x-seed",
    "x-polyvox-model",
    "x-polyvox-ignored",
    "x-polyvox-notice",
    "server-timing",
    "retry-after",
    "retry-after-ms",
]
ROUTERS = (
    openai.router,
    batch.router,
    chat.router,
    realtime.router,
    transcriptions.router,
    websocket.router,
    elevenlabs.router,
    elevenlabs_dialogue.router,
    elevenlabs_websocket.router,
    elevenlabs_voices.router,
    elevenlabs_dictionaries.file_router,  # before the paths with an id
    elevenlabs_dictionaries.router,
    elevenlabs_account.router,
    cartesia.router,
    deepgram.router,
    voices.router,
    ops.router,
    playground.router,
)
RECORDS = "records"  # the folder of request records in that of all server processes
SHARED_FOLDERS = (RECORDS, TRANSCRIPTS)
INTERNAL_ERROR = "Internal error. The server's log has the details under the request id."


def create_app(
    connect: Connect,
    settings: Settings | None = None,
    shared_dir: Path | None = None,
    on_set_up: Callable[[Exception | None], None] = lambda _: None,
    tracing: "Tracing | None" = None,
) -> FastAPI:
    """The application of one server process, which serves health requests before its engine has started.

    shared_dir: a folder with SHARED_FOLDERS in it, if there are several processes. on_set_up: called when the engine
    has started and the application is set up, with None, or cannot be set up, with the error. tracing: by default made
    if settings.otel is true.
    """
    settings = settings or Settings()
    if tracing is None and settings.otel:
        from polyvox.server.tracing import Tracing

        tracing = Tracing()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        request_log = RequestLog(None if shared_dir is None else shared_dir / RECORDS)
        async with connect() as engine:
            app.state.startup = startup = Startup(engine, settings, request_log, shared_dir, on_set_up, tracing)
            yield
            await startup.stop()
            request_log.close()
            if tracing is not None:
                await asyncio.to_thread(tracing.close)

    app = FastAPI(
        title="Polyvox",
        version=__version__,
        lifespan=lifespan,
        responses=ERROR_RESPONSES,
        docs_url=None,  # the page of api/reference.py
        redoc_url=None,
    )
    for router in ROUTERS:
        app.include_router(router)
    app.include_router(reference_router(ROUTERS))
    app.add_middleware(HeadMiddleware)
    app.add_middleware(AuthMiddleware, settings=settings)
    app.add_middleware(CrossSiteMiddleware, settings=settings)
    app.add_middleware(LifecycleMiddleware)  # before all that need the AppState
    if settings.cors_origins:  # outside of the checks, so that web pages can read errors too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    if tracing is not None:
        from polyvox.server.tracing import TracingMiddleware

        app.add_middleware(TracingMiddleware, tracing=tracing)
    app.add_middleware(AccessLogMiddleware, settings=settings)
    app.add_exception_handler(PolyvoxError, _handle_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_http_exception)
    app.add_exception_handler(Exception, _handle_internal_error)
    return app


async def _handle_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PolyvoxError)
    get_state(request).record_rejected(error, request_id_of(request))
    return error_response(error, request_id_of(request), field_names(request.scope))


async def _handle_validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    model = request.scope["endpoint"].__annotations__.get("body")  # endpoints name their request model so
    return await _handle_error(request, validation_error(error, model))


async def _handle_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    code, message = "rejected", str(error.detail)
    if error.status_code == 404:  # by the router; endpoints raise PolyvoxError
        code = "not_found"
        message = (
            f"Unknown path {shorten(request.scope['path'])}. GET {request.scope.get('root_path', '')}/docs lists all."
        )
    elif error.status_code == 405:
        allowed = _allowed_methods(request.app, request.scope)
        headers["allow"] = ", ".join(allowed)
        code = "method_not_allowed"
        message = f"{request.method} is not allowed here: use {_alternatives(allowed)}."
    response = error_response(APIError(error.status_code, code, message), request_id_of(request))
    response.headers.update(headers)
    return response


async def _handle_internal_error(request: Request, _: Exception) -> JSONResponse:
    return error_response(APIError(500, "internal_error", INTERNAL_ERROR), request_id_of(request))


def _allowed_methods(app: FastAPI, scope: Scope) -> list[str]:
    """All methods of a path. Starlette lists only those of the first route that matches."""
    found = [
        method
        for method in ("DELETE", "GET", "PATCH", "POST")
        if any(route.matches({**scope, "method": method})[0] == Match.FULL for route in app.routes)
    ]
    return sorted([*found, "HEAD"] if "GET" in found else found)


def _alternatives(methods: list[str]) -> str:
    """The methods in a sentence, without HEAD, which GET implies."""
    names = [method for method in methods if method != "HEAD"]
    return " or ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
