# SPDX-License-Identifier: Apache-2.0
"""page_attention.cu, pair_attention.cu and prefetch_attention.cu, compiled for a CPU, against their references.

The files *_on_cpu.hpp beside this one replace the instructions of the GPU, so this tests which thread copies,
multiplies, adds up and stores what. The sources are also compiled for the architecture that runs them.
"""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from conformance.cuda_on_cpu import COMPILER, NVCC, CpuSource, GuardedMemory, compile_for_cpu, registers_of
from polyvox.kernels import page_attention, pair_attention, prefetch_attention
from polyvox.kernels.attention import paged_attention_reference
from polyvox.kernels.decode_attention import rotary_attention_reference
from polyvox.kernels.gpu import GPUS
from polyvox.kernels.kv_quantize import KVScales
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.prefetch_attention import NAMES
from polyvox.kernels.quantized_rows import is_quantized, quantize_rows
from polyvox.kernels.rotary import HeadRotation, rotary_store_reference

DIM, PAGE, KV_HEADS, MANY_PAGES = 128, 16, 2, 40
MAX_REGISTERS = 168  # per thread
SPLITS = (1, *(size for size, _ in prefetch_attention.CLUSTERS))
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
PREFETCH_PROGRAM = f"""
#include "prefetch_attention.cu"
{START}
typedef unsigned char *K;
#define TESTED(NAME, ITEM_SIZE, SPLITS) \\
  static void call_##NAME(void **p, int *n) {{ \\
    NAME((B *)p[0], (B *)p[1], (B *)p[2], (B *)p[3], (B *)p[4], (K)p[5], (K)p[6], (float *)p[7], (float *)p[8], \\
         (L)p[9], (L)p[10], (L)p[11], (B *)p[12], n[0], n[1], n[2], n[3], n[4], n[5], n[6], number(n[7]), \\
         number(n[8]), TensorMap{{(K)p[5], n[4], ITEM_SIZE}}, TensorMap{{(K)p[6], n[4], ITEM_SIZE}}); \\
  }} \\
  LAUNCH_CLUSTERS(NAME, SPLITS)
{"".join(f"TESTED(attention_{NAMES[dtype]}_{n}, {dtype.itemsize}, {n}) " for dtype in NAMES for n in SPLITS)}
"""
Launch = Callable[[Tensor, HeadRotation, PagedRows], Tensor]

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs g++ with C++20")


@pytest.fixture(scope="module")
def compiled_page(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_for_cpu(PAGE_PROGRAM, tmp_path_factory.mktemp("page_attention"))


@pytest.fixture(scope="module")
def compiled_pair(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_for_cpu(PAIR_PROGRAM, tmp_path_factory.mktemp("pair_attention"))


@pytest.fixture(scope="module")
def compiled_prefetch(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_for_cpu(PREFETCH_PROGRAM, tmp_path_factory.mktemp("prefetch_attention"))


@pytest.fixture
def attend_page(compiled_page: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Launch:
    monkeypatch.setattr(page_attention, "source", lambda _: CpuSource(compiled_page))
    return page_attention.launch


@pytest.fixture
def attend_pairs(compiled_pair: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Launch:
    monkeypatch.setattr(pair_attention, "source", lambda _: CpuSource(compiled_pair))
    return pair_attention.launch


@pytest.fixture
def attend_split(compiled_prefetch: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Launch]:
    """The launch with this many programs per row and KV head; three run at a time if it is one."""

    def launch(splits: int) -> Launch:
        programs = 3 if splits == 1 else 1024
        monkeypatch.setattr(prefetch_attention, "source", lambda _: CpuSource(compiled_prefetch))
        monkeypatch.setattr(prefetch_attention, "choose_splits", lambda *_: splits)
        monkeypatch.setattr(prefetch_attention, "gpu_of", lambda _: replace(GPUS[90], multiprocessors=programs))
        return prefetch_attention.launch

    return launch


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def noise(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def inputs(
    positions: list[int], pages_per_slot: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, HeadRotation, PagedRows]:
    """Rows at these positions, in slots and pages in any order; what is not yet written is NaN, also its scales."""
    rows = len(positions)
    num_slots, length = rows + 1, pages_per_slot * PAGE
    pages = num_slots * pages_per_slot
    keys, values = pools = [noise(pages, PAGE, KV_HEADS, DIM, seed=seed) for seed in (1, 2)]
    scales = None
    if is_quantized(dtype):
        (keys, of_keys), (values, of_values) = (quantize_rows(pool, dtype) for pool in pools)
        scales = KVScales(*(of_pool.transpose(1, 2).contiguous() for of_pool in (of_keys, of_values)))
    tables = torch.randperm(pages, generator=torch.Generator().manual_seed(3)).view(num_slots, pages_per_slot)
    slots = torch.randperm(num_slots, generator=torch.Generator().manual_seed(4))[:rows]
    for slot, position in zip(slots, positions, strict=True):
        unwritten = torch.arange(position, length)
        page, offset = tables[slot, unwritten // PAGE], unwritten % PAGE
        for pool in (keys, values):
            pool[page, offset] = torch.tensor(127 if dtype == torch.int8 else torch.nan).to(dtype)
        for of_pool in scales or ():
            of_pool[page, :, offset] = torch.nan
    angles = torch.randn(length, DIM // 2, generator=torch.Generator().manual_seed(5))
    cos = torch.cat([angles.cos(), angles.cos()], 1).bfloat16()
    sin = torch.cat([-angles.sin(), angles.sin()], 1).bfloat16()
    norms = 1 + noise(DIM, seed=6) / 4, 1 + noise(DIM, seed=7) / 4
    size = 4 * KV_HEADS * DIM
    qkv = noise(rows, size + 16, seed=8)[:, :size]  # with a row stride
    cache = PagedRows(keys, values, tables, slots, torch.tensor(positions), scales)
    return qkv, HeadRotation(cos, sin, norms, 1e-6), cache


def copied(cache: PagedRows) -> PagedRows:
    scales = None if cache.scales is None else KVScales(*(pool.clone() for pool in cache.scales))
    return replace(cache, keys=cache.keys.clone(), values=cache.values.clone(), scales=scales)


def assert_same_bits(found: PagedRows, expected: PagedRows) -> None:
    """Of keys, values and their scales, also where they are NaN."""
    ours, theirs = ((cache.keys, cache.values, *(cache.scales or ())) for cache in (found, expected))
    for pool, other in zip(ours, theirs, strict=True):
        assert torch.equal(pool.view(torch.uint8), other.view(torch.uint8))


def assert_equals_reference(
    launch: Launch, positions: list[int], pages_per_slot: int, dtype: torch.dtype = torch.bfloat16, alone: int = 2
) -> None:
    """Also that each of the first `alone` rows has the same bits alone."""
    qkv, rotation, given = inputs(positions, pages_per_slot, dtype)
    expected_cache, cache = copied(given), copied(given)
    expected = rotary_attention_reference(qkv, rotation, expected_cache)
    found = launch(qkv, rotation, cache)
    torch.testing.assert_close(found.float(), expected.float(), atol=2**-7, rtol=2**-6)
    assert_same_bits(cache, expected_cache)
    for row in range(min(alone, len(positions))):
        one = replace(copied(given), slots=given.slots[row : row + 1], positions=given.positions[row : row + 1])
        assert torch.equal(launch(qkv[row : row + 1], rotation, one)[0], found[row])


@needs_compiler
@pytest.mark.parametrize("positions", [[0, 1, 15], [7], [14, 3, 2, 9, 8]])
def test_attention_over_one_page_equals_its_reference(attend_page: Launch, positions: list[int]) -> None:
    assert_equals_reference(attend_page, positions, 1)


@needs_compiler
@pytest.mark.parametrize("splits", SPLITS)
@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("positions", [[5], [31, 0, 1, 15, 16, 17], [639, 256, 33]])
def test_attention_over_many_pages_equals_its_reference(
    attend_split: Callable[[int], Launch], splits: int, dtype: torch.dtype, positions: list[int]
) -> None:
    alone = len(positions) if splits in (1, 4) else 1
    assert_equals_reference(attend_split(splits), positions, MANY_PAGES, dtype, alone)


@needs_compiler
@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize(("splits", "position"), [(1, 639), (4, 1100), (8, 1100)])
def test_warps_that_use_their_shared_memory_again_equal_the_reference(
    attend_split: Callable[[int], Launch], splits: int, position: int, dtype: torch.dtype
) -> None:
    assert_equals_reference(attend_split(splits), [position], -(-(position + 1) // PAGE), dtype, alone=0)


@needs_compiler
@pytest.mark.parametrize("dtype", NAMES)
def test_sixteen_rows_equal_their_reference(attend_split: Callable[[int], Launch], dtype: torch.dtype) -> None:
    positions = [300, 0, 15, 32, 127, 128, 129, 2, 255, 256, 257, 48, 47, 1, 16, 200]
    assert_equals_reference(attend_split(1), positions, MANY_PAGES, dtype)


def assert_within_tensors(
    launch: Launch,
    positions: list[int],
    pages_per_slot: int,
    at_end: bool,
    pairs: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Reads and writes nothing outside of the tensors, which lie between pages without access.

    pairs: the first two rows of each slot.
    """
    memory = GuardedMemory()

    def guarded(values: Tensor) -> Tensor:
        copy = memory.copy(values.contiguous().view(torch.bfloat16), at_end)
        return copy.view(values.dtype).view(values.shape)

    qkv, rotation, cache = inputs(positions, pages_per_slot, dtype)
    if pairs:
        qkv = torch.cat([qkv, qkv])
        slots, two = cache.slots.repeat_interleave(2), torch.arange(2).repeat(len(positions))
        cache = replace(cache, slots=slots, positions=two)
    assert rotation.norms is not None
    norms = guarded(rotation.norms[0]), guarded(rotation.norms[1])
    rotation = HeadRotation(guarded(rotation.cos), guarded(rotation.sin), norms, rotation.eps)
    cache = PagedRows(
        guarded(cache.keys),
        guarded(cache.values),
        guarded(cache.tables),
        guarded(cache.slots),
        guarded(cache.positions),
        None if cache.scales is None else KVScales(*map(guarded, cache.scales)),
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
    attend_split: Callable[[int], Launch],
    at_end: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert_within_tensors(attend_page, [15, 0, 7], 1, at_end)
    for small in (128, 0):  # programs of one warp, and of four
        monkeypatch.setattr(pair_attention, "SMALL_BATCH_ROWS", small)
        assert_within_tensors(attend_pairs, [0, 0, 0], 1, at_end, pairs=True)
    for splits, dtype in product((1, 4), NAMES):
        positions = [MANY_PAGES * PAGE - 1, 0, 100]
        assert_within_tensors(attend_split(splits), positions, MANY_PAGES, at_end, dtype=dtype)


@needs_compiler
@pytest.mark.parametrize(("pairs", "small"), [(1, 128), (5, 128), (5, 0)])
def test_attention_of_pairs_equals_its_reference(
    attend_pairs: Launch, pairs: int, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_attention, "SMALL_BATCH_ROWS", small)
    _, rotation, given = inputs([0] * pairs, 1)  # nothing is written yet
    slots, positions = given.slots.repeat_interleave(2), torch.arange(2).repeat(pairs)
    cache = replace(given, slots=slots, positions=positions)
    expected_cache, qkv = copied(cache), noise(2 * pairs, 4 * KV_HEADS * DIM, seed=9)
    found = attend_pairs(qkv, rotation, cache)
    expected = paged_attention_reference(rotary_store_reference(qkv, rotation, expected_cache), expected_cache)
    torch.testing.assert_close(found.float(), expected.float(), atol=2**-7, rtol=2**-6)
    assert_same_bits(cache, expected_cache)


def test_few_rows_are_divided_among_the_multiprocessors() -> None:
    splits = {rows: prefetch_attention.choose_splits(rows * 8, GPUS[90]) for rows in (1, 2, 3, 4, 8, 9, 16)}
    assert splits == {1: 8, 2: 4, 3: 4, 4: 2, 8: 2, 9: 1, 16: 1}
    assert prefetch_attention.choose_splits(64, replace(GPUS[90], multiprocessors=114)) == 1


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize(
    ("module", "count"), [(page_attention, 1), (pair_attention, 1), (prefetch_attention, len(SPLITS) * len(NAMES))]
)
def test_every_kernel_compiles_and_fits_the_registers(module: ModuleType, count: int, tmp_path: Path) -> None:
    source = Path(str(module.__file__)).with_suffix(".cu")
    for architecture in module.ARCHITECTURES:
        registers = registers_of(source, architecture, tmp_path)
        assert len(registers) == count
        assert max(registers) <= MAX_REGISTERS
