# SPDX-License-Identifier: Apache-2.0
"""page_attention.cu and pair_attention.cu, compiled for a CPU, against their references.

The files *_on_cpu.hpp beside this one replace the instructions of the GPU, so this tests which thread copies,
multiplies, adds up and stores what. The sources are also compiled for the architecture that runs them.
"""

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from conformance.cuda_on_cpu import NVCC, CpuSource, GuardedMemory, compile_for_cpu, needs_compiler, registers_of
from conformance.products_on_cpu import noise
from paged_pools import by_head, copied
from polyvox.kernels import page_attention, pair_attention
from polyvox.kernels.attention import paged_attention_reference
from polyvox.kernels.decode_attention import rotary_attention_reference
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.rotary import HeadRotation, rotary_store_reference

DIM, PAGE, KV_HEADS = 128, 16, 2
MAX_REGISTERS = 168  # per thread
POINTERS = (
    "(B *)p[0], (B *)p[1], (B *)p[2], (B *)p[3], (B *)p[4], (B *)p[5], (B *)p[6], (L)p[7], (L)p[8], (L)p[9], (B *)p[10]"
)
START = """
typedef bits16 B;
typedef const long long *L;
static float number(int bits) {
  float made;
  std::memcpy(&made, &bits, sizeof made);
  return made;
}
"""
PAGE_PROGRAM = f"""
#include "page_attention.cu"
{START}
static void call_page_attention(void **p, int *n) {{
  page_attention({POINTERS}, n[0], n[1], n[2], n[3], n[4], n[5], number(n[6]), number(n[7]));
}}
LAUNCH(page_attention)
"""
PAIR_PROGRAM = f"""
#include "pair_attention.cu"
{START}
static void call_pair_attention(void **p, int *n) {{
  pair_attention((B *)p[0], (B *)p[1], (B *)p[2], (B *)p[3], (B *)p[4], (B *)p[5], (B *)p[6], (L)p[7], (L)p[8],
                 (B *)p[9], n[0], n[1], n[2], n[3], n[4], n[5], n[6], number(n[7]), number(n[8]));
}}
LAUNCH(pair_attention)
"""
Launch = Callable[[Tensor, HeadRotation, PagedRows], Tensor]


@pytest.fixture(scope="module")
def compiled_page(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_for_cpu(PAGE_PROGRAM, tmp_path_factory.mktemp("page_attention"))


@pytest.fixture(scope="module")
def compiled_pair(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_for_cpu(PAIR_PROGRAM, tmp_path_factory.mktemp("pair_attention"))


@pytest.fixture
def attend_page(compiled_page: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Launch:
    monkeypatch.setattr(page_attention, "source", lambda _: CpuSource(compiled_page, "page_attention.cu"))
    return page_attention.launch


@pytest.fixture
def attend_pairs(compiled_pair: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Launch:
    monkeypatch.setattr(pair_attention, "source", lambda _: CpuSource(compiled_pair, "pair_attention.cu"))
    return pair_attention.launch


def inputs(positions: list[int]) -> tuple[Tensor, HeadRotation, PagedRows]:
    """Rows at these positions, in slots of one page in any order; what is not yet written is NaN."""
    rows = len(positions)
    pages = rows + 1
    keys, values = (by_head(noise(pages, PAGE, KV_HEADS, DIM, seed=seed)) for seed in (1, 2))
    tables = torch.randperm(pages, generator=torch.Generator().manual_seed(3))[:, None]
    slots = torch.randperm(pages, generator=torch.Generator().manual_seed(4))[:rows]
    for slot, position in zip(slots, positions, strict=True):
        keys[tables[slot, 0], position:] = values[tables[slot, 0], position:] = torch.nan
    angles = torch.randn(PAGE, DIM // 2, generator=torch.Generator().manual_seed(5))
    cos = torch.cat([angles.cos(), angles.cos()], 1).bfloat16()
    sin = torch.cat([-angles.sin(), angles.sin()], 1).bfloat16()
    norms = 1 + noise(DIM, seed=6) / 4, 1 + noise(DIM, seed=7) / 4
    size = 4 * KV_HEADS * DIM
    qkv = noise(rows, size + 16, seed=8)[:, :size]  # with a row stride
    cache = PagedRows(keys, values, tables, slots, torch.tensor(positions))
    return qkv, HeadRotation(cos, sin, norms, 1e-6), cache


def assert_same_bits(found: PagedRows, expected: PagedRows) -> None:
    """Of keys and values, also where they are NaN."""
    for pool, other in ((found.keys, expected.keys), (found.values, expected.values)):
        assert torch.equal(pool.view(torch.uint8), other.view(torch.uint8))


@needs_compiler
@pytest.mark.parametrize("positions", [[0, 1, 15], [7], [14, 3, 2, 9, 8]])
def test_attention_over_one_page_equals_its_reference(attend_page: Launch, positions: list[int]) -> None:
    """Also that a row has the same bits alone."""
    qkv, rotation, given = inputs(positions)
    expected_cache, cache = copied(given), copied(given)
    expected = rotary_attention_reference(qkv, rotation, expected_cache)
    found = attend_page(qkv, rotation, cache)
    torch.testing.assert_close(found.float(), expected.float(), atol=2**-7, rtol=2**-6)
    assert_same_bits(cache, expected_cache)
    for row in range(min(2, len(positions))):
        one = replace(copied(given), slots=given.slots[row : row + 1], positions=given.positions[row : row + 1])
        assert torch.equal(attend_page(qkv[row : row + 1], rotation, one)[0], found[row])


def assert_within_tensors(launch: Launch, positions: list[int], at_end: bool, pairs: bool = False) -> None:
    """Reads and writes nothing outside of the tensors, which lie between pages without access.

    pairs: the first two rows of each slot.
    """
    memory = GuardedMemory()

    def guarded(values: Tensor) -> Tensor:
        copy = memory.copy(values.contiguous().view(torch.bfloat16), at_end)
        return copy.view(values.dtype).view(values.shape)

    def guarded_pages(pool: Tensor) -> Tensor:
        return guarded(pool.transpose(1, 2)).transpose(1, 2)

    qkv, rotation, cache = inputs(positions)
    if pairs:
        qkv = torch.cat([qkv, qkv])
        slots, two = cache.slots.repeat_interleave(2), torch.arange(2).repeat(len(positions))
        cache = replace(cache, slots=slots, positions=two)
    assert rotation.norms is not None
    norms = guarded(rotation.norms[0]), guarded(rotation.norms[1])
    rotation = HeadRotation(guarded(rotation.cos), guarded(rotation.sin), norms, rotation.eps)
    cache = PagedRows(
        guarded_pages(cache.keys),
        guarded_pages(cache.values),
        guarded(cache.tables),
        guarded(cache.slots),
        guarded(cache.positions),
    )
    empty = torch.empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", lambda *size, **named: guarded(empty(*size, **named).fill_(torch.nan)))
        assert bool(launch(guarded(qkv), rotation, cache).isfinite().all())


@needs_compiler
@pytest.mark.parametrize("at_end", [False, True])
def test_nothing_outside_of_the_tensors_is_read_or_written(
    attend_page: Launch,
    attend_pairs: Launch,
    at_end: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert_within_tensors(attend_page, [15, 0, 7], at_end)
    for small in (128, 0):  # programs of one warp, and of four
        monkeypatch.setattr(pair_attention, "SMALL_BATCH_ROWS", small)
        assert_within_tensors(attend_pairs, [0, 0, 0], at_end, pairs=True)


@needs_compiler
@pytest.mark.parametrize(("pairs", "small"), [(1, 128), (5, 128), (5, 0)])
def test_attention_of_pairs_equals_its_reference(
    attend_pairs: Launch, pairs: int, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_attention, "SMALL_BATCH_ROWS", small)
    _, rotation, given = inputs([0] * pairs)  # nothing is written yet
    slots, positions = given.slots.repeat_interleave(2), torch.arange(2).repeat(pairs)
    cache = replace(given, slots=slots, positions=positions)
    expected_cache, qkv = copied(cache), noise(2 * pairs, 4 * KV_HEADS * DIM, seed=9)
    found = attend_pairs(qkv, rotation, cache)
    expected = paged_attention_reference(rotary_store_reference(qkv, rotation, expected_cache), expected_cache)
    torch.testing.assert_close(found.float(), expected.float(), atol=2**-7, rtol=2**-6)
    assert_same_bits(cache, expected_cache)


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize(("module", "count"), [(page_attention, 1), (pair_attention, 1)])
def test_every_kernel_compiles_and_fits_the_registers(module: ModuleType, count: int, tmp_path: Path) -> None:
    source = Path(str(module.__file__)).with_suffix(".cu")
    for architecture in module.ARCHITECTURES:
        registers = registers_of(source, architecture, tmp_path)
        assert len(registers) == count
        assert max(registers) <= MAX_REGISTERS
