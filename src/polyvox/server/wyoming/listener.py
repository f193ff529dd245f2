# SPDX-License-Identifier: Apache-2.0
"""The TCP server of the Wyoming protocol, beside the HTTP server of a process."""

import asyncio
import logging
import socket
from contextlib import suppress

from polyvox.errors import PolyvoxError
from polyvox.server.startup import Startup
from polyvox.server.wyoming.events import MAX_LINE_BYTES, Event
from polyvox.server.wyoming.session import WyomingSession

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 256  # per server process
CLOSE_TIMEOUT = 5.0  # seconds for a client to read what was sent before its connection is closed


class WyomingListener:
    """Accepts connections on a socket until it is closed."""

    def __init__(self, startup: Startup) -> None:
        self._startup = startup
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._accept, sock=listener.dup(), limit=MAX_LINE_BYTES)

    async def close(self) -> None:
        """Closes all connections. Utterances in progress have had their time in the drain."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = str((writer.get_extra_info("peername") or ("",))[0])  # None if the client has already left
        try:
            state = await self._startup.connected()
            if state is None:
                await self._reject(writer, f"The server is not ready: {self._startup.engine.status().describe()}")
            elif len(self._tasks) > MAX_CONNECTIONS:
                await self._reject(writer, f"At most {MAX_CONNECTIONS} connections may be open.")
            else:
                await WyomingSession(state, reader, writer, address).run()
        except PolyvoxError as error:
            await self._reject(writer, str(error))
        except asyncio.CancelledError:  # the server stops
            writer.transport.abort()
        except Exception:
            log.exception("wyoming session failed", extra={"client": address})
        finally:
            await _close(writer)

    async def _reject(self, writer: asyncio.StreamWriter, message: str) -> None:
        log.info("request rejected", extra={"protocol": "wyoming", "error": message})
        with suppress(OSError):
            writer.write(Event("error", {"text": message, "code": "not_ready"}).to_bytes())
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await writer.wait_closed()
    except (OSError, asyncio.CancelledError):
        writer.transport.abort()
