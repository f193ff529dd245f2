# SPDX-License-Identifier: Apache-2.0
"""Multipart forms with files."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import Request
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser

from polyvox.errors import NOT_SHOWN, InvalidRequest
from polyvox.server.responses import APIError
from polyvox.server.settings import Settings

MAX_FORM_FIELDS = 20
FORM_TYPE = "multipart/form-data"


@dataclass(frozen=True, slots=True)
class FormFile:
    name: str | None  # of the file, as the client calls it
    content: bytes
    content_type: str | None = None  # as the client calls it


def content_type_of(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def check_content_type(request: Request, allowed: tuple[str, ...]) -> str:
    """The content type. A foreign web page can send text/plain, or none, without asking; such requests are rejected."""
    content_type = content_type_of(request)
    if content_type not in allowed:
        requirement = f"must be {' or '.join(allowed)}"
        message = f"Invalid value for 'content-type': {requirement} (got {content_type[:100] or 'none'})."
        raise APIError(415, "unsupported_media_type", message, "content-type")
    return content_type


async def parse_form(
    request: Request, body: bytes, settings: Settings, file_fields: tuple[str, ...], max_files: int = 1
) -> tuple[dict[str, str], list[FormFile]]:
    """The text fields of a form and its files; raises APIError or InvalidRequest."""
    fields: dict[str, str] = {}
    pairs, files = await parse_form_pairs(request, body, settings, file_fields, max_files)
    for name, value in pairs:
        if name in fields:
            raise InvalidRequest(name, NOT_SHOWN, "is given more than once")
        fields[name] = value
    return fields, files


async def parse_form_pairs(
    request: Request, body: bytes, settings: Settings, file_fields: tuple[str, ...], max_files: int = 1
) -> tuple[list[tuple[str, str]], list[FormFile]]:
    """Like `parse_form`, for forms in which a text field may stand more than once."""

    async def chunks() -> AsyncIterator[bytes]:
        yield body

    try:
        parser = MultiPartParser(
            request.headers,
            chunks(),  # type: ignore[arg-type]
            max_files=max_files,
            max_fields=MAX_FORM_FIELDS,
            max_part_size=settings.max_body_bytes,
        )
        form: FormData = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise APIError(400, "invalid_form", f"The form cannot be parsed: {error}.") from None
    fields: list[tuple[str, str]] = []
    files: list[FormFile] = []
    try:
        for name, value in form.multi_items():
            if isinstance(value, str):
                fields.append((name, value))
            elif name in file_fields:
                files.append(FormFile(value.filename, await value.read(), value.content_type))
            else:
                raise InvalidRequest(name, NOT_SHOWN, f"must not be a file; only {file_fields[0]} is one")
    finally:
        await form.close()
    return fields, files
