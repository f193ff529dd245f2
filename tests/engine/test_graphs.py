# SPDX-License-Identifier: Apache-2.0
"""The order in which calls are compiled and captured. On a GPU, benchmarks/gpu_checks.py captures them."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from polyvox.engine.graphs import GraphedCall, capture_graphs
from polyvox.progress import listening


class RecordedCall(GraphedCall):
    def __init__(self, name: str, events: list[tuple[str, ...]]) -> None:
        super().__init__(lambda: None)
        self._name, self._events = name, events

    def compile(self, stream: Any) -> None:
        self._events.append(("compile", self._name, stream.name))

    def capture(self, stream: Any, pool: Any) -> None:
        self._events.append(("capture", self._name, stream.name, pool))


def test_all_calls_are_compiled_and_completed_before_the_first_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, ...]] = []
    pools = iter(f"pool {number}" for number in range(9))
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))

    def stream(name: str) -> torch.cuda.Stream:
        return cast(
            torch.cuda.Stream,
            SimpleNamespace(name=name, device=0, synchronize=lambda: events.append(("synchronize", name))),
        )

    generator = [RecordedCall(name, events) for name in ("large", "small")]
    reports: list[tuple[str, int, int]] = []
    with listening(lambda *report: reports.append(report)):
        capture_graphs([(list(generator), stream("one")), ([RecordedCall("codec", events)], stream("two"))], 1)
    assert events == [
        ("compile", "large", "one"),
        ("compile", "small", "one"),
        ("synchronize", "one"),
        ("compile", "codec", "two"),
        ("synchronize", "two"),
        ("capture", "large", "one", "pool 0"),
        ("capture", "small", "one", "pool 0"),
        ("synchronize", "one"),
        ("capture", "codec", "two", "pool 1"),
        ("synchronize", "two"),
    ]
    assert reports == [(stage, done, 3) for stage in ("compile", "capture") for done in range(4)]
