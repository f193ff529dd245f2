# SPDX-License-Identifier: Apache-2.0
"""Endpoints for operators: liveness, readiness, models and metrics."""

import asyncio
import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from polyvox.server.api import elevenlabs
from polyvox.server.app_state import AppState, State
from polyvox.server.health import capacity_fields, live_response, starting_response
from polyvox.server.responses import APIError

router = APIRouter()


@router.get(
    "/livez",
    response_class=PlainTextResponse,
    summary="Liveness: the process answers, and the engine is not down for longer than engine_down_timeout.",
)
async def livez(state: State) -> PlainTextResponse:
    return live_response(state.engine.status(), state.settings.engine_down_timeout, time.monotonic())


@router.get("/readyz", summary="Readiness: the engine runs and a trial utterance succeeded.")
@router.get("/health", summary="Alias of /readyz.")
async def readyz(state: State) -> JSONResponse:
    status = state.engine.status()
    if not (status.running or state.synthesis.draining):
        return starting_response(status, time.monotonic())
    body: dict[str, Any] = {
        "status": "ready" if state.health.ready else "draining" if state.synthesis.draining else "not ready",
        "problem": state.health.problem,
        "model": state.info.identity.name,
        "streams": len(state.synthesis.active),
        **capacity_fields(state.health.stats),
    }
    if len(state.health.engines) > 1:
        body["replicas"] = [engine.as_dict() for engine in state.health.engines]
    return JSONResponse(body, status_code=200 if state.health.ready else 503)


@router.get("/v1/models", summary="The loaded model, and the LLM of chat completions.")
async def list_models(request: Request, state: State) -> JSONResponse:
    if "xi-api-key" in request.headers:  # ElevenLabs' clients
        return JSONResponse([elevenlabs.model_object(state)])
    return JSONResponse({"object": "list", "data": [model_object(state), *llm_objects(state)]})


@router.get("/v1/audio/models", summary="The loaded model, in the format of Open WebUI.")
async def list_audio_models(state: State) -> JSONResponse:
    return JSONResponse({"models": [model_object(state)]})


@router.get("/v1/models/{name:path}", summary="The loaded model or the LLM, if it has this name.")
async def get_model(state: State, name: str) -> JSONResponse:
    for found in llm_objects(state):
        if found["id"] == name:
            return JSONResponse(found)
    if name != state.info.identity.name:
        message = f"Unknown model. The loaded model is {state.info.identity.name}."
        raise APIError(404, "model_not_found", message, "model")
    return JSONResponse(model_object(state))


@router.get("/metrics", response_class=PlainTextResponse, summary="Prometheus metrics.")
async def get_metrics(state: State) -> Response:
    state.metrics.active.set(len(state.synthesis.active))
    engines, ready = [engine.metrics() for engine in state.health.engines], state.health.ready
    text = await asyncio.to_thread(state.metrics.render, engines, ready)  # it reads the files of all server processes
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def llm_objects(state: AppState) -> list[dict[str, Any]]:
    """The model of /v1/chat/completions in OpenAI's format, if it has a name."""
    name = state.settings.llm_model if state.settings.llm is not None else None
    return [] if name is None else [{"id": name, "object": "model", "created": 0, "owned_by": "llm"}]


def model_object(state: AppState) -> dict[str, Any]:
    """The loaded model in OpenAI's format, with its capabilities."""
    info = state.info
    return {
        "id": info.identity.name,
        "object": "model",
        "created": 0,
        "owned_by": "polyvox",
        "voices": list(info.voices),
        "languages": list(info.languages),
        "takes_instructions": info.takes_instructions,
        "takes_phonemes": info.takes_phonemes,
        "takes_conversations": info.takes_conversations,
        "designs_voices": info.designs_voices,
        "can_clone": info.can_clone,
        "sample_rate": state.engine.sample_rate,
    }
