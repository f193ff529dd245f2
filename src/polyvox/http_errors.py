# SPDX-License-Identifier: Apache-2.0
"""Failures of the servers that Polyvox calls, as messages that contain neither keys nor addresses."""

import json
import os
import socket
import ssl
from math import isnan

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
    """As `read_error`; the message is empty if the body has none."""
    text = body.decode(errors="replace").strip()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return shorten(text) if text else "", None
    error = found.get("error", found) if isinstance(found, dict) else found
    if isinstance(error, str):
        return error[:MAX_ERROR_CHARS], None
    if not isinstance(error, dict):
        return "", None
    message, param = error.get("message") or error.get("detail"), error.get("param")
    shown = message if isinstance(message, str) else shorten(text) if error else ""
    return shown[:MAX_ERROR_CHARS], param if isinstance(param, str) else None


def with_reason(failure: str, reason: str) -> str:
    """A sentence with the reason that the other server gave, if it gave one."""
    return f"{failure}: {reason}" if reason else f"{failure}."


def retry_after(response: aiohttp.ClientResponse) -> float:
    """Seconds."""
    try:
        seconds = float(response.headers["retry-after"])
    except (KeyError, ValueError):
        return DEFAULT_RETRY_AFTER
    return DEFAULT_RETRY_AFTER if isnan(seconds) else min(max(seconds, 0.0), MAX_RETRY_AFTER)


def describe_failure(error: Exception) -> str:
    """A failed connection, without its address: the messages of aiohttp and asyncio have it, and it may be internal."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    match cause:
        case ssl.SSLCertVerificationError():
            return "its TLS certificate is not valid"
        case ssl.SSLError():
            return "TLS failed"
        case socket.gaierror():
            return "its host name is not known"
        case OSError() if cause.errno:
            return os.strerror(cause.errno)
        case aiohttp.ClientPayloadError():
            return "the response ended early"
        case aiohttp.ClientConnectionError() | OSError():
            return "the connection was closed"
        case aiohttp.ClientResponseError():
            return "the response is not valid HTTP"
    return "the request failed"
