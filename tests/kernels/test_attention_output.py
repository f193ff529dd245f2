# SPDX-License-Identifier: Apache-2.0
"""Which rows attention_output.py supports, and its results on a GPU: POLYVOX_TEST_DEVICE=cuda.

tests/conformance/test_attention_output_on_cpu.py runs its source on a CPU.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from conftest import DEVICE
from gpu_only import needs_gpu
from paged_pools import by_head
from polyvox.kernels import attention_output, prefetch_vector
from polyvox.kernels.attention_output import DIM, HEADS, KV_HEADS, PAGE
from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.decode_attention import rotary_attention_reference
from polyvox.kernels.fused_linear import project_add_reference
from polyvox.kernels.gpu import GPUS, assume
from polyvox.kernels.launches import META
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.pre_norm import Norm
from polyvox.kernels.products import PROGRAMS
from polyvox.kernels.quantized_matrix import quantize_matrix
from polyvox.kernels.rotary import HeadRotation

PREDICTOR, TALKER = 1024, 2048  # outputs of the projection


@pytest.fixture
def _nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaSource, "available", lambda _: True)


def random(*size: int, device: torch.device | str, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(*size, device=device)).to(torch.bfloat16)


def rotation(positions: int, device: torch.device | str) -> HeadRotation:
    angles = 6 * torch.rand(positions, DIM, device=device)
    norms = 1 + random(DIM, device=device, scale=0.2), 1 + random(DIM, device=device, scale=0.2)
    return HeadRotation(angles.cos().bfloat16(), angles.sin().bfloat16(), norms, 1e-6)


def cache(pages: int, position: int, device: torch.device | str, rows: int = 1) -> PagedRows:
    keys, values = (by_head(random(pages, PAGE, KV_HEADS, DIM, device=device)) for _ in range(2))
    tables = torch.arange(pages, device=device).expand(rows, -1).contiguous()
    return PagedRows(
        keys, values, tables, torch.arange(rows, device=device), torch.full((rows,), position, device=device)
    )


def is_supported(outputs: int, pages: int, rows: int = 1) -> bool:
    qkv, weight = (
        random(*size, device=META) for size in ((rows, (HEADS + 2 * KV_HEADS) * DIM), (outputs, HEADS * DIM))
    )
    return attention_output.supports(qkv, rotation(pages * PAGE, META), cache(pages, 0, META, rows), weight)


@pytest.mark.usefixtures("_nvrtc")
def test_the_predictors_page_of_one_stream_is_supported_on_hopper() -> None:
    for gpu in GPUS.values():
        with assume(gpu):
            assert is_supported(PREDICTOR, 1) == (gpu.architecture == 90)
            assert not is_supported(PREDICTOR, 2)
            assert not is_supported(PREDICTOR, 1, rows=2)
            assert not is_supported(TALKER, 1)


@pytest.mark.usefixtures("_nvrtc")
def test_quantised_weights_and_caches_and_heads_without_norms_are_not_supported() -> None:
    qkv, weight = random(1, (HEADS + 2 * KV_HEADS) * DIM, device=META), random(PREDICTOR, HEADS * DIM, device=META)
    turned, pages = rotation(PAGE, META), cache(1, 0, META)
    assert attention_output.supports(qkv, turned, pages, weight)
    quantized = quantize_matrix(torch.ones(PREDICTOR, HEADS * DIM), torch.int8)
    assert not attention_output.supports(qkv, turned, pages, quantized)
    int8 = replace(pages, keys=pages.keys.to(torch.int8), values=pages.values.to(torch.int8))
    assert not attention_output.supports(qkv, turned, int8, weight)
    assert not attention_output.supports(qkv, replace(turned, norms=None), pages, weight)


@needs_gpu(prefetch_vector.ARCHITECTURES, PROGRAMS)
@pytest.mark.parametrize("position", [0, 5, 15])
def test_attention_and_its_projection_equal_their_reference_on_a_gpu(position: int) -> None:
    torch.manual_seed(0)
    qkv = random(1, (HEADS + 2 * KV_HEADS) * DIM, device=DEVICE)
    weight = random(PREDICTOR, HEADS * DIM, device=DEVICE, scale=(HEADS * DIM) ** -0.5)
    turned, add = rotation(PAGE, DEVICE), random(1, PREDICTOR, device=DEVICE)
    norm = Norm(1 + random(PREDICTOR, device=DEVICE, scale=0.2), 1e-6)
    there = cache(1, position, DEVICE)
    expected_there = replace(there, keys=there.keys.clone(), values=there.values.clone())
    assert attention_output.supports(qkv, turned, there, weight)
    found = attention_output.launch(qkv, turned, there, weight, add, norm)
    attended = rotary_attention_reference(qkv, turned, expected_there).flatten(1)
    expected = project_add_reference(attended, weight, add, norm)
    torch.testing.assert_close(found.rows.float(), expected.rows.float(), atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(there.keys.float(), expected_there.keys.float(), atol=2e-2, rtol=2e-2)
    assert torch.equal(there.values, expected_there.values)
    assert torch.equal(attention_output.launch(qkv, turned, there, weight, add, norm).rows, found.rows)
