# SPDX-License-Identifier: Apache-2.0
"""HEAD requests for every GET endpoint."""

from starlette.types import ASGIApp, Receive, Scope, Send


class HeadMiddleware:
    """Handles HEAD as GET. uvicorn does not send the body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app({**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope, receive, send)
