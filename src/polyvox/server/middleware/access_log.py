# SPDX-License-Identifier: Apache-2.0
"""One log line for every HTTP request and every WebSocket, however it ends."""

import asyncio
import logging
import time

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyvox.server.logs import RequestLine, current_line
from polyvox.server.middleware.addresses import TrustedProxies
from polyvox.server.middleware.paths import PROBE_PATHS, path_of
from polyvox.server.requests import request_id_of
from polyvox.server.responses import Disconnected
from polyvox.server.settings import Settings

log = logging.getLogger(__name__)


SWITCHING_PROTOCOLS = 101  # HTTP status of an accepted WebSocket


class AccessLogMiddleware:
    """The outermost middleware: it sees every response, and every request without one."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self._proxies = TrustedProxies(settings.trusted_proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._log_request(scope, receive, send)
            case "websocket":
                await self._log_websocket(scope, receive, send)
            case _:
                await self.app(scope, receive, send)

    async def _log_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        line = RequestLine(request_id_of(HTTPConnection(scope)))
        num_bytes, complete = 0, False

        async def send_and_count(message: Message) -> None:
            nonlocal num_bytes, complete
            if message["type"] == "http.response.start":
                line.fields["status"] = message["status"]
            elif message["type"] == "http.response.body":
                num_bytes += len(message.get("body", b""))
                complete = not message.get("more_body", False)
            await send(message)

        token = current_line.set(line)
        try:
            await self.app(scope, receive, send_and_count)
        except asyncio.CancelledError:
            line.add("request aborted", {"reason": "drain"}, logging.WARNING)
            raise
        except Exception as error:  # the server logs its traceback
            line.add("request failed", {"status": 500, "error": repr(error)}, logging.ERROR)
            raise
        finally:
            current_line.reset(token)
            status = line.fields.get("status")
            if (not complete or status == Disconnected.STATUS) and line.event != "request failed":
                line.event = "request aborted"
                line.fields.setdefault("reason", "disconnect")
            line.fields |= {"method": scope["method"], "bytes": num_bytes}
            _count(scope, scope["method"], status)
            self._write(scope, line)

    async def _log_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        line = RequestLine(request_id_of(HTTPConnection(scope)))
        accepted = False

        async def receive_and_note() -> Message:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                line.fields.setdefault("code", message.get("code"))
            return message

        async def send_and_note(message: Message) -> None:
            nonlocal accepted
            match message["type"]:
                case "websocket.accept":
                    accepted = True
                    line.close()
                case "websocket.close":
                    line.fields.setdefault("code", message.get("code", 1000))
                case "websocket.http.response.start":
                    line.fields["status"] = message["status"]
            await send(message)

        token = current_line.set(line)
        try:
            await self.app(scope, receive_and_note, send_and_note)
        finally:
            current_line.reset(token)
            line.event = "websocket closed" if accepted else "request rejected"
            _count(scope, "GET", SWITCHING_PROTOCOLS if accepted else line.fields.get("status"))
            self._write(scope, line)

    def _write(self, scope: Scope, line: RequestLine) -> None:
        status = line.fields.get("status")
        is_error = isinstance(status, int) and status >= 400
        event = line.event or ("request rejected" if is_error else "request finished")
        is_probe = path_of(scope) in PROBE_PATHS and line.level == logging.INFO
        fields = {
            "request_id": line.request_id,
            "client": self._proxies.client_of(HTTPConnection(scope)) or None,
            "path": scope["path"],
            **line.fields,
            "seconds": round(time.monotonic() - line.arrived_at, 3),
        }
        log.log(
            logging.DEBUG if is_probe else line.level,
            event,
            extra={name: value for name, value in fields.items() if value is not None},
        )


def _count(scope: Scope, method: str, status: object) -> None:
    """Counts a request that has a response. Before the engine has started there are no metrics."""
    state = scope["app"].state.startup.state
    if state is not None and isinstance(status, int):
        state.metrics.count_http_request(method, getattr(scope.get("route"), "path", None), status)
