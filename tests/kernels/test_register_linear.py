# SPDX-License-Identifier: Apache-2.0
"""Which products register_linear.py supports, and its results on a GPU: POLYVOX_TEST_DEVICE=cuda.

tests/conformance/test_register_linear_on_cpu.py runs its source on a CPU.
"""

from itertools import product

import pytest
import torch
from torch import Tensor

from conftest import DEVICE
from gpu_only import needs_gpu
from polyvox.kernels import register_linear
from polyvox.kernels.fused_linear import project, project_add, project_add_reference, project_reference
from polyvox.kernels.gpu import GPUS, assume
from polyvox.kernels.launches import META, Launch, record_launches
from polyvox.kernels.pre_norm import Norm, pre_norm_reference
from polyvox.kernels.products import ADD, GATED, PLAIN
from polyvox.kernels.quantized_matrix import quantize_matrix

DTYPE = torch.float16
QKV, OUT, GATE_UP = (3072, 512), (512, 1024), (2048, 512)  # o and down have the same shape
KINDS = {QKV: PLAIN, OUT: ADD, GATE_UP: GATED}


@pytest.fixture
def _nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    for architecture in GPUS:
        monkeypatch.setattr(register_linear.source(architecture), "_available", True)


def rows(count: int, inputs: int, dtype: torch.dtype = DTYPE) -> Tensor:
    return torch.empty(count, inputs, device=META, dtype=dtype)


@pytest.mark.usefixtures("_nvrtc")
@pytest.mark.parametrize("count", [1, 4, 31, 32])
@pytest.mark.parametrize("shape", KINDS)
def test_products_of_the_codec_are_supported_where_launches_overlap(shape: tuple[int, int], count: int) -> None:
    given, weight = rows(count, shape[1]), rows(*shape)
    for gpu in GPUS.values():
        with assume(gpu):
            assert register_linear.supports(given, weight, KINDS[shape]) == gpu.can_overlap_launches


def test_nothing_is_supported_without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register_linear.source(90), "_available", False)
    assert not register_linear.supports(rows(8, 512), rows(*QKV), PLAIN)


@pytest.mark.usefixtures("_nvrtc")
def test_other_shapes_types_and_batches_are_not_supported() -> None:
    assert register_linear.supports(rows(8, 512), rows(*QKV), PLAIN)
    assert not register_linear.supports(rows(0, 512), rows(*QKV), PLAIN)
    assert not register_linear.supports(rows(33, 512), rows(*QKV), PLAIN)
    assert not register_linear.supports(rows(8, 512, torch.bfloat16), rows(*QKV, torch.bfloat16), PLAIN)
    assert not register_linear.supports(rows(8, 512), rows(*QKV, torch.bfloat16), PLAIN)
    assert not register_linear.supports(rows(8, 1024), rows(4096, 1024), PLAIN)
    assert not register_linear.supports(rows(8, 500), rows(3072, 500), PLAIN)
    assert not register_linear.supports(rows(8, 512), rows(3076, 512), PLAIN)
    assert not register_linear.supports(rows(8, 512), rows(*QKV), ADD)
    assert not register_linear.supports(rows(8, 512), rows(*QKV), GATED)
    assert not register_linear.supports(rows(32, 512), rows(*GATE_UP), ADD)
    assert not register_linear.supports(rows(8, 512), quantize_matrix(torch.ones(*QKV), torch.int8), PLAIN)
    assert not register_linear.supports(torch.ones(8, 512).half(), rows(*QKV), PLAIN)


@pytest.mark.usefixtures("_nvrtc")
def test_products_are_one_compilation() -> None:
    norm = Norm(rows(1, 512)[0], 1e-6)
    calls = [
        lambda: project(rows(8, 512), rows(*QKV)),
        lambda: project_add(rows(8, 1024), rows(*OUT), rows(8, 512), norm, norm.gain),
    ]
    assert record_launches(calls, GPUS[90]) == [Launch("register_linear.cu:90", "", 90)]


def test_a_row_tile_holds_all_supported_rows() -> None:
    for count in range(1, register_linear.MAX_ROWS + 1):
        assert count <= register_linear.row_tiles(count) * register_linear.ROW_TILE


@needs_gpu(register_linear.ARCHITECTURES)
@pytest.mark.parametrize(("shape", "count"), list(product(KINDS, [1, 2, 5, 8, 31, 32])))
def test_products_equal_their_reference_on_a_gpu(shape: tuple[int, int], count: int) -> None:
    height, inputs = shape
    torch.manual_seed(0)

    def random(*size: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*size, device=DEVICE)).to(DTYPE)

    x, weight, norm = random(count, inputs), random(height, inputs, scale=inputs**-0.5), Norm(random(height), 1e-6)
    assert register_linear.supports(x, weight, KINDS[shape])
    if shape == OUT:
        last = random(count, height), norm, random(height)
        made, expected = project_add(x, weight, *last), project_add_reference(x, weight, *last)
        torch.testing.assert_close(made.squares.sum(1), made.rows.float().square().sum(1), atol=1e-2, rtol=1e-4)
        found, plain = made.rows, expected.rows
    else:
        given = pre_norm_reference(x, Norm(random(inputs), 1e-6))
        found, plain = project(given, weight, shape == GATE_UP), project_reference(given, weight, shape == GATE_UP)
        assert torch.equal(found[-2:], project(pre_norm_reference(x[-2:], given.norm), weight, shape == GATE_UP))
    torch.testing.assert_close(found.float(), plain.float(), atol=2e-2, rtol=2e-2)
