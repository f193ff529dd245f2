# SPDX-License-Identifier: Apache-2.0
"""The checks that need a GPU: their comparison of batches, on a CPU, and the status they end with."""

import sys

import pytest
import torch
from benchmarks import gpu_checks
from benchmarks.gpu_checks import Row, same_streams

from conftest import Loaded
from polyvox.bench.model_calls import SyntheticBatch

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8])
def test_streams_are_compared_over_the_same_context(
    kv_dtype: torch.dtype, loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded("custom_voice", "float32").model
    monkeypatch.setattr(model.generator, "kv_dtype", kv_dtype)
    with torch.inference_mode():
        assert same_streams(model, 8) == [True] * 4
        monkeypatch.setattr(gpu_checks, "share_context", lambda _: None)
        assert same_streams(model, 8) == [False] * 4


def test_every_slot_gets_the_context_of_slot_0(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded("custom_voice", "float32").model
    monkeypatch.setattr(model.generator, "kv_dtype", torch.int8)
    batch = SyntheticBatch(model, 3, 20, 8, 2)
    gpu_checks.share_context(batch)
    cache = batch.cache
    assert cache.scales is not None
    pages = (cache.keys.shape[1] - 1) // 3
    for pool in (cache.keys, cache.values, *cache.scales):
        first, *others = (pool[:, 1 + slot * pages : 1 + (slot + 1) * pages] for slot in range(3))
        assert all(torch.equal(first, other) for other in others)
        assert not torch.equal(first[:, :1], first[:, 1:2])


@pytest.mark.parametrize(("passed", "status"), [(True, 0), (False, 1)])
def test_a_failed_check_is_the_exit_status(
    passed: bool, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_checks, "CHECKS", {"one": lambda _: [Row("one: result", "2 of 3", passed)]})
    monkeypatch.setattr(sys, "argv", ["gpu_checks.py", "--only", "one"])
    assert gpu_checks.main() == status
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("one: result")]
    assert line.split(maxsplit=2)[2] == f"2 of 3{'' if passed else '  FAILED'}"


def test_an_error_without_a_message_is_one_failed_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: str) -> list[Row]:
        raise AssertionError

    monkeypatch.setattr(gpu_checks, "CHECKS", {"one": broken, "two": lambda _: [Row("two: result", "fine")]})
    monkeypatch.setattr(sys, "argv", ["gpu_checks.py", "--only", "one,two"])
    assert gpu_checks.main() == 1
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if "took" not in line] == ["one: error AssertionError() FAILED", "two: result fine"]
