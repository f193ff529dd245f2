# SPDX-License-Identifier: Apache-2.0
"""The samplers of code_draw.cu, compiled for a CPU, against their reference implementation; no GPU is needed."""

import ctypes
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance.cuda_on_cpu import NVCC, CpuSource, GuardedMemory, compile_for_cpu, needs_compiler, registers_of
from polyvox.kernels import code_draw
from polyvox.kernels.code_draw import CODES, SIZE, THREADS
from polyvox.kernels.gpu import GPUS
from polyvox.kernels.pre_norm import Norm, pre_norm_reference
from polyvox.kernels.sampler import DrawInputs, FirstCodeRules, draw_keyed_reference

PROGRAM = """
#include "code_draw.cu"
typedef long long L;
static void call_code_draw(void **p, int *n) {
  code_draw((bits16 *)p[0], (L *)p[1], (float *)p[2], (L *)p[3], (L *)p[4], (L *)p[5], (L *)p[6], n[0], n[1], n[2]);
}
LAUNCH(code_draw)
static void call_code_draw_embed(void **p, int *n) {
  code_draw_embed((bits16 *)p[0], (L *)p[1], (float *)p[2], (L *)p[3], (L *)p[4], (L *)p[5], (L *)p[6], (bits16 *)p[7],
                  (bits16 *)p[8], (bits16 *)p[9], (bits16 *)p[10], (float *)p[11], n[0], n[1], n[2]);
}
LAUNCH(code_draw_embed)
static void call_first_code_draw(void **p, int *n) {
  first_code_draw((bits16 *)p[0], (L *)p[1], (float *)p[2], (L *)p[3], (L *)p[4], (L *)p[5], (unsigned char *)p[6],
                  (L *)p[7], (L *)p[8], (L *)p[9], n[0], n[1], n[2], n[3], n[4], __uint_as_float(n[5]));
}
LAUNCH(first_code_draw)
// The threshold of each row of ranks [rows, THREADS, TOKENS + 1] for the row's count.
static void call_thresholds(void **p, int *) {
  static Exchange shared;
  unsigned rank[TOKENS + 1];
  const int row = blockIdx.x, thread = threadIdx.x;
  for (int i = 0; i <= TOKENS; i++) rank[i] = ((unsigned *)p[0])[(row * THREADS + thread) * (TOKENS + 1) + i];
  const unsigned found = threshold_of_largest(shared, rank, ((int *)p[1])[row], thread / 32, thread % 32);
  sync_program();
  if (thread == 0) ((unsigned *)p[2])[row] = found;
}
LAUNCH(thresholds)
extern "C" void set_many_rows(int value) { many_rows = value; }
extern "C" int quotients(const float *values, const float *divisors, float *made, int count, int error) {
  inverse_error = error;
  int num_fast = 0;
  for (int i = 0; i < count; i++) {
    const Divisor divisor = divisor_of(divisors[i]);
    Magnitudes magnitudes;
    magnitudes.add(values[i]);
    const bool fast = allows_fast_division(divisor) && magnitudes.allow_fast_division();
    num_fast += fast;
    made[i] = fast ? quotient<true>(values[i], divisor) : quotient<false>(values[i], divisor);
  }
  inverse_error = 0;
  return num_fast;
}
"""
# With 256 threads per program, three programs fit on each multiprocessor; MANY_ROWS counts on four of an H200.
MAX_REGISTERS, MAX_REGISTERS_OF_H200 = 80, 64
VOCAB, CONTROLS, END = 3072, 2048, 2150  # of code 0
# temperature, top_k, top_p, and the penalty, which only code 0 has
PARAMS = [
    (0.0, 0, 1.0, 1.0), (0.9, 50, 1.0, 1.0), (1.0, 0, 1.0, 1.0), (0.7, 1, 1.0, 1.0), (1.3, 5000, 0.8, 1.0),
    (0.9, 50, 0.5, 1.0), (2.0, 2047, 1e-6, 1.0), (0.0, 50, 0.5, 1.0), (1.0, 300, 0.95, 1.0),
]  # fmt: skip
FIRST_PARAMS = [
    (0.9, 50, 1.0, 1.05), (0.9, 50, 1.0, 1.0), (0.0, 0, 1.0, 1.05), (1.0, 0, 1.0, 1.05), (1.3, 7, 1.0, 2.0),
    (0.7, 1, 1.0, 0.5), (10.0, 3, 1.0, 1.05), (0.001, 20, 1.0, 10.0), (1.1, 2047, 1.0, 0.1), (1.0, 2048, 1.0, 1.3),
    (1.2, 2049, 1.0, 1.1), (0.9, 2050, 1.0, 1.05), (0.8, 5000, 0.8, 1.05), (0.9, 50, 0.5, 1.05), (2.0, 0, 1e-6, 1.05),
    (0.0, 50, 0.5, 1.2), (1.0, 300, 0.95, 1.0), (5.0, 4, 1.0, 3.0),
]  # fmt: skip


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_for_cpu(PROGRAM, tmp_path_factory.mktemp("code_draw"), "-O2")


@pytest.fixture(params=[False, True], ids=["few rows", "many rows"])
def _on_cpu(compiled: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """With noise before the filters, and after them."""
    compiled.set_many_rows(request.param)
    monkeypatch.setattr(code_draw, "source", lambda _: CpuSource(compiled, "code_draw.cu"))


def draws(rows: int, seed: int, choices: list[tuple[float, int, float, float]] = PARAMS) -> DrawInputs:
    """Rows in another order than their slots."""
    generator = torch.Generator().manual_seed(seed)

    def integers(*shape: int, high: int) -> Tensor:
        return torch.randint(0, high, shape, generator=generator)

    params = torch.tensor([choices[i % len(choices)] for i in range(rows)])
    slots = torch.randperm(rows, generator=generator)
    return DrawInputs(slots, params, integers(rows, 2, high=2**32), integers(rows, high=9), integers(rows, high=999))


def drawn(logits: Tensor, book: int, inputs: DrawInputs, first: FirstCodeRules | None = None) -> Tensor:
    """Codes in a column of three, of which nothing else is written."""
    codes = torch.full((len(logits), 3), -1)
    code_draw.launch(logits, book, inputs, codes[:, 1], first)
    assert (codes[:, ::2] == -1).all()
    return codes[:, 1]


def rules(inputs: DrawInputs, seed: int, seen: float = 0.1) -> FirstCodeRules:
    """Limits around the frames of the slots, so that some rows may not end, and the end of others has more weight."""
    generator, slots = torch.Generator().manual_seed(seed), len(inputs.frame)

    def near(frames: Tensor) -> Tensor:
        return frames + torch.randint(-60, 30, (slots,), generator=generator)

    by_slot = torch.rand(slots, VOCAB, generator=generator) < seen
    return FirstCodeRules(by_slot, near(inputs.frame), near(inputs.frame), 0.05, END, CONTROLS)


def first_logits(rows: int, scale: float, seed: int) -> Tensor:
    """Rows with a stride, whose end of speech is among the best."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, 2, VOCAB, generator=generator)
    logits[:, :, END] = 2.5 * scale
    return logits.bfloat16()[:, 1]


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("scale", [0.1, 3.0, 40.0])
def test_codes_equal_those_of_the_reference(scale: float) -> None:
    rows = 3 * len(PARAMS)
    generator = torch.Generator().manual_seed(int(scale))
    logits = (scale * torch.randn(rows, 2, CODES, generator=generator)).bfloat16()[:, 1]
    inputs = draws(rows, seed=int(10 * scale))
    for book in (1, 15):
        assert torch.equal(drawn(logits, book, inputs), draw_keyed_reference(logits, book, inputs))


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
def test_the_embeddings_are_those_of_the_codes() -> None:
    rows, generator = 2 * len(PARAMS), torch.Generator().manual_seed(5)
    logits, table = (3 * torch.randn(2, CODES, CODES, generator=generator)).bfloat16()
    table, norm = table[:, :SIZE].contiguous(), Norm(torch.randn(SIZE, generator=generator).bfloat16(), 1e-6)
    inputs, codes = draws(rows, seed=6), torch.full((rows, 3), -1)
    found = code_draw.launch_embedded(logits[:rows], 3, inputs, codes[:, 1], table, norm)
    assert torch.equal(codes[:, 1], draw_keyed_reference(logits[:rows], 3, inputs))
    assert (codes[:, ::2] == -1).all()
    expected = pre_norm_reference(table[codes[:, 1:2]], norm)
    assert torch.equal(found.rows, expected.rows)
    assert torch.equal(found.gained, expected.gained)
    torch.testing.assert_close(found.squares.sum(-1, keepdim=True), expected.squares)


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
def test_equal_logits_and_both_zeros_are_ties() -> None:
    inputs, generator = draws(18, seed=3), torch.Generator().manual_seed(4)
    logits = torch.randint(-2, 3, (18, CODES), generator=generator).bfloat16()
    logits[logits == 0] *= -1.0
    logits[:, ::3] = logits[:, ::3].abs()
    assert torch.equal(drawn(logits, 2, inputs), draw_keyed_reference(logits, 2, inputs))


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
def test_logits_that_are_not_finite_sample_a_valid_code() -> None:
    inputs = draws(9, seed=5)
    logits = torch.full((9, CODES), torch.nan).bfloat16()
    assert drawn(logits, 1, inputs).tolist() == [CODES - 1] * 9
    logits = torch.full((9, CODES), -torch.inf).bfloat16()
    logits[:, 77] = 1.0
    assert drawn(logits, 1, inputs).tolist() == [77] * 9


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("scale", [0.1, 3.0, 40.0])
def test_first_codes_equal_those_of_the_reference(scale: float) -> None:
    rows = 5 * len(FIRST_PARAMS)
    logits, inputs = first_logits(rows, scale, seed=int(scale)), draws(rows, int(10 * scale), FIRST_PARAMS)
    first = rules(inputs, seed=int(20 * scale))
    found = drawn(logits, 0, inputs, first)
    assert torch.equal(found, draw_keyed_reference(logits, 0, inputs, first))
    assert ((found < CONTROLS) | (found == END)).all()
    if scale == 0.1:  # the pressure on the end of speech exceeds the other differences
        assert 0 < (found == END).sum() < rows


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("seen", [0.0, 0.5, 1.0])
def test_ties_of_first_codes_are_kept_and_the_lowest_id_wins(seen: float) -> None:
    """Half of the rows have few logits, both zeros among them, the others adjacent ones, which rules change."""
    rows = 2 * len(FIRST_PARAMS)
    inputs, generator = draws(rows, 6, FIRST_PARAMS), torch.Generator().manual_seed(7)
    logits = torch.randint(-2, 3, (rows, VOCAB), generator=generator).bfloat16()
    logits[logits == 0] *= -1.0
    logits[:, ::3] = logits[:, ::3].abs()
    logits[1::2] = (3.5 + torch.randint(0, 40, (rows // 2, VOCAB), generator=generator) / 64).bfloat16()
    logits[::4, END] = 2.0
    first = replace(rules(inputs, 8, seen), soft_limit=torch.full((rows,), 9999))
    assert torch.equal(drawn(logits, 0, inputs, first), draw_keyed_reference(logits, 0, inputs, first))


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
def test_a_code_wins_a_tie_with_the_end_of_speech() -> None:
    inputs = draws(2, 5, [(0.0, 0, 1.0, 1.0)])
    first = replace(
        rules(inputs, 8, seen=0.0), min_frames=torch.zeros(2, dtype=torch.long), soft_limit=inputs.frame - 20
    )
    logits = torch.zeros(2, VOCAB).bfloat16()
    logits[0, 1900:] = 1.0
    logits[1, 1900:] = 1.0 - 2**-8
    assert drawn(logits, 0, inputs, first).tolist() == [END, END]
    logits[:, END] = 0.0  # with the pressure of 20 frames it is 1
    assert drawn(logits, 0, inputs, first).tolist() == [1900, END]


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
def test_first_logits_that_are_not_finite_sample_a_valid_code() -> None:
    choices = FIRST_PARAMS[1::2]
    rows = len(choices)
    inputs = draws(rows, 5, choices)
    early = replace(rules(inputs, 6), min_frames=torch.full((rows,), 9999))
    logits = torch.full((rows, VOCAB), torch.nan).bfloat16()
    assert drawn(logits, 0, inputs, early).tolist() == [CODES - 1] * rows
    late = replace(early, min_frames=torch.zeros(rows, dtype=torch.long))
    assert set(drawn(logits, 0, inputs, late).tolist()) <= {CODES - 1, END}
    logits = torch.full((rows, VOCAB), -torch.inf).bfloat16()
    for first in (early, late):
        assert torch.equal(drawn(logits, 0, inputs, first), draw_keyed_reference(logits, 0, inputs, first))
    logits[:, 77] = 1.0
    assert drawn(logits, 0, inputs, early).tolist() == [77] * rows
    logits[:, 78] = torch.inf
    logits[:, END] = -torch.inf
    without_top_p = inputs.params[inputs.slots, 2] == 1.0  # exp(inf - inf) has no sum
    found, expected = drawn(logits, 0, inputs, late), draw_keyed_reference(logits, 0, inputs, late)
    assert torch.equal(found[without_top_p], expected[without_top_p])
    logits[::2, 80:] = torch.nan
    found = drawn(logits, 0, inputs, late)
    assert ((found >= 0) & ((found < CODES) | (found == END))).all()


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
def test_values_of_any_magnitude_are_divided_exactly() -> None:
    """Some rows have zeros, subnormal logits or divisors for which the fast division is not exact."""
    choices = [(0.9, 4, 1.0, 1.05), (5000.0, 4, 1.0, 1.05), (1.1, 4, 1.0, 1e20), (1e-4, 4, 1.0, 1e-20)]
    rows = 6 * len(choices)
    inputs, generator = draws(rows, 9, choices), torch.Generator().manual_seed(10)
    powers = torch.tensor([2.0**-130, 2.0**-100, 2.0**-39, 1.0, 2.0**39, 2.0**120]).repeat_interleave(len(choices))
    logits = (powers[:, None] * torch.randn(rows, VOCAB, generator=generator)).bfloat16()
    logits[:, ::7] = 0
    first = rules(inputs, 11, seen=0.5)
    assert torch.equal(drawn(logits, 0, inputs, first), draw_keyed_reference(logits, 0, inputs, first))


@needs_compiler
@pytest.mark.parametrize("error", [-2, -1, 0, 1, 2])
def test_the_fast_division_is_that_of_ieee(error: int, compiled: ctypes.CDLL) -> None:
    """For every significand of a logit, random scores, and divisors of which many are close to powers of 2.

    Values so small or large that the fast division would not be exact are divided otherwise.
    """
    generator = np.random.default_rng(error + 2)
    count = 2_000_000
    divisors = generator.uniform(2.0**-10, 2.0**10, count).astype(np.float32)
    divisors[::2] = np.float32(1.05), np.float32(0.9), *generator.uniform(0.1, 10, count // 2 - 2).astype(np.float32)
    near = np.exp2(generator.integers(-10, 10, count // 5)).astype(np.float32).view(np.uint32)
    divisors[::5] = np.clip(
        (near + generator.integers(-4, 5, count // 5)).astype(np.uint32).view(np.float32), 2.0**-10, 2.0**10
    )
    values = (generator.uniform(1, 2, count) * np.exp2(generator.integers(-40, 40, count))).astype(np.float32)
    values[::3] = (values[::3].view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    values[::7] *= np.exp2(generator.integers(-90, 70, len(values[::7]))).astype(np.float32)
    values[::11] *= -1
    values[0] = 0
    # The approximate reciprocals of these divisors are not good enough if they are one or two units off.
    values[1:4] = float.fromhex("0x1.aaaaa6p+0")
    divisors[1:4] = [float.fromhex(f"0x1.ffff{digits}p+0") for digits in ("f6", "fa", "fe")]
    made = np.empty_like(values)
    pointers = (ctypes.c_void_p(array.ctypes.data) for array in (values, divisors, made))
    assert compiled.quotients(*pointers, ctypes.c_int(count), ctypes.c_int(error)) > 0.8 * count
    assert np.array_equal(made, values / divisors)


@needs_compiler
def test_thresholds_keep_exactly_the_largest_ranks_and_ties(compiled: ctypes.CDLL) -> None:
    generator = np.random.default_rng(3)
    own = 9  # ranks per thread; the ninth of all threads but the last is zero
    upper = [1, 5, 300, 1 << 16]  # distinct upper halves
    lower = [1, 2, 6, 20]
    counts = [1, 50, 1000, 2048]
    cases = [(most, least, count) for most in upper for least in lower for count in counts]
    cases += [(1 << 16, 1, count) for count in (2, 3, 49, 51, 2047)]
    ranks = np.zeros((len(cases), THREADS, own), np.uint32)
    for case, (num_upper, num_lower, _) in zip(ranks, cases, strict=True):
        uppers, lowers = (generator.integers(0, 1 << 16, size) for size in (num_upper, num_lower))
        codes = generator.choice(uppers, CODES) << 16 | generator.choice(lowers, CODES)
        case[:, :8] = np.maximum(codes, 1).reshape(THREADS, 8)
        case[-1, 8] = codes[0]
    wanted = np.array([count for _, _, count in cases], np.int32)
    found = np.zeros(len(cases), np.uint32)
    pointers = [array.ctypes.data for array in (ranks, wanted, found)]
    compiled.launch_thresholds(len(cases), THREADS, 0, (ctypes.c_void_p * 3)(*pointers), None)
    for case, count, threshold in zip(ranks.reshape(len(cases), -1), wanted, found, strict=True):
        assert ((case >= threshold) == (case >= np.sort(case)[-count])).all()


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("at_end", [False, True])
def test_nothing_outside_of_the_tensors_is_read_or_written(at_end: bool) -> None:
    memory, inputs = GuardedMemory(), draws(9, seed=8)
    logits = memory.copy(torch.randn(9, CODES, generator=torch.Generator().manual_seed(9)).bfloat16(), at_end)
    guarded = DrawInputs(*(memory.copy(part, at_end) for part in astuple(inputs)))
    codes = memory.copy(torch.full((9,), -1), at_end)
    code_draw.launch(logits, 4, guarded, codes)
    assert torch.equal(codes, draw_keyed_reference(logits, 4, inputs))


@needs_compiler
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("end", [CONTROLS, END, VOCAB - 1])
def test_no_first_code_reads_or_writes_outside_of_the_tensors(end: int, at_end: bool) -> None:
    memory, inputs = GuardedMemory(), draws(18, 8, FIRST_PARAMS)
    first = replace(rules(inputs, 12), end=end)
    logits = memory.copy(first_logits(18, 2.0, seed=9), at_end)
    guarded = DrawInputs(*(memory.copy(part, at_end) for part in astuple(inputs)))
    guarded_rules = replace(
        first,
        seen=memory.copy(first.seen.view(torch.int8), at_end).view(torch.bool),
        min_frames=memory.copy(first.min_frames, at_end),
        soft_limit=memory.copy(first.soft_limit, at_end),
    )
    codes = memory.copy(torch.full((18,), -1), at_end)
    code_draw.launch(logits, 0, guarded, codes, guarded_rules)
    assert torch.equal(codes, draw_keyed_reference(logits, 0, inputs, first))


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("architecture", GPUS)
def test_the_kernels_compile_without_spills(architecture: int, tmp_path: Path) -> None:
    registers = registers_of(Path(code_draw.__file__).with_suffix(".cu"), architecture, tmp_path)
    assert len(registers) == 3
    assert max(registers) <= (MAX_REGISTERS_OF_H200 if architecture == 90 else MAX_REGISTERS)
