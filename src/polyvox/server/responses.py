"""What all faces have in common: bodies that are read with limits, errors as OpenAI's clients know them, ids."""

import asyncio
import json
import math
import re
import secrets
from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.requests import HTTPConnection
from starlette.types import Scope

from polyvox.errors import NOT_SHOWN, InvalidRequest, Overloaded, PolyvoxError, invalid_value
from polyvox.server.settings import Settings

REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
# What the engine calls a field, as requests call it.
FIELDS = {
    "text": "input",
    "format": "response_format",
    "max_frames": "max_new_tokens",
    "first_chunk": "initial_codec_chunk_frames",
    "layout": "non_streaming_mode",
    "voice.vector": "speaker_embedding",
    "recording": "ref_audio",
    "audio": "ref_audio",
    "transcript": "ref_text",
}


ELEVENLABS_FIELDS = {
    "voice": "voice_id",
    "language": "language_code",
    "format": "output_format",
    "sample_rate": "output_format",
    "bit_rate": "output_format",
    "speed": "voice_settings",
}


class Refused(PolyvoxError):
    """A request that was refused for another reason than the value of a field."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


def request_id_of(request: HTTPConnection) -> str:
    """The caller's own, where that is harmless, else a new one; the same for the whole request."""
    found: str | None = request.scope.get("polyvox.request_id")
    if found is None:
        asked = request.headers.get("x-request-id", "")
        found = asked if REQUEST_ID.fullmatch(asked) else f"req-{secrets.token_hex(12)}"
        request.scope["polyvox.request_id"] = found
    return found


def fields_of(scope: Scope) -> Mapping[str, str]:
    """What a caller calls the engine's fields, by the face that it called."""
    return ELEVENLABS_FIELDS if "/v1/text-to-speech/" in scope["path"] else FIELDS


def error_body(error: PolyvoxError, fields: Mapping[str, str] = FIELDS) -> dict[str, Any]:
    """The error as a client reads it: `{"message", "type", "param", "code"}`, and where it is full `retry_after`."""
    field: str | None = getattr(error, "field", None)
    param = fields.get(field, field) if field else getattr(error, "param", None)
    message = str(error)
    if isinstance(error, InvalidRequest) and param is not None:
        message = error.message_for(param)
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    if isinstance(error, Overloaded):
        kind = "overloaded"
    # A lone surrogate can be asked for but not sent back.
    message = message.encode("utf-8", "replace").decode()
    told = {"message": message, "type": kind, "param": param, "code": error.code}
    return {"error": told | ({"retry_after": _seconds(error)} if isinstance(error, Overloaded) else {})}


def error_headers(error: PolyvoxError) -> dict[str, str]:
    if not isinstance(error, Overloaded):
        return {"www-authenticate": "Bearer"} if error.status == 401 else {}
    seconds = _seconds(error)
    return {"retry-after": str(math.ceil(seconds)), "retry-after-ms": str(round(seconds * 1000))}


def _seconds(error: Overloaded) -> float:
    return max(error.retry_after, 0.1)


def error_answer(
    error: PolyvoxError, request_id: str | None = None, fields: Mapping[str, str] = FIELDS
) -> JSONResponse:
    headers = error_headers(error)
    if request_id is not None:
        headers["x-request-id"] = request_id
    return JSONResponse(error_body(error, fields), status_code=error.status, headers=headers)


async def read_body(request: Request, settings: Settings) -> bytes:
    """All of a request's body; raises Refused where it is too large or too slow."""
    most = settings.max_body
    too_large = Refused(413, "too_large", f"the request is larger than {most:,} bytes (max_body)")
    if request.headers.get("content-length", "0").isdecimal() and int(request.headers.get("content-length", 0)) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(settings.body_seconds):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        message = f"the request was not here within {settings.body_seconds:g} s (body_seconds)"
        raise Refused(408, "timeout", message) from None
    return bytes(body)


async def read_json(request: Request, settings: Settings) -> dict[str, Any]:
    """A body that is a JSON object; raises Refused for anything else."""
    return parse_json(await read_body(request, settings), "the body")


def parse_json(text: str | bytes, what: str) -> dict[str, Any]:
    """A JSON object; raises Refused for anything else."""
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "invalid_json", f"{what} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Refused(400, "invalid_json", f"{what} must be a JSON object")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


Body = TypeVar("Body", bound=BaseModel)


def check_body(model: type[Body], found: dict[str, Any]) -> Body:
    """The fields of a body that are known, null being as good as none; raises Refused, 422, with one that is wrong."""
    try:
        return model.model_validate({name: value for name, value in found.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        # Of a union, which of its kinds was tried says nothing to the caller.
        place = str(first["loc"][0])
        if first["type"] == "missing":
            raise Refused(422, "missing_field", f"Missing required field '{place}'.", place) from None
        value = NOT_SHOWN if model.model_fields[place].repr is False else first["input"]
        requirement = first["msg"].replace("Input should", "must")
        raise Refused(422, "invalid_field", invalid_value(place, value, requirement), place) from None


def unknown_fields(model: type[BaseModel], found: dict[str, Any]) -> list[str]:
    return sorted(name for name, value in found.items() if value is not None and name not in model.model_fields)


def shown_fields(names: list[str]) -> str:
    """Names of fields as a header can have them."""
    return ", ".join(re.sub(r"[^\x21-\x2b\x2d-\x7e]", "?", name[:60]) for name in names[:20])
