# SPDX-License-Identifier: Apache-2.0
"""Request bodies with size limits and timeouts, models that report unknown fields, and request ids."""

import asyncio
import json
import re
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic.json_schema import JsonSchemaValue
from starlette.requests import ClientDisconnect, HTTPConnection

from polyvox.errors import InvalidRequest
from polyvox.server.app_state import get_state
from polyvox.server.responses import APIError, Disconnected
from polyvox.server.settings import Settings
from polyvox.server.validation import field_error

REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
THREAD_PARSE_BYTES = 100_000  # JSON of this size takes about 5 ms; larger bodies are parsed in a thread
# A thread does not release the GIL while it parses, so the time is limited too: a long string takes little of it.
MAX_JSON_VALUES = 100_000

STRICT = Query(default="", description="1: reject fields that would be ignored.")


class RequestModel(BaseModel):
    """Base of request bodies: null means that a field is not set, and unknown fields are kept to be reported."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: item for name, item in value.items() if item is not None}
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Optional fields accept null."""
        found = handler.resolve_ref_schema(handler(schema))
        for name, field in found["properties"].items():
            if name not in found.get("required", []) and {"type": "null"} not in field.get("anyOf", []):
                about = {key: field.pop(key) for key in ("title", "description", "default") if key in field}
                found["properties"][name] = {"anyOf": [field, {"type": "null"}], **about}
        return found

    def unknown_fields(self) -> list[str]:
        return sorted(self.model_extra or {})


Model = TypeVar("Model", bound=BaseModel)


def validate(model: type[Model], fields: dict[str, Any]) -> Model:
    """Validates fields that FastAPI does not parse (forms, batch items, messages); raises APIError."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:  # a field name that is not valid Unicode
            raise APIError(400, "invalid_json", f"{first['msg']}.") from None
        found = field_error(model, first)
        code = "missing_field" if found.missing else "invalid_field"
        raise APIError(422, code, found.message, found.field) from None


def parse_integer(name: str, value: str, requirement: str = "must be an integer") -> int:
    """A number of a query, of at most 19 digits: Python raises ValueError for thousands of them."""
    if not (value.isascii() and value.isdecimal() and len(value) < 20):
        raise InvalidRequest(name, value, requirement)
    return int(value)


def is_strict(value: str) -> bool:
    return value in ("1", "true")


def request_id_of(connection: HTTPConnection) -> str:
    """The client's x-request-id if it is well-formed, otherwise a new one; the same for the whole request."""
    found: str | None = connection.scope.get("polyvox.request_id")
    if found is None:
        given = connection.headers.get("x-request-id", "")
        found = given if REQUEST_ID.fullmatch(given) else f"req-{secrets.token_hex(12)}"
        connection.scope["polyvox.request_id"] = found
    return found


async def read_body(request: Request, settings: Settings, max_bytes: int) -> bytes:
    """Reads the body; raises APIError if it is too large or too slow, or if the client disconnects."""
    too_large = APIError(413, "too_large", f"The request body must have at most {max_bytes:,} bytes.")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(settings.body_timeout):
            async for part in request.stream():
                body += part
                if len(body) > max_bytes:
                    raise too_large
    except TimeoutError:
        get_state(request).metrics.count_timeout("body")
        message = f"The request body did not arrive within {settings.body_timeout:g} s (body_timeout)."
        raise APIError(408, "timeout", message) from None
    except ClientDisconnect:
        raise Disconnected from None
    return bytes(body)


async def parse_json(text: str | bytes, name: str) -> dict[str, Any]:
    """Parses a JSON object; raises APIError for anything else. name: what the text is, for messages."""
    if len(text) > THREAD_PARSE_BYTES:
        return await asyncio.to_thread(_parse_json, text, name)
    return _parse_json(text, name)


def _parse_json(text: str | bytes, name: str) -> dict[str, Any]:
    try:
        found = load_json(text, name)
    except ValueError as error:
        raise APIError(400, "invalid_json", f"The {name} must be JSON: {error}.") from None
    if not isinstance(found, dict):
        raise APIError(400, "invalid_json", f"The {name} must be a JSON object.")
    return found


def load_json(text: str | bytes, name: str) -> Any:
    """Raises ValueError for anything but JSON, APIError if it would take long to parse. name: what the text is."""
    # Every value but the first follows one of these, which strings may contain too.
    num_values = sum(text.count(mark) if isinstance(text, str) else text.count(mark.encode()) for mark in ",[{")
    if num_values > MAX_JSON_VALUES:
        raise APIError(413, "too_large", f"The {name} must have at most {MAX_JSON_VALUES:,} JSON values.")
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


class ParsedRequest(Request):
    """A request whose body is already read and parsed. The content type is not checked: `curl -d` sends a form's."""

    def __init__(self, request: Request, body: bytes, parsed: dict[str, Any]) -> None:
        headers = [(name, value) for name, value in request.scope["headers"] if name != b"content-type"]
        scope = {**request.scope, "headers": [*headers, (b"content-type", b"application/json")]}
        super().__init__(scope, request.receive)
        self._content, self._parsed = body, parsed

    async def body(self) -> bytes:
        return self._content

    async def json(self) -> dict[str, Any]:
        return self._parsed


class JSONRoute(APIRoute):
    """Reads and parses JSON bodies for FastAPI: size limit and timeout first, large bodies in a thread."""

    def max_bytes(self, settings: Settings) -> int:
        return settings.max_text_body_bytes

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def read_and_handle(request: Request) -> Response:
            if request.method not in ("POST", "PATCH"):
                return await handle(request)
            settings = get_state(request).settings
            body = await read_body(request, settings, self.max_bytes(settings))
            return await handle(ParsedRequest(request, body, await parse_json(body, "request body")))

        return read_and_handle


class RecordingRoute(JSONRoute):
    """A JSON route whose body may contain recordings."""

    def max_bytes(self, settings: Settings) -> int:
        return settings.max_body_bytes
