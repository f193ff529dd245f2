# SPDX-License-Identifier: Apache-2.0
"""Pooled connections to a server that Polyvox calls: an LLM or an STT server."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import aiohttp

from polyvox.http_errors import describe_failure

log = logging.getLogger(__name__)

MAX_ATTEMPTS, RETRY_DELAY = 2, 0.1  # of a request whose connection fails before it has an answer; seconds
KEEP_ALIVE = 30.0  # seconds that an idle connection stays open
READ_BUFFER = 64 * 1024  # bytes that are read ahead


def new_session(key: str | None, connect_timeout: float, max_connections: int) -> aiohttp.ClientSession:
    """The caller limits the time of answers, and closes the session."""
    return aiohttp.ClientSession(
        headers={"authorization": f"Bearer {key}"} if key else {},
        connector=aiohttp.TCPConnector(limit=max_connections, keepalive_timeout=KEEP_ALIVE),
        timeout=aiohttp.ClientTimeout(total=None, connect=connect_timeout),
        read_bufsize=READ_BUFFER,
        cookie_jar=aiohttp.DummyCookieJar(),  # the requests of different users have nothing in common
    )


async def send_with_retry(send: Callable[[], Awaitable[aiohttp.ClientResponse]], server: str) -> aiohttp.ClientResponse:
    """Sends a request, and again if its connection fails before the answer begins. server: its name in the log.

    Raises the failure of the last attempt; a timeout is not retried.
    """
    for _ in range(MAX_ATTEMPTS - 1):
        try:
            return await send()
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            log.info("request retried", extra={"server": server, "error": describe_failure(error)})
            await asyncio.sleep(RETRY_DELAY)
    return await send()
