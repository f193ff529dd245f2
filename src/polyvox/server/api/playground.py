# SPDX-License-Identifier: Apache-2.0
"""The playground at /: a web page for trying the loaded model. Its files are in `web`."""

import asyncio
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from polyvox import __version__
from polyvox.audio.formats import FORMATS
from polyvox.server.api.ops import model_object
from polyvox.server.app_state import State
from polyvox.server.responses import APIError

router = APIRouter()

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# The page loads only from this server; blob: plays a recording before it is uploaded.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "cache-control": "no-cache",  # revalidated at every load: file names do not contain the version
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Asset:
    content: bytes
    media_type: str
    etag: str


@cache
def assets() -> dict[str, Asset]:
    """The files of the page by name. The first call blocks."""
    found = {}
    for file in files("polyvox.server").joinpath("web").iterdir():
        media_type = MEDIA_TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            content = file.read_bytes()
            found[file.name] = Asset(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:20]}"')
    return found


@router.get("/", response_class=HTMLResponse, summary="The playground.")
async def get_page(request: Request) -> Response:
    return _respond(request, (await asyncio.to_thread(assets))["index.html"])


@router.get("/web/{name}", include_in_schema=False)
async def get_asset(request: Request, name: str) -> Response:
    found = (await asyncio.to_thread(assets)).get(name)
    if found is None:
        raise APIError(404, "not_found", "The playground has no file with this name.", "name")
    return _respond(request, found)


@router.get("/v1/playground", summary="What the playground displays: the model, its voices, formats and limits.")
async def get_playground(state: State) -> JSONResponse:
    settings = state.settings
    body: dict[str, Any] = {
        "version": __version__,
        "model": model_object(state),
        "voices": await state.synthesis.in_thread(state.voices.list),
        "formats": [
            {"name": entry.name, "ending": entry.extensions[0], "media_type": entry.media_type}
            for entry in FORMATS.values()
        ],
        "limits": {
            "text": settings.max_text_chars,
            "audio_bytes": settings.max_recording_bytes,
            "audio_seconds": settings.max_recording_seconds,
            "streams": state.max_streams,
        },
        "conversation": {
            "llm": settings.llm is not None,
            "takes_speech": state.info.takes_conversations or settings.stt is not None,
            "transcribes": settings.stt is not None,
        },
        "needs_key": bool(settings.api_keys),
    }
    return JSONResponse(body, headers={"cache-control": "no-store"})


def _respond(request: Request, asset: Asset) -> Response:
    headers = {**HEADERS, "etag": asset.etag}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if asset.etag in known:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)
