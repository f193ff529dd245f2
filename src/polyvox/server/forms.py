# SPDX-License-Identifier: Apache-2.0
"""Multipart forms with files."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
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
    fields: dict[str, str] = {}
    files: list[FormFile] = []
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                if name not in file_fields:
                    requirement = f"must not be a file; only {file_fields[0]} is one"
                    raise InvalidRequest(name, NOT_SHOWN, requirement)
                files.append(FormFile(value.filename, await value.read()))
            elif name in fields:
                raise InvalidRequest(name, NOT_SHOWN, "is given more than once")
            else:
                fields[name] = value
    finally:
        await form.close()
    return fields, files
