# SPDX-License-Identifier: Apache-2.0
"""WS /v1/realtime: OpenAI's Realtime API."""

from fastapi import APIRouter, WebSocket

from polyvox.server.api.websocket_connection import serve_websocket
from polyvox.server.realtime.session import LARGE_EVENTS, RealtimeSession

router = APIRouter()


@router.websocket("/v1/realtime")
async def open_realtime(websocket: WebSocket) -> None:
    await serve_websocket(websocket, lambda connection: RealtimeSession(connection).run(), LARGE_EVENTS)
