# SPDX-License-Identifier: Apache-2.0
"""Requests while the server starts, which the application cannot serve yet, and while it drains."""

import time

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyvox.errors import EngineDown, Overloaded
from polyvox.server.health import live_response, starting_response
from polyvox.server.logs import log_request
from polyvox.server.middleware.paths import health_path
from polyvox.server.requests import request_id_of
from polyvox.server.responses import error_response
from polyvox.server.startup import Startup

TRY_AGAIN_LATER = 1013  # close code of a WebSocket
# For a browser, until the playground can be shown.
STARTING_PAGE = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <title>Polyvox</title>
  <style>
    body {{ display: grid; min-height: 90vh; align-items: center; text-align: center }}
    main {{ font: 1.125rem/1.6 system-ui, sans-serif }}
  </style>
</head>
<body><main><h1>Polyvox</h1><p role="status">{}</p><p>This page reloads until the playground is ready.</p></main></body>
</html>
"""
REFRESH_SECONDS = "2"


class LifecycleMiddleware:
    """Answers health requests and rejects others until the engine has started; closes connections during the drain.

    The server accepts connections from its start to its end, so that no client waits for an answer.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        startup: Startup = scope["app"].state.startup
        health = health_path(scope)
        state = startup.state if health else await startup.connected()
        if state is None:
            now, status = time.monotonic(), startup.engine.status()
            if health == "/livez":
                response: Response = live_response(status, startup.settings.engine_down_timeout, now)
            elif health:
                response = starting_response(status, now)
            elif scope["type"] == "http" and "text/html" in HTTPConnection(scope).headers.get("accept", ""):
                response = HTMLResponse(STARTING_PAGE.format(status.describe()), 503, {"refresh": REFRESH_SECONDS})
            else:
                response = _reject(scope, status.error(now))
            await _respond(response, scope, receive, send)
        elif scope["type"] == "websocket" and state.synthesis.draining:
            error = Overloaded("The server is shutting down.", 1.0, "shutting_down")
            await _respond(_reject(scope, error), scope, receive, send)
        else:

            async def send_and_close(message: Message) -> None:
                if message["type"] == "http.response.start" and state.synthesis.draining:
                    MutableHeaders(scope=message)["connection"] = "close"  # the next request goes to another server
                await send(message)

            await self.app(scope, receive, send_and_close if scope["type"] == "http" else send)


def _reject(scope: Scope, error: EngineDown | Overloaded) -> Response:
    request_id = request_id_of(HTTPConnection(scope))
    log_request("request rejected", request_id, {"status": error.status, "error": str(error)})
    return error_response(error, request_id)


async def _respond(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": "The server is not ready."})
        return
    response.headers["connection"] = "close"
    await response(scope, receive, send)
