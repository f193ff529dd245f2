# SPDX-License-Identifier: Apache-2.0
"""Which products prefetch_vector.py supports, and its results on a GPU: POLYVOX_TEST_DEVICE=cuda.

tests/conformance/test_prefetch_vector_on_cpu.py runs its source on a CPU.
"""

import pytest
import torch
from torch import Tensor

from conftest import DEVICE
from gpu_only import needs_gpu
from polyvox.kernels import prefetch_vector
from polyvox.kernels.fused_linear import project, project_add, project_add_reference, project_reference
from polyvox.kernels.gpu import GPUS, Gpu, assume
from polyvox.kernels.launches import META, Launch, record_launches
from polyvox.kernels.pre_norm import Norm, pre_norm_reference
from polyvox.kernels.prefetch_vector import SHAPES
from polyvox.kernels.products import ADD, GATED, PLAIN, PROGRAMS
from polyvox.kernels.quantized_matrix import quantize_matrix

DTYPE = torch.bfloat16
QKV, OUT, GATE = (4096, 1024), (1024, 2048), (6144, 1024)  # of the predictor


@pytest.fixture
def _nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    for architecture in GPUS:
        monkeypatch.setattr(prefetch_vector.source(architecture), "_available", True)


def rows(count: int, inputs: int, dtype: torch.dtype = DTYPE) -> Tensor:
    return torch.empty(count, inputs, device=META, dtype=dtype)


def test_programs_divide_each_matrix_and_fit_into_a_multiprocessor() -> None:
    for kind, height, inputs in SHAPES:
        assert height % (PROGRAMS * (prefetch_vector.TILE if kind == GATED else prefetch_vector.GROUP)) == 0
        assert inputs % 1024 == 0
        assert prefetch_vector.shared_bytes(height // PROGRAMS, inputs) <= GPUS[90].shared


@pytest.mark.usefixtures("_nvrtc")
@pytest.mark.parametrize("shape", SHAPES)
def test_the_products_of_one_row_are_supported_on_hopper(shape: tuple[int, int, int]) -> None:
    kind, height, inputs = shape
    for gpu in GPUS.values():
        with assume(gpu):
            supported = [
                n for n in range(1, 5) if prefetch_vector.supports(rows(n, inputs), rows(height, inputs), kind)
            ]
        assert supported == ([1] if gpu.architecture == 90 else [])


@pytest.mark.usefixtures("_nvrtc")
def test_a_gpu_with_fewer_multiprocessors_than_programs_is_not_supported() -> None:
    with assume(Gpu(90, 114, GPUS[90].shared)):
        assert not prefetch_vector.supports(rows(1, 1024), rows(*QKV), PLAIN)


def test_nothing_is_supported_without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch_vector.source(90), "_available", False)
    assert not prefetch_vector.supports(rows(1, 1024), rows(*QKV), PLAIN)


@pytest.mark.usefixtures("_nvrtc")
def test_other_shapes_kinds_and_types_are_not_supported() -> None:
    assert prefetch_vector.supports(rows(1, 1024), rows(*QKV), PLAIN)
    assert not prefetch_vector.supports(rows(1, 1024), rows(*QKV), GATED)
    assert not prefetch_vector.supports(rows(1, 1024), rows(*GATE), PLAIN)
    assert not prefetch_vector.supports(rows(1, 1024), rows(4000, 1024), PLAIN)
    assert not prefetch_vector.supports(rows(1, 1024, torch.float16), rows(*QKV, torch.float16), PLAIN)
    assert not prefetch_vector.supports(rows(1, 1024), quantize_matrix(torch.ones(*QKV), torch.int8), PLAIN)
    assert not prefetch_vector.supports(torch.ones(1, 1024).bfloat16(), rows(*QKV), PLAIN)


@pytest.mark.usefixtures("_nvrtc")
def test_products_are_one_compilation() -> None:
    norm = Norm(rows(1, 1024)[0], 1e-6)
    calls = [
        lambda: project(pre_norm_reference(rows(1, 1024), norm), rows(*GATE), gated=True),
        lambda: project_add(rows(1, 2048), rows(*OUT), rows(1, 1024), norm),
    ]
    assert record_launches(calls, GPUS[90]) == [Launch("prefetch_vector.cu:90", "", 90)]


@needs_gpu(prefetch_vector.ARCHITECTURES, PROGRAMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_equal_their_reference_on_a_gpu(shape: tuple[int, int, int]) -> None:
    kind, height, inputs = shape
    torch.manual_seed(0)

    def random(*size: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*size, device=DEVICE)).to(DTYPE)

    x, weight = random(1, inputs), random(height, inputs, scale=inputs**-0.5)
    assert prefetch_vector.supports(x, weight, kind)
    if kind == ADD:
        add, norm = random(1, height), Norm(random(height), 1e-6)
        made, expected = project_add(x, weight, add, norm), project_add_reference(x, weight, add, norm)
        torch.testing.assert_close(made.squares.sum(1), made.rows.float().square().sum(1), atol=1e-2, rtol=1e-4)
        found, plain, again = made.rows, expected.rows, project_add(x, weight, add, norm).rows
    else:
        given = pre_norm_reference(x, Norm(random(inputs), 1e-6))
        found, plain = project(given, weight, kind == GATED), project_reference(given, weight, kind == GATED)
        again = project(given, weight, kind == GATED)
        unnormed = project(x, weight, kind == GATED), project_reference(x, weight, kind == GATED)
        torch.testing.assert_close(unnormed[0].float(), unnormed[1].float(), atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(found.float(), plain.float(), atol=2e-2, rtol=2e-2)
    assert torch.equal(again, found)
