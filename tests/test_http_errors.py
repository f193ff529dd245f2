# SPDX-License-Identifier: Apache-2.0
"""The messages for failures of the LLM and of the STT server."""

import errno
import socket
import ssl
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from polyvox.http_errors import DEFAULT_RETRY_AFTER, describe_failure, parse_error, retry_after, with_reason

CONNECTION = cast(Any, None)  # the address, which no message shows


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "Too long.", "param": "messages"}}', "Too long."),
        (b'{"error": "bad audio"}', "bad audio"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"message": "Busy."}', "Busy."),
        (b"Bad Gateway", "'Bad Gateway'"),
        (b'{"error": {"code": 7}}', """'{"error": {"code": 7}}'"""),
        (b"null", ""),
        (b"{}", ""),
        (b"[]", ""),
        (b'{"error": null}', ""),
        (b"", ""),
        (b"\xff", "'\ufffd'"),
    ],
)
def test_the_message_of_an_error_is_found_or_empty(body: bytes, message: str) -> None:
    assert parse_error(body)[0] == message


def test_a_failure_without_a_reason_is_still_a_sentence() -> None:
    assert with_reason("The LLM answered with status 500", "") == "The LLM answered with status 500."
    assert with_reason("The LLM failed", "Out of memory.") == "The LLM failed: Out of memory."


@pytest.mark.parametrize(
    ("error", "description"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "connect to 10.0.0.7 failed"), "Connection refused"),
        (aiohttp.ClientConnectorError(CONNECTION, OSError(errno.ENETUNREACH, "10.0.0.7")), "Network is unreachable"),
        (aiohttp.ClientConnectorError(CONNECTION, socket.gaierror(-2, "db.internal")), "its host name is not known"),
        (
            aiohttp.ClientConnectorCertificateError(CONNECTION, ssl.SSLCertVerificationError(1, "db.internal")),
            "its TLS certificate is not valid",
        ),
        (aiohttp.ClientPayloadError("10.0.0.7"), "the response ended early"),
        (aiohttp.ServerDisconnectedError("10.0.0.7"), "the connection was closed"),
        (ConnectionResetError("10.0.0.7"), "the connection was closed"),
        (aiohttp.ClientResponseError(CONNECTION, ()), "the response is not valid HTTP"),
    ],
)
def test_a_failed_connection_is_described_without_its_address_and_without_class_names(
    error: Exception, description: str
) -> None:
    assert describe_failure(error) == description


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("2.5", 2.5), ("-3", 0.0), ("inf", 3600.0), ("nan", DEFAULT_RETRY_AFTER), ("tomorrow", DEFAULT_RETRY_AFTER)],
)
def test_the_time_of_a_retry_is_a_finite_number(header: str, seconds: float) -> None:
    assert retry_after(cast(Any, SimpleNamespace(headers={"retry-after": header}))) == seconds
