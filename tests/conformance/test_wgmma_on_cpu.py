# SPDX-License-Identifier: Apache-2.0
"""The CUDA convolutions for sm_90, compiled for a CPU, against their reference implementations; no GPU is needed.

wgmma_on_cpu.hpp replaces the instructions of the GPU, so this tests the tiles, windows, stages, barriers and stores of
wgmma_conv.cu, and the packing and launch sizes of wgmma_conv.py.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from conformance import products_on_cpu
from conformance.cuda_on_cpu import compile_for_cpu, needs_compiler
from polyvox.kernels import conv, cuda_source, gpu, wgmma_conv
from polyvox.kernels.conv import PackedConv, causal_conv_reference, causal_upsample_reference, pack_conv, pack_upsample
from polyvox.kernels.snake import snake_coefficients, snake_reference

pytestmark = needs_compiler

noise = partial(products_on_cpu.noise, dtype=torch.float32)

PROGRAM = """
#include "wgmma_conv.cu"
typedef half_bits H;
typedef long long L;
#define UNIT(C) \\
  static void call_residual_unit_##C(void **p, int *n) { \\
    residual_unit_##C((H *)p[0], (H *)p[1], (H *)p[2], (L *)p[3], (H *)p[4], (float *)p[5], (H *)p[6], (H *)p[7], \\
                      (L *)p[8], n[0], n[1], n[2], n[3]); \\
  }
#define CONV(N) \\
  static void call_convolution_##N(void **p, int *n) { \\
    convolution_##N((H *)p[0], (H *)p[1], (L *)p[2], (H *)p[3], (float *)p[4], (H *)p[5], (H *)p[6], (H *)p[7], \\
                    (L *)p[8], n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8]); \\
  }
static void call_upsampling_192_96(void **p, int *n) {
  upsampling_192_96((H *)p[0], (H *)p[1], (L *)p[2], (H *)p[3], (float *)p[4], (H *)p[5], (H *)p[6], (L *)p[7], n[0],
                    n[1], n[2]);
}
UNIT(96)
UNIT(192)
CONV(192)
LAUNCH(residual_unit_96)
LAUNCH_CLUSTERS(residual_unit_192, CLUSTER)
LAUNCH_CLUSTERS(convolution_192, CLUSTER)
LAUNCH(upsampling_192_96)
"""
MAX_ERROR_DB = -60.0


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_for_cpu(PROGRAM, tmp_path_factory.mktemp("wgmma"), "-O2")


@pytest.fixture
def _on_cpu(compiled: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches run on the CPU, as on a GPU with two multiprocessors."""

    def launch(
        name: str, num_programs: int, threads: int, shared: int, arguments: Sequence[cuda_source.Argument]
    ) -> None:
        assert shared <= gpu.GPUS[90].shared
        given = [value for value in arguments if value is None or isinstance(value, Tensor)]
        pointers = [0 if value is None else value.data_ptr() for value in given]
        numbers = [value for value in arguments if isinstance(value, int)]
        getattr(compiled, f"launch_{name}")(
            num_programs, threads, shared,
            (ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_int * len(numbers))(*numbers),
        )  # fmt: skip

    monkeypatch.setattr(wgmma_conv.SOURCE, "launch", launch)
    monkeypatch.setattr(gpu, "_assumed", replace(gpu.GPUS[90], multiprocessors=2))
    monkeypatch.setattr(wgmma_conv, "update_history", conv.update_history_reference)


def signal(batch: int, columns: int, channels: int, seed: int) -> Tensor:
    return noise(batch, columns, channels, seed=seed).half().transpose(1, 2)


def error_db(found: Tensor, expected: Tensor) -> float:
    return 10 * ((found.double() - expected).square().mean() / expected.square().mean()).log10().item()


@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize(
    ("channels", "dilation", "batch", "columns", "keep"),
    [(96, 9, 2, 320, True), (96, 1, 1, 192, False), (192, 3, 2, 256, True), (192, 9, 1, 192, False)],
)
def test_a_residual_unit_equals_its_reference(
    channels: int, dilation: int, batch: int, columns: int, keep: bool
) -> None:
    """With one to three warpgroups, and with more tiles than programs."""
    weights = [noise(channels, channels, taps, seed=taps, scale=(taps * channels) ** -0.5).half() for taps in (7, 1)]
    biases = [noise(channels, seed=seed) for seed in (2, 3)]
    snakes = [(noise(channels, seed=seed, scale=0.3), noise(channels, seed=seed + 1, scale=0.3)) for seed in (4, 6)]
    x, active = signal(batch, columns, channels, 8), signal(batch, columns, channels, 9)
    state, slots = signal(batch + 1, 6 * dilation, channels, 10), torch.arange(batch).flip(0) + 1
    unused = state[0].clone()
    absent = torch.arange(batch) * 5
    wide = [tensor.double() for tensor in (*weights, *biases)]
    logarithms = [(alpha.double(), beta.double()) for alpha, beta in snakes]
    expected, after = wgmma_conv.residual_unit_reference(
        x.double(), active.double(), state[slots].double(), (wide[0], wide[2]), (wide[1], wide[3]),
        logarithms[0], logarithms[1], dilation,
    )  # fmt: skip
    convs = pack_conv(weights[0], biases[0], dilation), pack_conv(weights[1], biases[1], 1)
    packed = wgmma_conv.pack_unit(*convs, snake_coefficients(*snakes[0]), snake_coefficients(*snakes[1]))
    found, found_after = wgmma_conv.residual_unit(x, active, packed, dilation, state, slots, keep, absent)
    exists = (torch.arange(columns) >= absent[:, None])[:, None]
    assert error_db(found_after, after * exists) < MAX_ERROR_DB
    assert error_db(found, (expected if keep else after) * exists) < MAX_ERROR_DB
    assert torch.equal(state[slots], active[..., -6 * dilation :])
    assert torch.equal(state[0], unused)


@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize(
    ("inputs", "outputs", "taps", "dilation", "rate", "add"),
    [(64, 192, 7, 9, 1, False), (192, 192, 3, 1, 1, False), (128, 384, 1, 1, 1, True), (64, 96, 2, 1, 2, False)],
)
def test_a_large_convolution_equals_its_reference(
    inputs: int, outputs: int, taps: int, dilation: int, rate: int, add: bool
) -> None:
    """With a tile that no program stores, several windows and residuals, and a ring of weights that is used again."""
    batch, columns = 3, 192
    bias, snake = noise(outputs, seed=2), (noise(outputs, seed=3, scale=0.3), noise(outputs, seed=4, scale=0.3))
    shape = (inputs, outputs, taps * rate) if rate > 1 else (outputs, inputs, taps)
    weight = noise(*shape, seed=1, scale=(taps * inputs) ** -0.5).half()
    layer: PackedConv = pack_upsample(weight, bias, rate) if rate > 1 else pack_conv(weight, bias, dilation)
    x, slots = signal(batch, columns, inputs, 5), torch.arange(batch).flip(0)
    added = signal(batch, columns * rate, outputs, 6) if add else None
    state = signal(batch, layer.history, inputs, 7) if layer.history else None
    past = None if state is None else state[slots].double()
    if rate > 1:
        expected = causal_upsample_reference(x.double(), past, weight.double(), bias.double(), rate)
    else:
        expected = causal_conv_reference(x.double(), past, weight.double(), bias.double(), dilation)
    if added is not None:
        expected = expected + added.double()
    stages, absent = wgmma_conv.pack_convolution(layer, snake_coefficients(*snake)), torch.arange(batch) * rate
    expected = expected * (torch.arange(columns * rate) >= absent[:, None])[:, None]
    found, active = wgmma_conv.convolution(x, layer, stages, state, slots, added, absent=absent)
    assert error_db(found, expected) < MAX_ERROR_DB
    assert error_db(active, snake_reference(expected, *(part.double() for part in snake))) < MAX_ERROR_DB
    assert state is None or torch.equal(state[slots], x[..., -layer.history :])


@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize(
    ("batch", "columns", "rate", "multiprocessors", "keep"),
    [(2, 320, 3, 3, True), (1, 64, 3, 6, False), (3, 192, 2, 2, True), (1, 128, 3, 5, True)],
)
def test_the_last_upsampling_equals_its_reference(
    batch: int, columns: int, rate: int, multiprocessors: int, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one to three warpgroups, more tiles than programs, and tiles that do not fill the last programs."""
    monkeypatch.setattr(gpu, "_assumed", replace(gpu.GPUS[90], multiprocessors=multiprocessors))
    bias, snake = noise(96, seed=2), (noise(96, seed=3, scale=0.3), noise(96, seed=4, scale=0.3))
    weight = noise(192, 96, 2 * rate, seed=1, scale=384**-0.5).half()
    layer = pack_upsample(weight, bias, rate)
    x, state, slots = signal(batch, columns, 192, 5), signal(batch + 1, 1, 192, 7), torch.arange(batch).flip(0) + 1
    unused, absent = state[0].clone(), torch.arange(batch) * rate
    past = state[slots].double()
    expected = causal_upsample_reference(x.double(), past, weight.double(), bias.double(), rate)
    stages = wgmma_conv.pack_upsampling(layer, snake_coefficients(*snake))
    found, active = wgmma_conv.upsample(x, layer, stages, state, slots, keep, absent)
    exists = (torch.arange(columns * rate) >= absent[:, None])[:, None]
    after = snake_reference(expected, *(part.double() for part in snake))
    assert error_db(active, after * exists) < MAX_ERROR_DB
    assert error_db(found, (expected if keep else after) * exists) < MAX_ERROR_DB
    assert torch.equal(state[slots], x[..., -1:])
    assert torch.equal(state[0], unused)
