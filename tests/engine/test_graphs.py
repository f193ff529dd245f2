# SPDX-License-Identifier: Apache-2.0
"""The order in which calls are compiled and captured. On a GPU, benchmarks/gpu_checks.py captures them."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from polyvox.engine import graphs
from polyvox.engine.graphs import GraphedCall, GraphedSizes, capture_graphs
from polyvox.progress import listening


class RecordedCall(GraphedCall):
    def __init__(self, name: str, events: list[tuple[str, ...]]) -> None:
        super().__init__(lambda: None)
        self._name, self._events = name, events

    def compile(self, stream: Any) -> None:
        self._events.append(("compile", self._name, stream.name))

    def capture(self, stream: Any, pool: Any) -> None:
        self._events.append(("capture", self._name, stream.name, pool))


def test_the_largest_and_smallest_calls_are_completed_before_the_first_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[tuple[str, ...]] = []
    pools = iter(f"pool {number}" for number in range(9))
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))

    def stream(name: str) -> torch.cuda.Stream:
        return cast(
            torch.cuda.Stream,
            SimpleNamespace(name=name, device=0, synchronize=lambda: events.append(("synchronize", name))),
        )

    generator: GraphedSizes = {
        size: RecordedCall(name, events) for size, name in ((1, "small"), (2, "medium"), (4, "large"))
    }
    reports: list[tuple[str, int, int]] = []
    with listening(lambda *report: reports.append(report)):
        capture_graphs([([generator], stream("one")), ([{1: RecordedCall("codec", events)}], stream("two"))], 1)
    assert events == [
        ("compile", "large", "one"),
        ("compile", "small", "one"),
        ("synchronize", "one"),
        ("compile", "codec", "two"),
        ("synchronize", "two"),
        ("capture", "large", "one", "pool 0"),
        ("capture", "medium", "one", "pool 0"),
        ("capture", "small", "one", "pool 0"),
        ("synchronize", "one"),
        ("capture", "codec", "two", "pool 1"),
        ("synchronize", "two"),
    ]
    assert reports == [
        (stage, done, total) for stage, total in (("compile", 3), ("capture", 4)) for done in range(total + 1)
    ]


def test_a_call_that_cannot_be_captured_at_once_runs_first(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    graph = SimpleNamespace(instantiate=lambda: events.append("instantiate"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda keep_graph: graph if keep_graph else None)
    monkeypatch.setattr(graphs, "prefer_shared_memory", lambda *given: events.append(f"prefer for {given[2]} rows"))
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())

    def begin_capture(*_: object, **__: object) -> nullcontext[None]:
        events.append("capture")
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "graph", begin_capture)

    def load_kernel() -> None:
        events.append("run")
        if events == ["capture", "run"]:
            raise RuntimeError("operation not permitted when stream is capturing")

    stream = cast(torch.cuda.Stream, SimpleNamespace(synchronize=lambda: events.append("synchronize"), device=None))
    GraphedCall(load_kernel, rows=3).capture(stream, cast("torch.cuda._POOL_HANDLE", (0, 0)))
    assert events == [
        "capture", "run", "run", "synchronize", "capture", "run", "prefer for 3 rows", "instantiate",
    ]  # fmt: skip
