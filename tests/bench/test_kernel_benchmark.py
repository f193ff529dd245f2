# SPDX-License-Identifier: Apache-2.0
"""The benchmark of kernels fails if a kernel does: with results that are wrong in each way, and without a GPU."""

import sys
from collections.abc import Callable
from math import nan

import pytest
import torch
from benchmarks import kernels as kernel_benchmark
from benchmarks.kernels import Case
from torch import Tensor

from polyvox import kernels

CPU = torch.device("cpu")


def with_error(error: float) -> Callable[[Tensor], Tensor]:
    """A kernel whose results have this error; the largest is 1."""
    return lambda x: x + error if kernels.active(x) else x


def by_position(x: Tensor) -> Tensor:
    """A kernel whose results depend, by very little, on where a row is."""
    return x + 1e-6 * torch.arange(len(x))[:, None] if kernels.active(x) else x


def broken(_: Tensor) -> Tensor:
    raise AssertionError


@pytest.mark.parametrize(
    ("name", "call", "expected"),
    [
        ("rows", with_error(0.0), "0e+00 same"),
        ("rows", with_error(1e-2), "1e-02 same"),
        ("KV cache fp8: stored rows", with_error(0.1), "1e-01 same"),
        ("rows", with_error(0.1), "1e-01 same  FAILED"),
        ("rows", with_error(nan), "nan DIFFERENT  FAILED"),
        ("rows", by_position, "DIFFERENT  FAILED"),
        ("rows", broken, "FAILED: AssertionError()"),
    ],
)
@pytest.mark.parametrize("others", [None, torch.tensor([2, 3])])
def test_a_wrong_result_is_the_exit_status(
    others: Tensor | None, name: str, call: Callable[[Tensor], Tensor], expected: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def make(batch: int) -> Case:
        return Case((torch.linspace(-1, 1, 8 * batch).view(batch, 8),), call, 1, others)

    monkeypatch.setattr(kernel_benchmark, "DEVICE", CPU)
    monkeypatch.setattr(kernel_benchmark, "lines", lambda *_: {name: make, "fine": lambda _: make_fine()})
    monkeypatch.setattr(kernel_benchmark, "microseconds", lambda _: 1.0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(sys, "argv", ["kernels.py", "--batch", "4"])
    with kernels.enabled_on_cpu():
        assert kernel_benchmark.main() == ("FAILED" in expected)
    table = capsys.readouterr().out.splitlines()
    (line,) = [line for line in table if line.startswith(f"{name} ")]
    assert line.endswith(expected)
    assert table[-1].endswith("0e+00 same")  # the lines after it are measured


def make_fine() -> Case:
    return Case((torch.randn(4, 8),), lambda x: x, 1)


@pytest.mark.parametrize("size", [0, 2049])
def test_a_prompt_has_at_least_one_row(
    size: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kernels.py", "--prompt", str(size)])
    with pytest.raises(SystemExit):
        kernel_benchmark.main()
    assert f"--prompt {size}: allowed are 1 to 2048" in capsys.readouterr().err
