# SPDX-License-Identifier: Apache-2.0
"""Which products wgmma_linear.py supports, its tiles, and its results on a GPU: POLYVOX_TEST_DEVICE=cuda.

tests/conformance/test_wgmma_linear_on_cpu.py runs its source on a CPU.
"""

import re
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conftest import DEVICE
from gpu_only import needs_gpu
from polyvox.kernels import wgmma_linear
from polyvox.kernels.fused_linear import project, project_add, project_add_reference, project_reference
from polyvox.kernels.gpu import GPUS, assume
from polyvox.kernels.launch_overlap import LARGE_BATCHES, overlap
from polyvox.kernels.launches import META, Launch, record_launches
from polyvox.kernels.pre_norm import Norm, PreNorm, pre_norm_reference
from polyvox.kernels.products import ADD, GATED, PLAIN
from polyvox.kernels.quantized_matrix import quantize_matrix
from polyvox.kernels.wgmma_conv import ARCHITECTURE
from polyvox.kernels.wgmma_linear import TILES, choose_tile

DTYPE = torch.bfloat16
# Matrices of talker and predictor of 1.7B, by kind.
SHAPES = {
    PLAIN: [(4096, 2048), (3072, 2048), (4096, 1024), (2048, 1024)],
    GATED: [(12288, 2048), (6144, 1024)],
    ADD: [(2048, 2048), (2048, 6144), (1024, 2048), (1024, 3072)],
}


@pytest.fixture
def _nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wgmma_linear.SOURCE, "_available", True)


def rows(count: int, inputs: int, dtype: torch.dtype = DTYPE) -> Tensor:
    return torch.empty(count, inputs, device=META, dtype=dtype)


@pytest.mark.usefixtures("_nvrtc")
def test_only_one_architecture_and_large_batches_in_bfloat16_are_supported() -> None:
    given, weight = rows(512, 1024), rows(4096, 1024)
    for gpu in GPUS.values():
        with assume(gpu):
            assert wgmma_linear.supports(given, weight, PLAIN) == (gpu.architecture == 90)
    assert all(
        wgmma_linear.supports(rows(count, 1024), weight, PLAIN)
        for count in (65, 96, 320, 512, 641, 768, 1024, 1537, 2048)
    )
    assert not any(
        wgmma_linear.supports(rows(count, 1024), weight, PLAIN) for count in (64, 513, 640, 1025, 1280, 1536, 2049)
    )
    for count in (65, 96, 256, 385, 448, 512, 897, 1024, 1537, 1792):
        assert wgmma_linear.supports(rows(count, 2048), rows(12288, 2048), GATED)
    for count in (64, 257, 320, 384, 513, 640, 896, 1025, 1536, 1793, 2048):
        assert not wgmma_linear.supports(rows(count, 2048), rows(12288, 2048), GATED)
    assert wgmma_linear.supports(rows(320, 2048), rows(1024, 2048), PLAIN)
    assert not wgmma_linear.supports(rows(320, 2048), rows(2048, 2048), PLAIN)
    assert not wgmma_linear.supports(rows(512, 4096), rows(4096, 4096), PLAIN)
    assert not wgmma_linear.supports(rows(512, 1024, torch.float16), rows(4096, 1024, torch.float16), PLAIN)
    assert not wgmma_linear.supports(given, rows(4097, 1024), PLAIN)
    assert wgmma_linear.supports(given, rows(6144, 1024), GATED)
    assert not wgmma_linear.supports(given, rows(4160, 1024), GATED)
    assert not wgmma_linear.supports(rows(512, 1000), rows(4096, 1000), PLAIN)
    assert not wgmma_linear.supports(given, quantize_matrix(torch.ones(256, 1024), torch.int8), PLAIN)
    assert not wgmma_linear.supports(torch.ones(512, 1024).bfloat16(), weight, PLAIN)


def test_nothing_is_supported_without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wgmma_linear.SOURCE, "_available", False)
    assert not wgmma_linear.supports(rows(512, 1024), rows(4096, 1024), PLAIN)


def test_launches_overlap_for_few_rows_and_for_large_batches_on_one_architecture() -> None:
    for gpu in GPUS.values():
        with assume(gpu):
            for count, width, dtype in [
                (64, 128, DTYPE),
                (512, 2048, DTYPE),
                (512, 128, DTYPE),
                (512, 2048, torch.float16),
            ]:
                expected = gpu.can_overlap_launches and (
                    count == 64 or (gpu.architecture == 90 and width == 2048 and dtype == DTYPE)
                )
                assert overlap(rows(count, width, dtype))["OVERLAP"] == expected
            assert not overlap(rows(600, 2048))["OVERLAP"]


@pytest.mark.usefixtures("_nvrtc")
def test_products_are_one_compilation() -> None:
    norm = Norm(rows(1, 1024)[0], 1e-6)
    calls = [
        lambda: project(rows(512, 1024), rows(6144, 1024), gated=True),
        lambda: project_add(rows(512, 3072), rows(1024, 3072), rows(512, 1024), norm),
    ]
    assert record_launches(calls, GPUS[90]) == [Launch("wgmma_linear.cu:90a", "", 90)]


def test_the_source_has_all_tiles_and_no_others() -> None:
    text = (Path(wgmma_linear.__file__).parent / "wgmma_linear.cu").read_text()
    found = re.findall(r"^PRODUCT\(([\d, ]+)\)", text, re.MULTILINE)
    assert {f"product_{values.replace(', ', '_')}" for values in found} == {tile.name for tile in TILES}


@pytest.mark.parametrize("kind", SHAPES)
def test_every_supported_matrix_has_a_tile_that_fits(kind: int) -> None:
    for matrix_rows in (384, *(height for height, _ in SHAPES[kind])):
        for count in (end for ranges in LARGE_BATCHES.values() for each in ranges for end in (each[0], each[-1])):
            tile = choose_tile(count, matrix_rows, kind, 132)
            assert tile.kind == kind
            assert tile.divides(matrix_rows)
            assert tile.shared <= GPUS[90].shared
            assert tile.stages * wgmma_linear.DEPTH <= wgmma_linear.MIN_INPUTS


@needs_gpu((ARCHITECTURE,))
@pytest.mark.parametrize(
    ("kind", "shape", "count"),
    [(kind, shape, count) for kind, shapes in SHAPES.items() for shape, count in product(shapes, [65, 300, 512])],
)
def test_products_equal_their_reference_on_a_gpu(kind: int, shape: tuple[int, int], count: int) -> None:
    height, inputs = shape
    torch.manual_seed(0)

    def random(*size: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*size, device=DEVICE)).to(DTYPE)

    x, weight = random(count, inputs), random(height, inputs, scale=inputs**-0.5)
    part = slice(count // 4, None)  # a row's bits depend neither on its index nor on the other rows
    if kind == ADD:
        add, norm = random(count, height), Norm(random(height), 1e-6)
        expected = project_add_reference(x, weight, add, norm).rows
        for tile in tiles_of(kind, height):
            made = wgmma_linear.launch_add_tile(x, weight, add, norm, tile)
            again = wgmma_linear.launch_add_tile(x[part], weight, add[part], norm, tile)
            torch.testing.assert_close(made.rows.float(), expected.float(), atol=2e-2, rtol=2e-2)
            torch.testing.assert_close(made.gained, made.rows * norm.gain, atol=0, rtol=0)
            torch.testing.assert_close(made.squares.sum(1), made.rows.float().square().sum(1), atol=1e-2, rtol=1e-4)
            assert all(torch.equal(one[part], other) for one, other in zip(made[:3], again[:3], strict=True))
        return
    given = pre_norm_reference(x, Norm(random(inputs), 1e-6))
    given = given._replace(squares=x.float().square().unflatten(1, (-1, wgmma_linear.PART)).sum(-1))
    expected = project_reference(given, weight, kind == GATED)
    for tile in tiles_of(kind, height):
        found = wgmma_linear.launch_tile(given, weight, kind == GATED, tile)
        torch.testing.assert_close(found.float(), expected.float(), atol=2e-2, rtol=2e-2)
        some = PreNorm(given.rows[part], given.gained[part], given.squares[part], given.norm)
        assert torch.equal(found[part], wgmma_linear.launch_tile(some, weight, kind == GATED, tile))


def tiles_of(kind: int, matrix_rows: int) -> list[wgmma_linear.ProductTile]:
    return [tile for tile in TILES if tile.kind == kind and tile.divides(matrix_rows)]
