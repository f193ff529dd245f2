"""POST /v1/audio/speech/batch: several texts in one request, and one answer with all of them."""

import asyncio
import base64
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from polyvox.errors import Overloaded, PolyvoxError
from polyvox.server.api.openai import STRICT, Speech, is_strict, read_fields, wanted_by
from polyvox.server.app_state import AppState, of
from polyvox.server.middleware.auth import KeySlot, TooMany
from polyvox.server.openapi import taken_as
from polyvox.server.responses import Refused, error_answer, error_body, read_json, request_id_of, shown_fields
from polyvox.server.synthesis.streaming import while_connected
from polyvox.server.synthesis.utterance import Utterance

router = APIRouter()

AT_ONCE = 4
# An item that is wrong is answered for itself, so any object is one.
BATCH = {
    "type": "object",
    "properties": {"items": {"type": "array", "minItems": 1, "items": {"type": "object"}}},
    "required": ["items"],
}


@router.post(
    "/v1/audio/speech/batch",
    openapi_extra=taken_as({"application/json": BATCH}, strict=STRICT),
    summary="Say several texts; the answer has all of them.",
)
async def speak_batch(request: Request) -> JSONResponse:
    """`items` are requests; what stands beside them holds for all that do not say otherwise."""
    desk, request_id = of(request), request_id_of(request)
    shared = await read_json(request, desk.settings)
    items, most = shared.pop("items", None), desk.settings.max_batch
    if not isinstance(items, list) or not 1 <= len(items) <= most or not all(isinstance(item, dict) for item in items):
        raise Refused(422, "invalid_field", f"items: a list of 1 to {most} requests is needed", "items")
    batch = Batch(desk, request_id, [{**shared, **item} for item in items], is_strict(request.query_params))
    await while_connected(request, asyncio.ensure_future(batch.speak(request.scope["polyvox.share"])))
    ignored = sorted(batch.ignored)
    desk.ignored(ignored, request_id)
    full = [error for error in batch.errors if isinstance(error, Overloaded)]
    if len(full) == len(items):
        return error_answer(full[0], request_id)
    counts = {"total": len(items), "succeeded": len(items) - len(batch.errors), "failed": len(batch.errors)}
    told = {"id": request_id, "model": desk.facts.identity.name, "results": batch.results, **counts}
    return JSONResponse(told, headers={"x-polyvox-ignored": shown_fields(ignored)} if ignored else {})


class Batch:
    """Some requests that are said as files, a few at once."""

    def __init__(self, desk: AppState, request_id: str, items: list[dict[str, Any]], strict: bool) -> None:
        self._desk, self._request_id, self._items, self._strict = desk, request_id, items, strict
        self._waiting = iter(range(len(items)))
        self.results: list[dict[str, Any]] = [{} for _ in items]
        self.errors: list[PolyvoxError] = []
        self.ignored: set[str] = set()

    async def speak(self, share: KeySlot) -> None:
        """All of them. One at a time is the caller's as it is; others too, while the share has room for them."""
        places: list[AbstractContextManager[None]] = [nullcontext()]
        places += [share.one() for _ in range(min(AT_ONCE, len(self._items)) - 1)]
        async with asyncio.TaskGroup() as group:
            for place in places:
                group.create_task(self._work(place))

    async def _work(self, place: AbstractContextManager[None]) -> None:
        try:
            with place:
                for index in self._waiting:
                    self.results[index] = {"index": index, **await self._say(index)}
        except TooMany:
            return  # the others say what is left

    async def _say(self, index: int) -> dict[str, Any]:
        request_id = f"{self._request_id}.{index}"
        utterance: Utterance | None = None
        try:
            body, ignored = read_fields(Speech, self._items[index], self._strict)
            self.ignored |= set(ignored)
            wanted = replace(await wanted_by(body, self._desk), streaming=False)
            utterance = await self._desk.speaker.start(wanted, request_id)
            sound = b"".join([part async for part in utterance.sound()])
        except PolyvoxError as error:
            if utterance is None or utterance.outcome.finish_reason is None:  # else it is counted as it ended
                self._desk.refused(error, request_id)
            self.errors.append(error)
            return {"status": "error", **error_body(error)}
        told = utterance.outcome
        return {
            "status": "success",
            "audio_data": base64.b64encode(sound).decode(),
            "media_type": utterance.content_type,
            "seed": told.seed,
            "finish_reason": told.finish_reason,
            "usage": told.usage(),
        }
