# SPDX-License-Identifier: Apache-2.0
"""POST /v1/audio/speech/batch: several texts in one request and one response."""

import asyncio
import base64
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field

from polyvox.errors import Overloaded, PolyvoxError
from polyvox.server.api.openai import SpeechRequest, parse_speech_request
from polyvox.server.app_state import AppState, State
from polyvox.server.middleware.limits import LIMITER, ConcurrencyLimiter, ConcurrencyLimitExceeded
from polyvox.server.requests import (
    STRICT,
    RecordingRoute,
    RequestModel,
    check_unknown,
    is_strict,
    request_id_of,
    validate,
)
from polyvox.server.responses import APIError, error_body, error_response
from polyvox.server.synthesis.streaming import while_connected
from polyvox.server.synthesis.utterance import Utterance

router = APIRouter(route_class=RecordingRoute)

MAX_CONCURRENT_ITEMS = 4


class BatchRequest(RequestModel):
    """`items` are speech requests. The other fields are defaults for all items."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    items: list[dict[str, Any]] = Field(min_length=1, description="Speech requests; each is validated on its own.")


@router.post("/v1/audio/speech/batch", summary="Synthesise several texts; the response contains all of them.")
async def create_batch(request: Request, body: BatchRequest, state: State, strict: str = STRICT) -> JSONResponse:
    request_id, limit = request_id_of(request), state.settings.max_batch_items
    if len(body.items) > limit:
        message = f"Invalid value for 'items': must have 1 to {limit} requests (got {len(body.items)})."
        raise APIError(422, "invalid_field", message, "items")
    items = [{**(body.model_extra or {}), **item} for item in body.items]
    limiter = request.scope[LIMITER]
    batch = Batch(state, request_id, limiter.caller.key, items, is_strict(strict))
    await while_connected(request, asyncio.ensure_future(batch.run(limiter)))
    headers = check_unknown(sorted(batch.unknown_fields), False, request_id)
    overloaded = [error for error in batch.errors if isinstance(error, Overloaded)]
    if len(overloaded) == len(items):
        return error_response(overloaded[0], request_id)
    counts = {"total": len(items), "succeeded": len(items) - len(batch.errors), "failed": len(batch.errors)}
    response = {"id": request_id, "model": state.info.identity.name, "results": batch.results, **counts}
    return JSONResponse(response, headers=headers)


class Batch:
    """Speech requests that are synthesised as files, a few at a time."""

    def __init__(self, state: AppState, request_id: str, owner: str, items: list[dict[str, Any]], strict: bool) -> None:
        self._state, self._request_id, self._owner, self._items, self._strict = state, request_id, owner, items, strict
        self._indices = iter(range(len(items)))
        self.results: list[dict[str, Any]] = [{} for _ in items]
        self.errors: list[PolyvoxError] = []
        self.unknown_fields: set[str] = set()

    async def run(self, limiter: ConcurrencyLimiter) -> None:
        """Synthesises all items. One worker is covered by the batch itself, others count towards the limit."""
        num_others = min(MAX_CONCURRENT_ITEMS, len(self._items)) - 1
        slots: list[AbstractAsyncContextManager[None]] = [
            nullcontext(),
            *(limiter.request() for _ in range(num_others)),
        ]
        tasks = [asyncio.create_task(self._work(slot)) for slot in slots]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            del tasks, task

    async def _work(self, slot: AbstractAsyncContextManager[None]) -> None:
        try:
            async with slot:
                for index in self._indices:
                    self.results[index] = {"index": index, **await self._synthesise(index)}
        except ConcurrencyLimitExceeded:
            return  # the other workers take the items

    async def _synthesise(self, index: int) -> dict[str, Any]:
        request_id = f"{self._request_id}.{index}"
        utterance: Utterance | None = None
        try:
            body = validate(SpeechRequest, self._items[index])
            unknown = body.unknown_fields()
            if self._strict:
                check_unknown(unknown, True, request_id)
            self.unknown_fields |= set(unknown)
            options = replace(await parse_speech_request(body, self._state), streaming=False)
            utterance = await self._state.synthesis.start(options, request_id, self._owner)
            audio = b"".join([part async for part in utterance.audio()])
        except PolyvoxError as error:
            if utterance is None or utterance.record.finish_reason is None:  # otherwise it is recorded as finished
                self._state.record_rejected(error, request_id)
            self.errors.append(error)
            return {"status": "error", **error_body(error)}
        record = utterance.record
        return {
            "status": "success",
            "audio_data": base64.b64encode(audio).decode(),
            "media_type": utterance.content_type,
            "seed": record.seed,
            "finish_reason": record.finish_reason,
            "usage": record.usage(),
        }
