# SPDX-License-Identifier: Apache-2.0
"""The connections of a replica: counted, and WebSockets closed while it drains and they are quiet."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from polyvox.errors import InvalidRequest
from polyvox.ray import app
from polyvox.ray import connections as module
from polyvox.ray.connections import SERVICE_RESTART, Connections, ConnectionsMiddleware

WEBSOCKET: Scope = {"type": "websocket"}
HTTP: Scope = {"type": "http", "headers": [(b"x-request-id", b"one")]}


async def echo(_: Scope, receive: Receive, send: Send) -> None:
    """Sends back each message until the connection is closed."""
    while (message := await receive())["type"] != "websocket.disconnect":
        await send({"type": "websocket.send", "text": message["text"]})
    await send({"type": "closed", "code": message["code"]})


class Client:
    def __init__(self) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.received: list[Message] = []

    async def receive(self) -> Message:
        return await self.messages.get()

    async def send(self, message: Message) -> None:
        self.received.append(message)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


def run(work: Any) -> None:
    asyncio.run(work)


def test_requests_and_sockets_are_counted() -> None:
    async def check() -> None:
        connections, client = Connections(), Client()

        async def count(*_: object) -> None:
            assert connections.num_open == 1

        middleware = ConnectionsMiddleware(count, connections)
        for kind in ("http", "websocket"):
            await middleware({"type": kind, "headers": []}, client.receive, client.send)
        assert (connections.num_open, connections.num_ended) == (0, 2)

        async def failing(*_: object) -> None:
            raise ValueError

        with pytest.raises(ValueError):  # noqa: PT011
            await ConnectionsMiddleware(failing, connections)(HTTP, client.receive, client.send)
        assert (connections.num_open, connections.num_ended) == (0, 3)

    run(check())


def test_a_quiet_socket_is_closed_while_the_replica_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.01)

    async def check() -> None:
        connections, client = Connections(), Client()
        socket = asyncio.create_task(ConnectionsMiddleware(echo, connections)(WEBSOCKET, client.receive, client.send))
        client.messages.put_nowait({"type": "websocket.receive", "text": "one"})
        await until(lambda: len(client.received) == 1)
        assert not socket.done()
        connections.draining.set()
        await asyncio.wait_for(socket, 30)
        assert client.received[1:] == [
            {"type": "websocket.close", "code": SERVICE_RESTART},
            {"type": "closed", "code": SERVICE_RESTART},
        ]

    run(check())


def test_a_socket_with_messages_stays_open_while_the_replica_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET_SECONDS", 1000.0)

    async def check() -> None:
        connections, client = Connections(), Client()
        connections.draining.set()
        socket = asyncio.create_task(ConnectionsMiddleware(echo, connections)(WEBSOCKET, client.receive, client.send))
        for number in range(3):
            client.messages.put_nowait({"type": "websocket.receive", "text": str(number)})
        await until(lambda: len(client.received) == 3)
        assert not socket.done()
        client.messages.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await asyncio.wait_for(socket, 30)
        assert client.received[-1] == {"type": "closed", "code": 1000}

    run(check())


def test_a_receive_that_is_cancelled_leaves_no_task() -> None:
    async def check() -> None:
        connections, client = Connections(), Client()

        async def time_out(_: Scope, receive: Receive, __: Send) -> None:
            for _attempt in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(receive(), 0.01)

        await ConnectionsMiddleware(time_out, connections)(WEBSOCKET, client.receive, client.send)
        await until(lambda: len(asyncio.all_tasks()) == 1)

    run(check())


@pytest.mark.parametrize("used", [b"one", b"req-of-the-application"])
def test_the_request_id_that_the_proxy_adds_is_not_sent_twice(used: bytes) -> None:
    async def check() -> None:
        client = Client()

        async def respond(_: Scope, __: Receive, send: Send) -> None:
            headers = [(b"x-request-id", used), (b"x-seed", b"1")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})

        middleware = ConnectionsMiddleware(respond, Connections())
        await middleware(HTTP, client.receive, client.send)
        await middleware({"type": "http", "headers": []}, client.receive, client.send)
        assert [message["headers"] for message in client.received] == [
            [(b"x-seed", b"1")],
            [(b"x-request-id", used), (b"x-seed", b"1")],
        ]

    run(check())


@pytest.mark.parametrize(("name", "value"), [("root_path", "/tts"), ("wyoming", "tcp://127.0.0.1:10200")])
def test_a_setting_without_an_effect_on_ray_is_an_error(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=f"Invalid value for '{name}': is not supported with ray"):
        app({name: value})
