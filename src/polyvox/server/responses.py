# SPDX-License-Identifier: Apache-2.0
"""Error responses in OpenAI's format."""

import math
from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

from polyvox.errors import InvalidRequest, Overloaded, OverloadReason, PolyvoxError
from polyvox.server.validation import field_error, parameter_error

MIN_RETRY_AFTER = 0.1  # seconds
# The engine's field names as the OpenAI endpoints call them.
OPENAI_FIELDS = {
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
# Of a voice that is added to the library: in our form, and in that of ElevenLabs.
UPLOAD_FIELDS = {**OPENAI_FIELDS, **dict.fromkeys(("recording", "audio"), "audio_sample")} | {
    "description": "speaker_description"
}
ELEVENLABS_VOICE_FIELDS = {"recording": "files", "audio": "files", "voice": "voice_id"}
CARTESIA_FIELDS = {"text": "transcript", "format": "output_format"}
DEEPGRAM_FIELDS = {"voice": "model", "format": "encoding"}
CHAT_FIELDS = {
    name: f"audio.{OPENAI_FIELDS.get(name, name)}"
    for name in (*OPENAI_FIELDS, "voice", "language", "instructions", "sample_rate", "speed", "seed", "pronunciations")
    if name != "text"
} | {"format": "audio.format"}
FIELDS_BY_PATH = {
    "/v1/chat/completions": CHAT_FIELDS,
    "/v1/audio/voices": UPLOAD_FIELDS,
    "/v1/voices/": ELEVENLABS_VOICE_FIELDS,
    "/v1/text-to-": ELEVENLABS_FIELDS,
    "/v1/speak": DEEPGRAM_FIELDS,
    "/tts/bytes": CARTESIA_FIELDS,
}  # the names of other paths are OpenAI's


class APIError(PolyvoxError):
    """A rejected request, with its status, code and the parameter that caused it."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


class Disconnected(APIError):
    """The client has disconnected, so no response is received."""

    STATUS = 499  # as nginx logs it

    def __init__(self) -> None:
        super().__init__(self.STATUS, "disconnected", "The client disconnected.")


class ErrorDetail(BaseModel):
    message: str = Field(description="What is wrong and what is allowed.")
    type: str
    param: str | None
    code: str
    retry_after: float = Field(default=0.0, description="Seconds until a retry may succeed; only with status 503, 429.")
    reason: OverloadReason | None = Field(default=None, description="What has no capacity; only with code overloaded.")


class ErrorResponse(BaseModel):
    """The body of every error."""

    error: ErrorDetail


# For FastAPI's `responses=`: every endpoint may return these.
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorResponse, "description": "The request was rejected; the message says why."},
    503: {"model": ErrorResponse, "description": "No capacity is free, or the engine is restarting; see retry-after."},
}


def field_names(scope: Scope) -> Mapping[str, str]:
    """The field names of the API that was called."""
    return next((fields for part, fields in FIELDS_BY_PATH.items() if part in scope["path"]), OPENAI_FIELDS)


def error_body(error: PolyvoxError, fields: Mapping[str, str] = OPENAI_FIELDS) -> dict[str, Any]:
    """`{"error": {"message", "type", "param", "code"}}`, with `retry_after` and `reason` when it is overloaded."""
    field: str | None = getattr(error, "field", None)
    param = fields.get(field, field) if field else getattr(error, "param", None)
    message = str(error)
    if isinstance(error, InvalidRequest) and param is not None:
        message = error.message_for(param)
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    if isinstance(error, Overloaded):
        kind = "overloaded"
    message = message.encode("utf-8", "replace").decode()  # lone surrogates cannot be encoded
    body: dict[str, Any] = {"message": message, "type": kind, "param": param, "code": error.code}
    if isinstance(error, Overloaded):
        body["retry_after"] = _retry_after(error)
        if error.reason is not None:
            body["reason"] = error.reason
    return {"error": body}


def error_response(
    error: PolyvoxError, request_id: str | None, fields: Mapping[str, str] = OPENAI_FIELDS
) -> JSONResponse:
    headers = {}
    if isinstance(error, Overloaded):
        seconds = _retry_after(error)
        headers = {"retry-after": str(math.ceil(seconds)), "retry-after-ms": str(round(seconds * 1000))}
    elif error.status == 401:
        headers = {"www-authenticate": "Bearer"}
    if request_id is not None:
        headers["x-request-id"] = request_id
    return JSONResponse(error_body(error, fields), status_code=error.status, headers=headers)


async def reject(error: PolyvoxError, request_id: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Responds to an HTTP request or to the handshake of a WebSocket with an error, and closes the connection."""
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": str(error)})
    else:
        response = error_response(error, request_id)
        response.headers["connection"] = "close"
        await response(scope, receive, send)


def validation_error(error: RequestValidationError, model: type[BaseModel] | None) -> APIError:
    """The error for FastAPI's first finding. model: the type of the body."""
    first = error.errors()[0]
    if first["loc"][0] != "body":
        found = parameter_error(first)
    elif first["loc"] == ("body",) or model is None:  # empty, or not an object
        return APIError(400, "invalid_json", "The body must be a JSON object.")
    else:
        found = field_error(model, first, prefix=1)
    return APIError(422, "missing_field" if found.missing else "invalid_field", found.message, found.field)


def _retry_after(error: Overloaded) -> float:
    return max(error.retry_after, MIN_RETRY_AFTER)
