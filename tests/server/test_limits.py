# SPDX-License-Identifier: Apache-2.0
"""Limits per address, the addresses of clients behind proxies, and records that only their key can read."""

import asyncio
import socket
from collections.abc import Iterator
from functools import partial

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import HTTPConnection

from ipc.engine_processes import eventually
from polyvox.engine.async_engine import AsyncLocalEngine
from polyvox.errors import InvalidRequest
from polyvox.server.middleware.addresses import TrustedProxies
from polyvox.server.middleware.limits import Caller, ConcurrencyLimiter, ConcurrencyLimitExceeded
from polyvox.server.settings import Settings
from polyvox.server.settings_sources import load_settings
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving
from server.load_storms import begin, read_response, status_of
from server.multi_worker import RunningWorkers, running_workers
from server.websocket_clients import connect_websocket

PROXIES = TrustedProxies(["127.0.0.1", "10.0.0.0/8", "fd00::/8"])


def client_of(peer: str, *headers: tuple[str, str], proxies: TrustedProxies = PROXIES) -> str:
    raw = [(name.encode(), value.encode()) for name, value in headers]
    return proxies.client_of(HTTPConnection({"type": "http", "client": (peer, 1), "headers": raw}))


def test_an_untrusted_peer_cannot_choose_its_address() -> None:
    assert client_of("203.0.113.9", ("x-forwarded-for", "198.51.100.1")) == "203.0.113.9"
    assert client_of("203.0.113.9", ("forwarded", "for=198.51.100.1")) == "203.0.113.9"
    assert client_of("127.0.0.1", ("x-forwarded-for", "198.51.100.1"), proxies=TrustedProxies([])) == "127.0.0.1"


@pytest.mark.parametrize("header", ["198.51.100.1", "1.2.3.4, 198.51.100.1", "1.2.3.4, 198.51.100.1, 10.1.1.1"])
def test_the_client_is_the_last_address_that_is_not_a_trusted_proxy(header: str) -> None:
    assert client_of("10.0.0.7", ("x-forwarded-for", header)) == "198.51.100.1"
    assert client_of("10.0.0.7", *(("x-forwarded-for", part) for part in header.split(", "))) == "198.51.100.1"
    forwarded = ", ".join(f"for={part};proto=https" for part in header.split(", "))
    assert client_of("::ffff:10.0.0.7", ("forwarded", forwarded)) == "198.51.100.1"


@pytest.mark.parametrize(
    ("header", "client"),
    [
        ("198.51.100.1:4711", "198.51.100.1"),
        ("[2001:db8:1:2:3::4]:4711", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("::ffff:198.51.100.1", "198.51.100.1"),
        ("198.51.100.1, unknown", "10.0.0.7"),  # nothing is known beyond the proxy
        ("198.51.100.1, not an address, 10.0.0.8", "10.0.0.8"),
        ("10.0.0.9", "10.0.0.9"),  # all are proxies: the first one is the client
        ("", "10.0.0.7"),
    ],
)
def test_addresses_with_ports_and_malformed_addresses(header: str, client: str) -> None:
    assert client_of("10.0.0.7", ("x-forwarded-for", header)) == client


def test_quoted_addresses_of_forwarded_are_read() -> None:
    header = 'For="[2001:db8:cafe::17]:4711";by=203.0.113.43, for=10.0.0.1'
    assert client_of("10.0.0.7", ("forwarded", header)) == "2001:db8:cafe::/64"
    assert client_of("10.0.0.7", ("forwarded", "for=198.51.100.1, proto=https")) == "10.0.0.7"


def test_headers_that_disagree_are_ignored() -> None:
    both = ("x-forwarded-for", "198.51.100.1"), ("forwarded", "for=198.51.100.2")
    assert client_of("10.0.0.7", *both) == "10.0.0.7"
    assert (
        client_of("10.0.0.7", ("x-forwarded-for", "198.51.100.1"), ("forwarded", "for=198.51.100.1")) == "198.51.100.1"
    )


@given(forged=st.text(st.characters(codec="ascii", exclude_characters="\r\n"), max_size=40))
def test_what_a_client_forges_before_its_proxy_has_no_effect(forged: str) -> None:
    assert client_of("10.0.0.7", ("x-forwarded-for", f"{forged}, 198.51.100.1")) == "198.51.100.1"


def test_trusted_proxies_must_be_networks() -> None:
    assert load_settings({"trusted_proxies": "10.0.0.0/8, ::1"}).trusted_proxies == ["10.0.0.0/8", "::1"]
    with pytest.raises(InvalidRequest, match="must be IP addresses or networks"):
        load_settings({"trusted_proxies": "example.com"})


def forwarded(address: str) -> dict[str, str]:
    return {"x-forwarded-for": address}


def speak(client: httpx.Client, address: str) -> httpx.Response:
    return client.post("/v1/audio/speech", json={"input": "Hi.", "response_format": "pcm"}, headers=forwarded(address))


@pytest.fixture
def limited(engine: PausableEngine) -> Iterator[RunningServer]:
    with serving(engine, Settings(max_streams_per_address=2)) as server:
        engine.resume(1)
        yield server


def test_concurrent_requests_of_one_address_are_limited(limited: RunningServer, engine: PausableEngine) -> None:
    with limited.client() as client:
        body = {"input": "Hi.", "response_format": "pcm"}
        first = ("2001:db8:1:2::1", "2001:db8:1:2:ffff::1")  # one network
        with (
            client.stream("POST", "/v1/audio/speech", json=body, headers=forwarded(first[0])),
            client.stream("POST", "/v1/audio/speech", json=body, headers=forwarded(first[1])),
        ):
            eventually(lambda: engine.streams == 2)
            rejected = speak(client, "2001:db8:1:2::3")
            assert rejected.status_code == 429
            assert int(rejected.headers["retry-after"]) > 0
            assert "2 concurrent requests is reached (max_streams_per_address)" in rejected.json()["error"]["message"]
            engine.resume()
            assert speak(client, "2001:db8:1:3::1").status_code == 200
        # All counts are released, a moment after the responses.
        eventually(lambda: speak(client, "2001:db8:1:2::3").status_code == 200)


def test_utterances_of_websockets_count_towards_the_limit_of_their_address(
    limited: RunningServer, engine: PausableEngine
) -> None:
    speaking = [begin(limited, max_new_tokens=40) for _ in range(2)]
    eventually(lambda: engine.streams == 2)
    with connect_websocket(limited, "/v1/audio/speech/stream") as websocket:
        websocket.send(type="session.config", response_format="pcm")
        websocket.send(type="input.text", text="Hi.")
        websocket.send(type="input.done")
        error = websocket.receive_json()
        assert (error["type"], error["code"]) == ("error", "too_many_requests")
        assert error["retry_after"] > 0
    for connection in speaking:
        connection.close()


def test_without_keys_each_address_has_the_limit_of_a_key(engine: PausableEngine) -> None:
    async def run() -> None:
        counted = AsyncLocalEngine(engine)
        first, again, other = (
            ConcurrencyLimiter(counted, Caller("", address), Settings(max_streams_per_key=1))
            for address in ("198.51.100.1", "198.51.100.1", "198.51.100.2")
        )
        async with first.request():
            with pytest.raises(ConcurrencyLimitExceeded):
                await again.request().__aenter__()
            async with other.request():
                pass
        async with again.request():
            pass

    asyncio.run(run())


def test_a_request_over_the_limit_of_its_address_does_not_count_for_its_key(engine: PausableEngine) -> None:
    settings = Settings(api_keys=["a"], max_streams_per_key=2, max_streams_per_address=1)
    with serving(engine, settings) as server, server.client(headers={"authorization": "Bearer a"}) as client:
        engine.resume(1)
        speaking = begin(server, key="a", max_new_tokens=40)
        eventually(lambda: engine.streams == 1)
        assert [server.speak(client).status_code for _ in range(5)] == [429] * 5
        engine.resume()
        assert speak(client, "198.51.100.1").status_code == 200
        speaking.close()


@pytest.fixture(scope="module")
def workers() -> Iterator[RunningWorkers]:
    settings = Settings(workers=2, max_streams=200, api_keys=["a", "b"], max_streams_per_address=3)
    with running_workers(partial(PausableEngine, max_chunks=24), settings) as server:
        yield server


@pytest.mark.slow
def test_requests_of_an_address_are_counted_over_all_processes(workers: RunningWorkers) -> None:
    speaking = [begin(workers, key="a", max_new_tokens=1000) for _ in range(3)]
    for connection in speaking:
        connection.recv(1, socket.MSG_PEEK)
    for key in "abababab":  # whichever process takes it
        assert status_of(read_response(begin(workers, key=key))) == 429
    for connection in speaking:
        connection.close()
    eventually(lambda: workers.num_streams() == 0)


def test_the_counts_of_key_and_address_are_both_released(engine: PausableEngine) -> None:
    settings = Settings(max_streams_per_key=1, max_streams_per_address=1)
    with serving(engine, settings) as server, server.client() as client:
        for _ in range(3):
            eventually(lambda: server.speak(client).status_code == 200)


def record(client: httpx.Client, key: str, request_id: str) -> httpx.Response:
    return client.get(f"/v1/audio/speech/{request_id}", headers={"authorization": f"Bearer {key}"})


def make(client: httpx.Client, key: str, request_id: str, seed: int) -> None:
    body = {"input": "Hi.", "response_format": "pcm", "seed": seed, "max_new_tokens": 3}
    headers = {"authorization": f"Bearer {key}", "x-request-id": request_id}
    assert client.post("/v1/audio/speech", json=body, headers=headers).status_code == 200


def check_records_of_two_keys(client: httpx.Client) -> None:
    make(client, "a", "mine", seed=1)
    assert record(client, "a", "mine").json()["seed"] == 1
    assert "owner" not in record(client, "a", "mine").json()
    assert record(client, "b", "mine").status_code == 404
    make(client, "b", "mine", seed=2)  # the same id
    assert record(client, "a", "mine").json()["seed"] == 1
    assert record(client, "b", "mine").json()["seed"] == 2


def test_a_record_belongs_to_the_key_that_made_it(engine: PausableEngine) -> None:
    with serving(engine, Settings(api_keys=["a", "b"])) as server, server.client() as client:
        check_records_of_two_keys(client)


@pytest.mark.slow
def test_records_of_several_processes_belong_to_the_key_that_made_them(workers: RunningWorkers) -> None:
    with workers.client() as client:
        check_records_of_two_keys(client)


def test_records_of_batches_and_websockets_belong_to_their_key(engine: PausableEngine) -> None:
    with serving(engine, Settings(api_keys=["a", "b"])) as server, server.client() as client:
        headers = {"authorization": "Bearer a", "x-request-id": "batch"}
        batch = client.post("/v1/audio/speech/batch", json={"items": [{"input": "Hi."}]}, headers=headers)
        assert batch.json()["succeeded"] == 1
        assert record(client, "a", "batch.0").status_code == 200
        assert record(client, "b", "batch.0").status_code == 404
        path, chosen = "/v1/text-to-speech/heart/stream-input", {"x-request-id": "socket"}
        with connect_websocket(server, path, additional_headers=chosen) as websocket:
            websocket.send(text="Hi. ", xi_api_key="a")
            websocket.send(text="")
            websocket.final()
        assert record(client, "a", "socket.0").status_code == 200
        assert record(client, "b", "socket.0").status_code == 404


def test_without_keys_every_client_can_read_a_record(engine: PausableEngine) -> None:
    with serving(engine) as server, server.client() as client:
        make(client, "any", "free", seed=3)
        assert client.get("/v1/audio/speech/free").json()["seed"] == 3
