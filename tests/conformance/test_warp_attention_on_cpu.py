# SPDX-License-Identifier: Apache-2.0
"""warp_attention.cu, compiled for a CPU, against the reference implementation; no GPU is needed.

warp_attention_on_cpu.hpp replaces the instructions of the GPU, so this tests which thread copies, multiplies and
stores what. The source is also compiled for the architecture that runs it.
"""

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conformance.cuda_on_cpu import NVCC, CpuSource, GuardedMemory, compile_for_cpu, needs_compiler, registers_of
from conformance.products_on_cpu import assert_close
from paged_pools import assert_stored, by_head, copied
from polyvox.kernels import warp_attention
from polyvox.kernels.decode_attention import rotary_attention_reference
from polyvox.kernels.kv_quantize import KVScales
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.quantized_rows import quantize_rows
from polyvox.kernels.rotary import HeadRotation
from polyvox.kernels.warp_attention import DIVISIONS, NAMES

SOURCE = Path(warp_attention.__file__).with_suffix(".cu")
DIM, PAGE, KV_HEADS = warp_attention.DIM, warp_attention.PAGE, warp_attention.KV_HEADS

PROGRAM = """
#include "warp_attention.cu"
typedef bits16 B;
typedef long long L;
#define CALL(NAME, SPLITS) \\
  static void call_##NAME(void **p, int *n) { \\
    float eps, scale; \\
    std::memcpy(&eps, n + 2, sizeof eps), std::memcpy(&scale, n + 3, sizeof scale); \\
    NAME((B *)p[0], (B *)p[1], (B *)p[2], (B *)p[3], (B *)p[4], (unsigned char *)p[5], (unsigned char *)p[6], \\
         (float *)p[7], (float *)p[8], (L *)p[9], (L *)p[10], (L *)p[11], (B *)p[12], n[0], n[1], eps, scale); \\
  } \\
  LAUNCH_CLUSTERS(NAME, SPLITS)
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    calls = "".join(f"CALL({each.name(dtype)}, {each.splits})\n" for dtype in NAMES for each in DIVISIONS)
    return compile_for_cpu(PROGRAM + calls, tmp_path_factory.mktemp("warp_attention"))


@pytest.fixture(params=DIVISIONS, ids=lambda division: f"{division.warps}_{division.splits}")
def _on_cpu(compiled: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Programs of each division run on a CPU."""
    monkeypatch.setattr(warp_attention, "source", lambda: CpuSource(compiled, "warp_attention.cu"))
    monkeypatch.setattr(warp_attention, "choose_division", lambda *_: request.param)


def inputs(
    positions: list[int], dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> tuple[torch.Tensor, HeadRotation, PagedRows]:
    """Rows at these positions; what was not written is NaN, or as large as integers can be."""
    made = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=made).bfloat16()

    rows, width = len(positions), max(positions) // PAGE + 1
    tables = 1 + torch.randperm((rows + 1) * width, generator=made).view(rows + 1, width)
    slots = torch.randperm(rows + 1, generator=made)[:rows]
    pages = int(tables.max()) + 1
    unwritten = 127 if dtype == torch.int8 else torch.nan
    keys, values = (by_head(torch.full((pages, PAGE, KV_HEADS, DIM), unwritten).to(dtype)) for _ in range(2))
    scales = KVScales(*(torch.full((pages, KV_HEADS, PAGE), torch.nan) for _ in range(2)))
    for slot, position in zip(slots.tolist(), positions, strict=True):
        for past in range(position):
            page, offset = tables[slot, past // PAGE], past % PAGE
            for pool, of_pool in ((keys, scales.keys), (values, scales.values)):
                row = noise(KV_HEADS, DIM)
                if dtype == torch.bfloat16:
                    pool[page, offset] = row
                else:
                    pool[page, offset], of_pool[page, :, offset] = quantize_rows(row, dtype)
    angles = torch.rand(max(positions) + 1, DIM // 2, generator=made) * 6
    cos, sin = torch.cat([angles, angles], 1).cos().bfloat16(), torch.cat([-angles.sin(), angles.sin()], 1).bfloat16()
    norms = 1 + noise(DIM) * 0.1, 1 + noise(DIM) * 0.1
    qkv = noise(rows, 4 * KV_HEADS * DIM + 8)[:, : 4 * KV_HEADS * DIM]
    cache = PagedRows(keys, values, tables, slots, torch.tensor(positions), scales if dtype != torch.bfloat16 else None)
    return qkv, HeadRotation(cos, sin, norms, 1e-6), cache


def pools(cache: PagedRows) -> list[torch.Tensor]:
    return [pool.float() for pool in (cache.keys, cache.values, *(cache.scales or ()))]


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("positions", [[0], [15, 16, 17], [3, 70, 31, 0, 32, 5], [1100, 20], [90, 47]])
def test_attention_equals_its_reference(dtype: torch.dtype, positions: list[int]) -> None:
    qkv, rotation, cache = inputs(positions, dtype)
    expected_cache = copied(cache)
    found = warp_attention.launch(qkv, rotation, cache)
    expected = rotary_attention_reference(qkv, rotation, expected_cache)
    assert_close(found, expected)
    assert_stored(cache, expected_cache)


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("dtype", NAMES)
def test_a_row_has_the_same_bits_in_any_batch(dtype: torch.dtype) -> None:
    qkv, rotation, cache = inputs([40, 3, 17, 64, 33], dtype)
    first = copied(cache)
    together = warp_attention.launch(qkv, rotation, first)
    again = copied(cache)
    assert torch.equal(warp_attention.launch(qkv, rotation, again), together)
    for pool, other in zip(pools(first), pools(again), strict=True):
        assert torch.equal(pool.nan_to_num(-1), other.nan_to_num(-1))
    order = torch.tensor([3, 1])
    some = replace(copied(cache), slots=cache.slots[order], positions=cache.positions[order])
    assert torch.equal(warp_attention.launch(qkv[order], rotation, some), together[order])


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("dtype", NAMES)
def test_nothing_outside_of_the_tensors_is_read_or_written(
    dtype: torch.dtype, at_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = GuardedMemory()

    def guarded(values: torch.Tensor) -> torch.Tensor:
        bits = memory.copy(values.contiguous().view(torch.bfloat16), at_end)
        return bits.view(values.dtype).view(values.shape)

    qkv, given, cache = inputs([31, 3, 16, 559], dtype)  # a warp reads 32 entries of a table at once
    assert given.norms is not None
    given = HeadRotation(
        guarded(given.cos), guarded(given.sin), (guarded(given.norms[0]), guarded(given.norms[1])), 1e-6
    )
    scales = None if cache.scales is None else KVScales(*map(guarded, cache.scales))
    keys, values = (guarded(pool.transpose(1, 2)).transpose(1, 2) for pool in (cache.keys, cache.values))
    tables, slots, positions = guarded(cache.tables), guarded(cache.slots), guarded(cache.positions)
    cache = PagedRows(keys, values, tables, slots, positions, scales)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **named: guarded(empty(*size, **named).fill_(torch.nan)))
    assert bool(warp_attention.launch(guarded(qkv), given, cache).isfinite().all())


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_every_kernel_compiles_and_none_spills(tmp_path: Path) -> None:
    assert len(registers_of(SOURCE, warp_attention.ARCHITECTURE, tmp_path)) == len(NAMES) * len(DIVISIONS)
