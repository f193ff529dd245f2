# SPDX-License-Identifier: Apache-2.0
"""The codec's last layer in CUDA C++, compiled for a CPU, against its reference implementation; no GPU is needed.

sample_conv_on_cpu.hpp replaces the instructions of the GPU, so this tests which thread loads, multiplies, adds up and
stores what, and that the state of a stream is replaced after it was read. The source is also compiled for every
architecture.
"""

import ctypes
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conformance import products_on_cpu
from conformance.cuda_on_cpu import NVCC, CpuSource, compile_for_cpu, needs_compiler, registers_of
from polyvox.kernels import sample_conv
from polyvox.kernels.conv import pack_conv
from polyvox.kernels.gpu import GPUS

SOURCE = Path(sample_conv.__file__).with_suffix(".cu")
MAX_ERROR = 1e-5  # of samples in [-1, 1], by the order of the sums
MAX_REGISTERS = 85  # per thread, so that three programs of 256 threads fit into a multiprocessor

noise = partial(products_on_cpu.noise, dtype=torch.float32)

PROGRAM = """
#include "sample_conv.cu"
typedef half_bits H;
typedef long long L;
static void call_sample_conv_96(void **p, int *n) {
  sample_conv_96((H *)p[0], (H *)p[1], (L *)p[2], (H *)p[3], (float *)p[4], (float *)p[5], (L *)p[6], n[0], n[1]);
}
LAUNCH(sample_conv_96)
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_for_cpu(PROGRAM, tmp_path_factory.mktemp("sample_conv"))


@pytest.fixture
def _on_cpu(compiled: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_conv, "source", lambda _: CpuSource(compiled))


def signal(batch: int, columns: int, seed: int) -> Tensor:
    return noise(batch, columns, sample_conv.CHANNELS, seed=seed).half().transpose(1, 2)


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize(("batch", "columns"), [(1, 480), (3, 240), (2, 241), (2, 6), (2, 250)])
def test_samples_equal_their_reference(batch: int, columns: int) -> None:
    weight, bias = noise(1, 96, 7, seed=1, scale=0.02).half(), noise(1, seed=2, scale=0.1)
    active, state = signal(batch, columns, 3), signal(batch + 2, 6, 4)
    slots, absent, before = torch.arange(batch).flip(0) + 1, torch.arange(batch) * 5, state.clone()
    wide = [part.double() for part in (active, before[slots], weight, bias)]
    expected = sample_conv.sample_conv_reference(*wide) * (torch.arange(columns) >= absent[:, None])
    weights = sample_conv.pack_samples(pack_conv(weight, bias, 1))
    found = sample_conv.sample_conv(active, weights, bias, state, slots, absent)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, atol=MAX_ERROR, rtol=0)
    assert torch.equal(state[slots], active[..., -6:])
    others = [0, batch + 1]
    assert torch.equal(state[others], before[others])


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
def test_samples_are_clamped_and_only_the_7_samples_of_a_column_that_is_not_finite_are_nan() -> None:
    weight, bias = noise(1, 96, 7, seed=1).half(), torch.zeros(1)
    active, state = signal(1, 300, 3), signal(1, 6, 4)
    active[0, 5, 236] = torch.nan
    found = sample_conv.sample_conv(
        active, sample_conv.pack_samples(pack_conv(weight, bias, 1)), bias, state, torch.zeros(1, dtype=torch.int64)
    )
    assert found.isnan().nonzero()[:, 1].tolist() == list(range(236, 243))
    assert found[~found.isnan()].abs().max() == 1


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
def test_a_stream_has_the_same_bits_in_any_chunking_and_batch() -> None:
    weight, bias = noise(1, 96, 7, seed=1, scale=0.02).half(), noise(1, seed=2, scale=0.1)
    weights, active = sample_conv.pack_samples(pack_conv(weight, bias, 1)), signal(2, 300, 3)
    whole = sample_conv.sample_conv(active, weights, bias, torch.zeros_like(signal(2, 6, 0)), torch.arange(2))
    state, slot = torch.zeros_like(signal(1, 6, 0)), torch.zeros(1, dtype=torch.int64)
    parts = [sample_conv.sample_conv(part, weights, bias, state, slot) for part in active[1:].split([244, 56], dim=2)]
    assert torch.equal(torch.cat(parts, dim=1), whole[1:])


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("architecture", GPUS)
def test_the_source_compiles_for_every_architecture(architecture: int, tmp_path: Path) -> None:
    registers = registers_of(SOURCE, architecture, tmp_path)
    assert [used <= MAX_REGISTERS for used in registers] == [True]
