# SPDX-License-Identifier: Apache-2.0
"""The kernel of attention_output.cu, compiled for a CPU, against its reference implementation; no GPU is needed.

cluster_on_cpu.hpp and bfloat16_on_cpu.hpp replace the instructions of the GPU, so this tests which thread loads,
multiplies, exchanges and stores what. The source is also compiled for the architecture that runs it.
"""

import ctypes
from pathlib import Path

import pytest
import torch

from conformance.cuda_on_cpu import NVCC, CpuSource, compile_for_cpu, needs_compiler, registers_of
from conformance.products_on_cpu import assert_close, noise
from paged_pools import by_head
from polyvox.kernels import attention_output, prefetch_vector
from polyvox.kernels.attention_output import DIM, HEADS, KV_HEADS, PAGE
from polyvox.kernels.decode_attention import rotary_attention_reference
from polyvox.kernels.fused_linear import project_add_reference
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.pre_norm import Norm
from polyvox.kernels.rotary import HeadRotation

SOURCE = Path(attention_output.__file__).with_suffix(".cu")
NUM_PROGRAMS = 2
MAX_REGISTERS = 112
INPUTS = HEADS * DIM

PROGRAM = """
#include "attention_output.cu"
typedef bits16 B;
typedef long long I;
static float number(int bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
#define PAGES \\
  (B *)p[0], (B *)p[1], (B *)p[2], (B *)p[3], (B *)p[4], (B *)p[5], (B *)p[6], (I *)p[7], (I *)p[8], (I *)p[9]
#define STRIDES n[0], n[1], n[2], n[3], number(n[4]), number(n[5])
#define OUTPUT(AT) \\
  (B *)p[AT], (B *)p[AT + 1], (B *)p[AT + 2], (B *)p[AT + 3], (B *)p[AT + 4], (float *)p[AT + 5]
#define PAGE(NAME) \\
  static void call_##NAME(void **p, int *n) { NAME(PAGES, OUTPUT(10), STRIDES, n[6]); } \\
  LAUNCH(NAME)
"""
CALL = f"PAGE(page_output_{attention_output.HEIGHT})\n"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_for_cpu(PROGRAM + CALL, tmp_path_factory.mktemp("attention_output"))


@pytest.fixture
def _on_cpu(compiled: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_output, "source", lambda _: CpuSource(compiled, "attention_output.cu"))
    monkeypatch.setattr(attention_output, "PROGRAMS", NUM_PROGRAMS)


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("position", [0, 1, 6, 8, 15])
def test_attention_over_a_page_and_its_projection_equal_their_reference(position: int) -> None:
    outputs = attention_output.HEIGHT * NUM_PROGRAMS
    weight, add = noise(outputs, INPUTS, seed=1, scale=INPUTS**-0.5), noise(1, 1, outputs, seed=2)
    norm = Norm(1 + noise(outputs, seed=3, scale=0.2), 1e-6)
    qkv = noise(1, (HEADS + 2 * KV_HEADS) * DIM, seed=4)
    angles = torch.rand(position + 1, DIM, generator=torch.Generator().manual_seed(5)) * 6
    norms = 1 + noise(DIM, seed=6, scale=0.2), 1 + noise(DIM, seed=7, scale=0.2)
    rotation = HeadRotation(angles.cos().bfloat16(), angles.sin().bfloat16(), norms, 1e-6)
    keys, values = (by_head(noise(3, PAGE, KV_HEADS, DIM, seed=seed)) for seed in (8, 9))
    keys[1, position:] = values[1, position:] = torch.nan  # not yet written
    keys[2] = values[2] = torch.nan

    def cache() -> PagedRows:
        tables = torch.tensor([[0], [1]])
        return PagedRows(keys.clone(), values.clone(), tables, torch.tensor([1]), torch.tensor([position]))

    there, expected_there = cache(), cache()
    found = attention_output.launch(qkv, rotation, there, weight, add, norm)
    attended = rotary_attention_reference(qkv, rotation, expected_there).flatten(1)
    expected = project_add_reference(attended[:, None], weight, add, norm)
    assert_close(found.rows, expected.rows)
    assert torch.equal(found.gained, found.rows * norm.gain)
    torch.testing.assert_close(found.squares.sum(-1), found.rows.float().square().sum(-1), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(there.values, expected_there.values, atol=0, rtol=0, equal_nan=True)
    torch.testing.assert_close(there.keys.float(), expected_there.keys.float(), atol=2**-6, rtol=2**-7, equal_nan=True)


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("architecture", prefetch_vector.ARCHITECTURES)
def test_the_kernel_compiles_and_fits_the_registers(architecture: int, tmp_path: Path) -> None:
    registers = registers_of(SOURCE, architecture, tmp_path)
    assert len(registers) == 1
    assert max(registers) <= MAX_REGISTERS
