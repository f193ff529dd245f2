# SPDX-License-Identifier: Apache-2.0
"""Which products mid_batch_linear.py supports, and its results on a GPU: POLYVOX_TEST_DEVICE=cuda.

tests/conformance/test_mid_batch_linear_on_cpu.py runs its source on a CPU.
"""

from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from conftest import DEVICE
from gpu_only import needs_gpu
from polyvox.kernels import mid_batch_linear
from polyvox.kernels.fused_linear import project_add_reference, project_reference
from polyvox.kernels.gpu import GPUS, Gpu, assume
from polyvox.kernels.launches import META
from polyvox.kernels.mid_batch_linear import DIVISIONS
from polyvox.kernels.pre_norm import Norm, pre_norm_reference
from polyvox.kernels.products import ADD, GATED, PLAIN, PROGRAMS
from polyvox.kernels.quantized_matrix import quantize_matrix

DTYPE = torch.bfloat16
QKV, GATE = (4096, 1024), (6144, 1024)  # of the predictor
RESERVED = 1 << 10  # bytes of shared memory that each program of a multiprocessor has in addition
# Products of the predictor and of the talker, each followed by the next one, with attention between the first two.
CHAINS = (
    ((PLAIN, 4096, 1024), (ADD, 1024, 2048), (GATED, 6144, 1024), (ADD, 1024, 3072)),
    ((PLAIN, 4096, 2048), (ADD, 2048, 2048), (GATED, 12288, 2048), (ADD, 2048, 6144)),
)


@pytest.fixture
def _nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mid_batch_linear.SOURCE, "_available", True)


def rows(count: int, inputs: int, dtype: torch.dtype = DTYPE) -> Tensor:
    return torch.empty(count, inputs, device=META, dtype=dtype)


def test_clusters_divide_each_matrix() -> None:
    for (kind, height, inputs), division in DIVISIONS.items():
        cluster = mid_batch_linear.cluster_size(kind)
        assert division.chunks * mid_batch_linear.DEPTH * cluster == inputs
        programs = PROGRAMS // 2 if (kind, height, inputs) == (PLAIN, 1024, 2048) else PROGRAMS
        assert height // division.height * cluster == programs


@pytest.mark.parametrize("chain", CHAINS)
def test_two_launches_that_follow_each_other_fit_into_a_multiprocessor(chain: tuple[tuple[int, int, int], ...]) -> None:
    used = [mid_batch_linear.shared_bytes(DIVISIONS[each]) + RESERVED for each in chain]
    assert all(first + second <= GPUS[90].shared + RESERVED for first, second in pairwise([*used, used[0]]))


@pytest.mark.usefixtures("_nvrtc")
@pytest.mark.parametrize("shape", DIVISIONS)
def test_the_rows_of_a_division_are_supported_on_hopper(shape: tuple[int, int, int]) -> None:
    kind, height, inputs = shape
    weight = rows(height, inputs)
    for gpu in GPUS.values():
        with assume(gpu):
            supported = [
                count for count in range(1, 70) if mid_batch_linear.supports(rows(count, inputs), weight, kind)
            ]
        expected = list(range(mid_batch_linear.MIN_ROWS, mid_batch_linear.MAX_ROWS + 1))
        assert supported == (expected if gpu.architecture == 90 else [])


@pytest.mark.usefixtures("_nvrtc")
def test_a_gpu_with_fewer_multiprocessors_than_programs_is_not_supported() -> None:
    with assume(Gpu(90, 114, GPUS[90].shared)):
        assert not mid_batch_linear.supports(rows(32, 1024), rows(*QKV), PLAIN)


def test_nothing_is_supported_without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mid_batch_linear.SOURCE, "_available", False)
    assert not mid_batch_linear.supports(rows(32, 1024), rows(*QKV), PLAIN)


@pytest.mark.usefixtures("_nvrtc")
def test_other_shapes_kinds_and_types_are_not_supported() -> None:
    assert mid_batch_linear.supports(rows(32, 1024), rows(*QKV), PLAIN)
    assert not mid_batch_linear.supports(rows(32, 1024), rows(*QKV), GATED)
    assert not mid_batch_linear.supports(rows(32, 1024), rows(*GATE), PLAIN)
    assert not mid_batch_linear.supports(rows(32, 1024), rows(4000, 1024), PLAIN)
    assert not mid_batch_linear.supports(rows(32, 1024, torch.float16), rows(*QKV, torch.float16), PLAIN)
    assert not mid_batch_linear.supports(rows(32, 1024), quantize_matrix(torch.ones(*QKV), torch.int8), PLAIN)
    assert not mid_batch_linear.supports(torch.ones(32, 1024).bfloat16(), rows(*QKV), PLAIN)


@needs_gpu((mid_batch_linear.ARCHITECTURE,), PROGRAMS)
@pytest.mark.parametrize(("shape", "count"), list(product(DIVISIONS, [2, 9, 16, 17, 32, 33, 64])))
def test_products_equal_their_reference_on_a_gpu(shape: tuple[int, int, int], count: int) -> None:
    kind, height, inputs = shape
    torch.manual_seed(0)

    def random(*size: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*size, device=DEVICE)).to(DTYPE)

    x, weight = random(count, inputs), random(height, inputs, scale=inputs**-0.5)
    if kind == ADD:
        add, norm = random(count, height), Norm(random(height), 1e-6)
        made = mid_batch_linear.launch_add(x, weight, add, norm)
        torch.testing.assert_close(made.squares.sum(1), made.rows.float().square().sum(1), atol=1e-2, rtol=1e-4)
        found, plain = made.rows, project_add_reference(x, weight, add, norm).rows
    else:
        given = pre_norm_reference(x, Norm(random(inputs), 1e-6))
        found = mid_batch_linear.launch(given, weight, kind == GATED)
        plain = project_reference(given, weight, kind == GATED)
        last = pre_norm_reference(x[-2:], given.norm)
        assert torch.equal(found[-2:], mid_batch_linear.launch(last, weight, kind == GATED))
    torch.testing.assert_close(found.float(), plain.float(), atol=2e-2, rtol=2e-2)
