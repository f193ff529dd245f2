# SPDX-License-Identifier: Apache-2.0
"""Which products register_linear.py supports, and its results on a GPU: POLYVOX_TEST_DEVICE=cuda.

tests/conformance/test_register_linear_on_cpu.py runs its source on a CPU.
"""

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import Tensor

from conftest import DEVICE
from polyvox.kernels import register_linear
from polyvox.kernels.gpu import GPUS, assume
from polyvox.kernels.launches import META, Launch, record_launches
from polyvox.kernels.pre_norm import Norm, pre_norm_reference
from polyvox.kernels.quantized_matrix import quantize_matrix
from polyvox.kernels.small_batch_linear import project, project_add, project_add_reference, project_reference

needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="runs on a GPU only: POLYVOX_TEST_DEVICE=cuda")
TALKER_SHAPES = [(4096, 2048), (2048, 2048), (2048, 6144), (3072, 2048)]
PREDICTOR_SHAPES = [(4096, 1024), (1024, 2048), (1024, 3072), (2048, 1024)]
CODEC_SHAPES = [(3072, 512), (512, 1024), (2048, 512)]  # in float16; o and down have the same
ADDED = {(2048, 2048), (2048, 6144), (1024, 2048), (1024, 3072), (512, 1024)}
GATED = {(2048, 512)}
TRIALS = [register_linear.TRIAL, register_linear.SMALL_TRIAL]


def dtype_of(shape: tuple[int, int]) -> torch.dtype:
    return torch.float16 if shape in CODEC_SHAPES else torch.bfloat16


@pytest.fixture(params=TRIALS)
def _trial(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYVOX_TRIAL_KERNELS", request.param)


@pytest.fixture
def _nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    for architecture in GPUS:
        monkeypatch.setattr(register_linear.source(architecture), "_available", True)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def rows(count: int, inputs: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(count, inputs, device=META, dtype=dtype)


@pytest.mark.usefixtures("_nvrtc")
def test_nothing_is_supported_without_the_trial() -> None:
    assert not register_linear.supports(rows(8, 1024), rows(4096, 1024))


@pytest.mark.usefixtures("_trial", "_nvrtc")
@pytest.mark.parametrize("shape", TALKER_SHAPES + PREDICTOR_SHAPES + CODEC_SHAPES)
def test_every_product_without_a_gate_and_all_of_the_codec_are_supported(shape: tuple[int, int]) -> None:
    for architecture in GPUS:
        with assume(GPUS[architecture]):
            given, weight = rows(8, shape[1], dtype_of(shape)), rows(*shape, dtype_of(shape))
            assert register_linear.supports(given, weight, shape in ADDED, shape in GATED)


@pytest.mark.usefixtures("_trial", "_nvrtc")
def test_other_shapes_types_and_batches_are_not_supported() -> None:
    weight = rows(4096, 1024)
    assert register_linear.supports(rows(2, 1024), weight)
    assert not register_linear.supports(rows(1, 1024), weight)
    assert not register_linear.supports(rows(9, 1024), weight)
    assert not register_linear.supports(rows(8, 1024), rows(6144, 1024), gated=True)
    assert not register_linear.supports(rows(8, 2048), rows(12288, 2048), gated=True)
    assert register_linear.supports(rows(1, 512, torch.float16), rows(2048, 512, torch.float16), gated=True)
    assert register_linear.supports(rows(32, 512, torch.float16), rows(3072, 512, torch.float16))
    assert not register_linear.supports(rows(32, 512, torch.float16), rows(2048, 512, torch.float16), add=True)
    assert not register_linear.supports(rows(33, 512, torch.float16), rows(3072, 512, torch.float16))
    assert not register_linear.supports(rows(8, 1024, torch.float16), weight)
    assert not register_linear.supports(rows(8, 1024, torch.float16), rows(4096, 1024, torch.float16))
    assert not register_linear.supports(rows(8, 1024), quantize_matrix(torch.ones(4096, 1024), torch.int8))
    assert not register_linear.supports(rows(8, 1000), rows(4096, 1000))
    assert not register_linear.supports(rows(8, 1024), rows(4100, 1024))
    assert not register_linear.supports(rows(8, 1024), weight, add=True)
    assert not register_linear.supports(rows(8, 512, torch.float16), rows(3072, 512, torch.float16), gated=True)
    assert not register_linear.supports(torch.ones(8, 1024).bfloat16(), weight)


@pytest.mark.usefixtures("_trial", "_nvrtc")
def test_products_of_a_trial_are_listed_as_one_compilation() -> None:
    norm = Norm(rows(1, 1024)[0], 1e-6)
    calls = [
        lambda: project(rows(8, 1024), rows(4096, 1024)),
        lambda: project_add(rows(8, 2048), rows(1024, 2048), rows(8, 1024), norm),
    ]
    assert record_launches(calls, GPUS[90]) == [Launch("register_linear.cu:90", "", 90)]


@needs_gpu
@pytest.mark.usefixtures("_trial")
@pytest.mark.parametrize(
    ("shape", "count"),
    [
        *product(TALKER_SHAPES + PREDICTOR_SHAPES, [2, 5, 8]),
        *product(CODEC_SHAPES, [1, 2, 5, 8, 32]),
    ],
)
def test_products_equal_their_reference_on_a_gpu(shape: tuple[int, int], count: int) -> None:
    height, inputs = shape
    torch.manual_seed(0)

    def random(*size: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*size, device=DEVICE)).to(dtype_of(shape))

    x, weight, norm = random(count, inputs), random(height, inputs, scale=inputs**-0.5), Norm(random(height), 1e-6)
    assert register_linear.supports(x, weight, shape in ADDED)
    if shape in ADDED:
        given_scale = random(height) if shape in CODEC_SHAPES else None
        last = random(count, height), norm, given_scale
        made, expected = project_add(x, weight, *last), project_add_reference(x, weight, *last)
        torch.testing.assert_close(made.squares.sum(1), made.rows.float().square().sum(1), atol=1e-2, rtol=1e-4)
        found, plain = made.rows, expected.rows
    else:
        given = pre_norm_reference(x, Norm(random(inputs), 1e-6))
        found, plain = project(given, weight, shape in GATED), project_reference(given, weight, shape in GATED)
        assert torch.equal(found[-2:], project(pre_norm_reference(x[-2:], given.norm), weight, shape in GATED))
    torch.testing.assert_close(found.float(), plain.float(), atol=2e-2, rtol=2e-2)
