"""For those who run it: is it alive, is it ready, which model is it, what does it count."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from polyvox.server.api import elevenlabs
from polyvox.server.app_state import AppState, of
from polyvox.server.responses import Refused

router = APIRouter()


@router.get("/livez", response_class=PlainTextResponse, summary="This process answers.")
async def live() -> str:
    return "alive\n"


@router.get("/readyz", summary="An utterance went through, and the engine is there.")
@router.get("/health", summary="The same as /readyz.")
async def ready(request: Request) -> JSONResponse:
    desk = of(request)
    told = {
        "status": "ready" if desk.health.ready else "draining" if desk.speaker.draining else "not ready",
        "problem": desk.health.problem,
        "model": desk.facts.identity.name,
        "streams": len(desk.speaker.open),
    }
    return JSONResponse(told, status_code=200 if desk.health.ready else 503)


@router.get("/v1/models", summary="The model that is loaded.")
async def models(request: Request) -> JSONResponse:
    if "xi-api-key" in request.headers:  # as ElevenLabs' clients send it
        return JSONResponse([elevenlabs.model_of(of(request))])
    return JSONResponse({"object": "list", "data": [model_object(of(request))]})


@router.get("/v1/audio/models", summary="The same, as some clients ask for it.")
async def audio_models(request: Request) -> JSONResponse:
    return JSONResponse({"models": [model_object(of(request))]})


@router.get("/v1/models/{name:path}", summary="The model, if this is its name.")
async def model(request: Request, name: str) -> JSONResponse:
    desk = of(request)
    if name != desk.facts.identity.name:
        raise Refused(404, "model_not_found", f"model: the one that is loaded is {desk.facts.identity.name}", "model")
    return JSONResponse(model_object(desk))


@router.get("/metrics", response_class=PlainTextResponse, summary="For Prometheus.")
async def metrics(request: Request) -> Response:
    desk = of(request)
    desk.metrics.active.set(len(desk.speaker.open))
    return Response(desk.metrics.page(desk.health.stats), media_type="text/plain; version=0.0.4; charset=utf-8")


def model_object(desk: AppState) -> dict[str, Any]:
    """The loaded model as clients read it, with what may be asked of it."""
    facts = desk.facts
    return {
        "id": facts.identity.name,
        "object": "model",
        "created": 0,
        "owned_by": "polyvox",
        "voices": list(facts.voices),
        "languages": list(facts.languages),
        "takes_instructions": facts.takes_instructions,
        "designs_voices": facts.designs_voices,
        "can_clone": facts.can_clone,
        "sample_rate": desk.engine.sample_rate,
    }
