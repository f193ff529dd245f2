# SPDX-License-Identifier: Apache-2.0
"""Which products prefetch_linear.py supports, and its results on a GPU: POLYVOX_TEST_DEVICE=cuda.

tests/conformance/test_prefetch_linear_on_cpu.py runs its source on a CPU.
"""

from itertools import product

import pytest
import torch
from torch import Tensor

from conftest import DEVICE
from gpu_only import needs_gpu
from polyvox.kernels import prefetch_linear
from polyvox.kernels.fused_linear import project, project_add, project_add_reference, project_reference
from polyvox.kernels.gpu import GPUS, Gpu, assume
from polyvox.kernels.launches import META, Launch, record_launches
from polyvox.kernels.pre_norm import Norm, pre_norm_reference
from polyvox.kernels.prefetch_linear import DIVISIONS
from polyvox.kernels.products import ADD, GATED, PLAIN, PROGRAMS
from polyvox.kernels.quantized_matrix import quantize_matrix

DTYPE = torch.bfloat16
QKV, OUT, GATE = (4096, 1024), (1024, 2048), (6144, 1024)  # of the predictor


@pytest.fixture
def _nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    for architecture in GPUS:
        monkeypatch.setattr(prefetch_linear.source(architecture), "_available", True)


def rows(count: int, inputs: int, dtype: torch.dtype = DTYPE) -> Tensor:
    return torch.empty(count, inputs, device=META, dtype=dtype)


def test_clusters_divide_each_matrix() -> None:
    for (_, height, inputs), division in DIVISIONS.items():
        assert division.columns * prefetch_linear.CLUSTER == inputs
        assert height // division.height * prefetch_linear.CLUSTER == PROGRAMS
        assert division.groups * division.parts == prefetch_linear.WARPS


def test_programs_fit_into_a_multiprocessor() -> None:
    for (kind, *_), division in DIVISIONS.items():
        assert prefetch_linear.shared_bytes(kind, division) <= GPUS[90].shared


@pytest.mark.usefixtures("_nvrtc")
@pytest.mark.parametrize("shape", DIVISIONS)
def test_the_products_of_2_to_8_rows_are_supported_on_hopper(shape: tuple[int, int, int]) -> None:
    kind, height, inputs = shape
    weight = rows(height, inputs)
    for gpu in GPUS.values():
        with assume(gpu):
            supported = [count for count in range(1, 20) if prefetch_linear.supports(rows(count, inputs), weight, kind)]
        assert supported == (list(range(2, 9)) if gpu.architecture == 90 else [])


@pytest.mark.usefixtures("_nvrtc")
def test_a_gpu_with_fewer_multiprocessors_than_programs_is_not_supported() -> None:
    with assume(Gpu(90, 114, GPUS[90].shared)):
        assert not prefetch_linear.supports(rows(8, 1024), rows(*QKV), PLAIN)


def test_nothing_is_supported_without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch_linear.source(90), "_available", False)
    assert not prefetch_linear.supports(rows(8, 1024), rows(*QKV), PLAIN)


@pytest.mark.usefixtures("_nvrtc")
def test_other_shapes_kinds_and_types_are_not_supported() -> None:
    assert prefetch_linear.supports(rows(8, 1024), rows(*QKV), PLAIN)
    assert not prefetch_linear.supports(rows(8, 1024), rows(*QKV), GATED)
    assert not prefetch_linear.supports(rows(8, 1024), rows(*GATE), PLAIN)
    assert not prefetch_linear.supports(rows(8, 1024), rows(4000, 1024), PLAIN)
    assert not prefetch_linear.supports(rows(8, 1024, torch.float16), rows(*QKV, torch.float16), PLAIN)
    assert not prefetch_linear.supports(rows(8, 1024), quantize_matrix(torch.ones(*QKV), torch.int8), PLAIN)
    assert not prefetch_linear.supports(torch.ones(8, 1024).bfloat16(), rows(*QKV), PLAIN)


@pytest.mark.usefixtures("_nvrtc")
def test_products_are_one_compilation() -> None:
    norm = Norm(rows(1, 1024)[0], 1e-6)
    calls = [
        lambda: project(pre_norm_reference(rows(8, 1024), norm), rows(*GATE), gated=True),
        lambda: project_add(rows(8, 2048), rows(*OUT), rows(8, 1024), norm),
    ]
    assert record_launches(calls, GPUS[90]) == [Launch("prefetch_linear.cu:90", "", 90)]


@needs_gpu(prefetch_linear.ARCHITECTURES, PROGRAMS)
@pytest.mark.parametrize(("shape", "count"), list(product(DIVISIONS, [2, 5, 8])))
def test_products_equal_their_reference_on_a_gpu(shape: tuple[int, int, int], count: int) -> None:
    kind, height, inputs = shape
    torch.manual_seed(0)

    def random(*size: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*size, device=DEVICE)).to(DTYPE)

    x, weight = random(count, inputs), random(height, inputs, scale=inputs**-0.5)
    assert prefetch_linear.supports(x, weight, kind)
    if kind == ADD:
        add, norm = random(count, height), Norm(random(height), 1e-6)
        made, expected = project_add(x, weight, add, norm), project_add_reference(x, weight, add, norm)
        torch.testing.assert_close(made.squares.sum(1), made.rows.float().square().sum(1), atol=1e-2, rtol=1e-4)
        found, plain = made.rows, expected.rows
    else:
        given = pre_norm_reference(x, Norm(random(inputs), 1e-6))
        found, plain = project(given, weight, kind == GATED), project_reference(given, weight, kind == GATED)
        assert torch.equal(found[-2:], project(pre_norm_reference(x[-2:], given.norm), weight, kind == GATED))
    torch.testing.assert_close(found.float(), plain.float(), atol=2e-2, rtol=2e-2)
