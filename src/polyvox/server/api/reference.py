# SPDX-License-Identifier: Apache-2.0
"""The description of all endpoints at /docs. `reference_page.py` renders it."""

import asyncio
from collections.abc import Iterable

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from starlette.routing import WebSocketRoute

from polyvox.server.api.playground import HEADERS
from polyvox.server.reference_page import render_reference


def reference_router(routers: Iterable[APIRouter]) -> APIRouter:
    """The router of /docs. routers: those of the application, whose WebSockets the OpenAPI document does not have."""
    router = APIRouter()
    websockets = [route.path for each in routers for route in each.routes if isinstance(route, WebSocketRoute)]

    @router.get("/docs", include_in_schema=False)
    async def get_reference(request: Request) -> HTMLResponse:
        page = await asyncio.to_thread(lambda: render_reference(request.app.openapi(), websockets))
        return HTMLResponse(page, headers=HEADERS)

    return router
