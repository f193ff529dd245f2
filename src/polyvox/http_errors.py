# SPDX-License-Identifier: Apache-2.0
"""Failures of the servers that Polyvox calls, as messages that contain neither keys nor addresses."""

import json
import os

import aiohttp

from polyvox.errors import shorten

MAX_ERROR_BYTES, MAX_ERROR_CHARS = 64 * 1024, 1000  # of the body of an error; of its message for the client
DEFAULT_RETRY_AFTER, MAX_RETRY_AFTER = 1.0, 3600.0  # seconds; the first if the server does not say
# Statuses that are the client's to handle. A wrong key or address is a mistake in the server's settings.
CLIENT_STATUSES = (400, 404, 409, 413, 415, 422)
KEY_STATUSES = (401, 403)
OVERLOAD_STATUSES = (429, 503)


async def read_error(response: aiohttp.ClientResponse, key: str | None) -> tuple[str, str | None]:
    """The message and the parameter of an error in OpenAI's format, or the start of any other. The key is removed."""
    try:
        body = await response.content.read(MAX_ERROR_BYTES)
    except (aiohttp.ClientError, OSError):
        body = b""
    message, param = parse_error(body)
    return message.replace(key, "(hidden)") if key else message, param


def parse_error(body: bytes) -> tuple[str, str | None]:
    try:
        error = json.loads(body)["error"]
        if isinstance(error, str):
            return error[:MAX_ERROR_CHARS], None
        param = error.get("param")
        return str(error["message"])[:MAX_ERROR_CHARS], param if isinstance(param, str) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return shorten(body.decode(errors="replace").strip()), None


def retry_after(response: aiohttp.ClientResponse) -> float:
    """Seconds."""
    try:
        return min(max(float(response.headers["retry-after"]), 0.0), MAX_RETRY_AFTER)
    except (KeyError, ValueError):
        return DEFAULT_RETRY_AFTER


def describe_failure(error: Exception) -> str:
    """A failed connection, without its address: the messages of aiohttp and asyncio have it, and it may be internal."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
        return os.strerror(cause.errno)
    return str(getattr(cause, "strerror", None) or type(cause).__name__)
