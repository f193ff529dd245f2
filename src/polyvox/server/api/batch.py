# SPDX-License-Identifier: Apache-2.0
"""POST /v1/audio/speech/batch: several texts in one request and one response."""

import asyncio
import base64
import json
from contextlib import AbstractAsyncContextManager, aclosing, closing, nullcontext
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import ConfigDict, Field
from starlette.types import Receive, Scope

from polyvox.errors import Overloaded, PolyvoxError
from polyvox.server.api.openai import SpeechRequest, parse_speech_request
from polyvox.server.app_state import AppState, State
from polyvox.server.ignored_fields import IgnoredFields
from polyvox.server.middleware.limits import LIMITER, ConcurrencyLimiter, ConcurrencyLimitExceeded
from polyvox.server.requests import (
    STRICT,
    RecordingRoute,
    RequestModel,
    is_strict,
    request_id_of,
    validate,
)
from polyvox.server.responses import APIError, error_body, error_response
from polyvox.server.synthesis.client_response import ClientResponse, ResponseWriter, base64_length, read_parts
from polyvox.server.synthesis.spool import SpooledFile
from polyvox.server.synthesis.utterance import Utterance

router = APIRouter(route_class=RecordingRoute)

MAX_CONCURRENT_ITEMS = 4


class BatchRequest(RequestModel):
    """`items` are speech requests. The other fields are defaults for all items."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    items: list[dict[str, Any]] = Field(min_length=1, description="Speech requests; each is validated on its own.")


class BatchItem(SpeechRequest):
    """A speech request whose result is a whole file, without the times of words."""

    def unknown_fields(self) -> list[str]:
        without_effect = self.model_fields_set & {"stream_format", "timestamp_granularities"}
        return sorted([*super().unknown_fields(), *without_effect, *(["stream"] if self.stream else [])])


@router.post("/v1/audio/speech/batch", summary="Synthesise several texts; the response contains all of them.")
async def create_batch(request: Request, body: BatchRequest, state: State, strict: str = STRICT) -> Response:
    request_id, limit = request_id_of(request), state.settings.max_batch_items
    if len(body.items) > limit:
        message = f"Invalid value for 'items': must have 1 to {limit} requests (got {len(body.items)})."
        raise APIError(422, "invalid_field", message, "items")
    items = [{**(body.model_extra or {}), **item} for item in body.items]
    return BatchResponse(state, request_id, items, is_strict(strict))


class BatchResponse(ClientResponse):
    """Synthesises all items, then sends one JSON object, with the audio from memory or disk."""

    def __init__(self, state: AppState, request_id: str, items: list[dict[str, Any]], strict: bool) -> None:
        super().__init__(state, request_id)
        self._items, self._strict = items, strict

    async def respond(self, scope: Scope, receive: Receive, write: ResponseWriter) -> None:
        limiter: ConcurrencyLimiter = scope[LIMITER]
        batch = Batch(self._state, self._request_id, limiter.caller.key, self._items, self._strict)
        with closing(batch):
            await batch.run(limiter)
            overloaded = [error for error in batch.errors if isinstance(error, Overloaded)]
            if len(overloaded) == len(self._items):
                await error_response(overloaded[0], self._request_id)(scope, receive, write)
                return
            headers = batch.ignored_fields().report(self._request_id)
            parts = self._body(batch)
            length = sum(len(part) if isinstance(part, bytes) else base64_length(part.num_bytes) for part in parts)
            await write.start({"content-type": "application/json", "content-length": str(length), **headers})
            write.set_size(length, batch.playing_seconds)
            for part in parts:
                if isinstance(part, bytes):
                    await write.body(part)
                    continue
                async with aclosing(read_parts(part, self._state.synthesis)) as data:
                    async for read in data:
                        await write.body(base64.b64encode(read))
            await write.end()

    def _body(self, batch: "Batch") -> list[bytes | SpooledFile]:
        """The JSON object in parts; a file stands for its base64."""
        num_failed = len(batch.errors)
        counts = {"total": len(self._items), "succeeded": len(self._items) - num_failed, "failed": num_failed}
        head = {"id": self._request_id, "model": self._state.info.identity.name, **counts}
        parts: list[bytes | SpooledFile] = [json.dumps(head)[:-1].encode() + b', "results": [']
        for index, result in enumerate(batch.results):
            if index:
                parts.append(b", ")
            text = json.dumps({"index": index, **result})
            if (file := batch.files.get(index)) is None:
                parts.append(text.encode())
            else:
                parts += [text[:-1].encode() + b', "audio_data": "', file, b'"}']
        return [*parts, b"]}"]


class Batch:
    """Speech requests that are synthesised as files, a few at a time."""

    def __init__(self, state: AppState, request_id: str, owner: str, items: list[dict[str, Any]], strict: bool) -> None:
        self._state, self._request_id, self._owner, self._items, self._strict = state, request_id, owner, items, strict
        self._indices = iter(range(len(items)))
        self.results: list[dict[str, Any]] = [{} for _ in items]  # without the audio
        self.files: dict[int, SpooledFile] = {}  # the audio, by index
        self.playing_seconds = 0.0  # of all files
        self.errors: list[PolyvoxError] = []
        self._ignored: list[IgnoredFields] = []  # of the items

    def close(self) -> None:
        """Deletes all files."""
        for file in self.files.values():
            file.close()

    def ignored_fields(self) -> IgnoredFields:
        """Those of all items."""
        found = IgnoredFields()
        found.names = sorted({name for item in self._ignored for name in item.names})
        return found

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
                    self.results[index] = await self._synthesise(index)
        except ConcurrencyLimitExceeded:
            return  # the other workers take the items

    async def _synthesise(self, index: int) -> dict[str, Any]:
        request_id = f"{self._request_id}.{index}"
        utterance: Utterance | None = None
        try:
            body = validate(BatchItem, self._items[index])
            ignored = IgnoredFields(self._strict)
            self._ignored.append(ignored)
            options = await parse_speech_request(body, self._state, ignored)
            options = replace(options, streaming=False, timestamps=())
            utterance = await self._state.synthesis.start(options, request_id, self._owner)
            self.files[index] = await utterance.file()
        except PolyvoxError as error:
            if utterance is None or utterance.record.finish_reason is None:  # otherwise it is recorded as finished
                self._state.record_rejected(error, request_id)
            self.errors.append(error)
            return {"status": "error", **error_body(error)}
        record = utterance.record
        self.playing_seconds += utterance.playing_seconds
        return {
            "status": "success",
            "media_type": utterance.content_type,
            "seed": record.seed,
            "finish_reason": record.finish_reason,
            "usage": record.usage(),
        }
