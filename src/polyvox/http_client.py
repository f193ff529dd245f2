# SPDX-License-Identifier: Apache-2.0
"""Pooled connections to a server that Polyvox calls: an LLM or an STT server."""

import aiohttp

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
