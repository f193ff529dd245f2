"""The playground at /: one page that shows what the loaded checkpoint can do. It is served as it lies in `web`."""

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
from polyvox.server.app_state import of
from polyvox.server.responses import Refused

router = APIRouter()

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# The page needs nothing but this server; blob: is a recording that is heard before it is sent.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "cache-control": "no-cache",  # kept, but asked for at every load: the names say nothing of the version
    "content-security-policy": POLICY,
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
    """All files of the page by their names."""
    found = {}
    for file in files("polyvox.server").joinpath("web").iterdir():
        media_type = MEDIA_TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            content = file.read_bytes()
            found[file.name] = Asset(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:20]}"')
    return found


@router.get("/", response_class=HTMLResponse, summary="The playground.")
async def page(request: Request) -> Response:
    return _answer(request, assets()["index.html"])


@router.get("/web/{name}", include_in_schema=False)
async def asset(request: Request, name: str) -> Response:
    found = assets().get(name)
    if found is None:
        raise Refused(404, "not_found", "the page has no file of this name", "name")
    return _answer(request, found)


@router.get("/v1/playground", summary="What the playground needs to know: the model, its voices, formats, limits.")
async def facts(request: Request) -> JSONResponse:
    desk = of(request)
    settings = desk.settings
    told: dict[str, Any] = {
        "version": __version__,
        "model": model_object(desk),
        "voices": await desk.speaker.in_thread(desk.voices.list),
        "formats": [
            {"name": entry.name, "ending": entry.extensions[0], "media_type": entry.media_type}
            for entry in FORMATS.values()
        ],
        "limits": {
            "text": settings.max_text,
            "audio_bytes": settings.max_audio,
            "audio_seconds": settings.max_audio_seconds,
            "streams": desk.speaker.streams,
        },
        "needs_key": bool(settings.api_keys),
    }
    return JSONResponse(told, headers={"cache-control": "no-store"})


def _answer(request: Request, found: Asset) -> Response:
    headers = {**HEADERS, "etag": found.etag}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if found.etag in known:
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=found.media_type, headers=headers)
