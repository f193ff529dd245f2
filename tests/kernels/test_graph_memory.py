# SPDX-License-Identifier: Apache-2.0
"""Which attributes the launches of a CUDA graph get; the driver is a fake."""

import ctypes
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from polyvox.kernels import cuda_driver, graph_memory
from polyvox.kernels.gpu import GPUS, assume
from polyvox.kernels.graph_memory import prefer_shared_memory

NODES = {11: 0, 12: 2, 13: 0}  # handle: type of the node; 2 is a memset
INVALID_VALUE = 1


class FakeDriver:
    """Of one graph; nodes in `refusing` refuse the attribute."""

    def __init__(self) -> None:
        self.set: list[tuple[int, int, int]] = []
        self.refusing = [13]

    def get_nodes(self, graph: ctypes.c_void_p, nodes: Any, count: Any) -> int:
        assert graph.value == 7
        if nodes is None:
            count._obj.value = len(NODES)
        else:
            nodes[:] = list(NODES)
        return 0

    def get_type(self, node: ctypes.c_void_p, kind: Any) -> int:
        kind._obj.value = NODES[node.value or 0]
        return 0

    def set_attribute(self, node: ctypes.c_void_p, attribute: int, value: Any) -> int:
        self.set.append((node.value or 0, attribute, value[0]))
        return INVALID_VALUE if node.value in self.refusing else 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    made = FakeDriver()
    functions = SimpleNamespace(
        cuGraphGetNodes=made.get_nodes,
        cuGraphNodeGetType=made.get_type,
        cuGraphKernelNodeSetAttribute=made.set_attribute,
    )
    monkeypatch.setattr(cuda_driver, "driver", lambda: functions)
    return made


def set_preference(rows: int) -> None:
    graph = cast(torch.cuda.CUDAGraph, SimpleNamespace(raw_cuda_graph=lambda: 7))
    prefer_shared_memory(graph, torch.device("cpu"), rows)


@pytest.mark.parametrize(("rows", "percent"), [(0, 100), (1, 70), (2, 100), (64, 100)])
def test_all_launches_of_a_graph_prefer_the_same_division(driver: FakeDriver, rows: int, percent: int) -> None:
    with assume(GPUS[90]):
        set_preference(rows)
    attribute = graph_memory.PREFERRED_SHARED_MEMORY
    assert driver.set == [(11, attribute, percent), (13, attribute, percent)]


def test_a_driver_that_refuses_all_launches_is_logged(driver: FakeDriver, caplog: pytest.LogCaptureFixture) -> None:
    set_preference(8)
    assert not caplog.records
    driver.refusing = [11, 13]
    set_preference(8)
    assert "launches=2 error=1" in caplog.text


@pytest.mark.parametrize("architecture", [80, 89, 100, 120])
def test_other_architectures_keep_the_default(driver: FakeDriver, architecture: int) -> None:
    with assume(GPUS[architecture]):
        set_preference(1)
    assert driver.set == []


def test_an_error_of_the_driver_has_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def text(_: int, found: Any) -> None:
        found._obj.value = b"no device"

    monkeypatch.setattr(cuda_driver, "driver", lambda: SimpleNamespace(cuInit=lambda _: 100, cuGetErrorString=text))
    with pytest.raises(RuntimeError, match="cuInit failed: no device"):
        cuda_driver.call("cuInit", 0)
