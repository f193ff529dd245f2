# SPDX-License-Identifier: Apache-2.0
"""The counts per key of a replica, with an actor that a test controls instead of Ray."""

import asyncio
import importlib
import sys
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.anyio


class Method:
    """A method of the actor whose answers are given later."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def remote(self, *arguments: object) -> "asyncio.Future[bool]":
        self.calls.append(arguments)
        return self.answer


class Actor:
    def __init__(self) -> None:
        self.acquire, self.release, self.renew = Method(), Method(), Method()


@pytest.fixture
def key_actor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, with an empty package in place of Ray."""
    ray, exceptions = ModuleType("ray"), ModuleType("ray.exceptions")
    vars(exceptions)["RayError"] = type("RayError", (Exception,), {})
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.exceptions", exceptions)
    monkeypatch.delitem(sys.modules, "polyvox.ray.key_actor", raising=False)
    module = importlib.import_module("polyvox.ray.key_actor")
    monkeypatch.setitem(sys.modules, "polyvox.ray.key_actor", module)
    return module


async def test_a_request_that_is_cancelled_while_its_key_is_counted_gives_the_count_back(
    key_actor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = Actor()
    monkeypatch.setattr(key_actor, "_get_actor", lambda: actor)
    counts = key_actor.ClusterKeyCounts("replica")
    waiting = asyncio.create_task(counts.acquire("key", 1))
    await asyncio.sleep(0)
    assert actor.acquire.calls == [("replica", "key", 1)]
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert actor.release.calls == [("replica", "key")]
    actor.acquire = Method()
    actor.acquire.answer.set_result(True)
    assert await counts.acquire("key", 1)


async def test_a_denied_request_that_a_renewal_has_counted_is_given_back(
    key_actor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = Actor()
    monkeypatch.setattr(key_actor, "_get_actor", lambda: actor)
    counts = key_actor.ClusterKeyCounts("replica")
    waiting = asyncio.create_task(counts.acquire("key", 4))
    await asyncio.sleep(0)
    renewing = asyncio.create_task(counts.renew_forever())
    await asyncio.sleep(0)
    assert actor.renew.calls == [("replica", {"key": 1})]  # after the call that the actor denies
    actor.acquire.answer.set_result(False)
    assert not await waiting
    assert actor.release.calls == [("replica", "key")]
    renewing.cancel()
    await asyncio.gather(renewing, return_exceptions=True)
    actor.acquire = Method()
    actor.acquire.answer.set_result(False)
    assert not await counts.acquire("key", 4)
    assert len(actor.release.calls) == 1  # no renewal has counted this one
