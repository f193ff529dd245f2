# SPDX-License-Identifier: Apache-2.0
"""The kernels of talker and predictor on a GPU in bfloat16: checked against their references, and timed.

    python benchmarks/kernels.py [--batch 1,64,512] [--context 256] [--prompt 32] [--only attention,norm]

Shapes are those of the 1.7B model. A time is the median of replays of a CUDA graph of ten calls, per call, with that of
the reference implementation in brackets; TB/s is the minimum memory traffic (small batches stay in the GPU's cache).
`error` is the largest difference from the reference, relative to the reference's largest value (for draws: the share of
different codes, if there is more than one), over all batches; `rows` says whether rows in another order, or prompts
without their first rows, which an earlier call has stored, give the same bits. Prompts are as many as the batch, of at
most 2,048 rows together. Ends with status 1 if a line failed, has a larger error than MAX_ERROR, or rows with other
bits; of `linear`, the library's products, only a failure counts.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isfinite, isnan
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.cuda_timing import median_replay_ms

from polyvox import kernels
from polyvox.kernels.attention import paged_attention
from polyvox.kernels.cache_attention import attend_decode
from polyvox.kernels.gpu import gpu_of
from polyvox.kernels.kv_quantize import KVScales
from polyvox.kernels.next_inputs import NextText, next_inputs
from polyvox.kernels.norm import add_rms_norm, rms_norm
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.prefill_attention import prompt_attention
from polyvox.kernels.quantized_rows import dequantize_rows, is_quantized, quantize_rows, supports
from polyvox.kernels.rotary import HeadRotation, rotary_store
from polyvox.kernels.sampler import DrawInputs, FirstCodeRules, draw_keyed
from polyvox.kernels.silu_mul import silu_mul
from polyvox.models.paged_kv import KVShape
from polyvox.tts import QUANTIZED_DTYPES

CALLS, REPLAYS = 10, 30
PAGE, FRAME = 16, 16
HEADS, KV_HEADS, DIM = 16, 8, 128
TALKER, PREDICTOR = (2048, 6144), (1024, 3072)  # hidden and intermediate size
VOCAB, CODES = 3072, 2048
TEXT_VOCAB, GIVEN_ROWS = 151_936, 16
MAX_PROMPT_ROWS = 2048  # of a prefill
# A float8 key whose norm differs in the last bit may be the next value, up to 12 % away.
MAX_ERROR, MAX_ERROR_FP8 = 2e-2, 0.13
DTYPE, DEVICE = torch.bfloat16, torch.device("cuda")


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One call of a kernel. Each tensor in `rows` has one row per row of the result."""

    rows: tuple[Tensor, ...]
    call: Callable[..., Tensor]
    nbytes: int  # minimum memory traffic
    others: Tensor | None = None  # rows that must have the same bits without the others; all in a random order if None


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(DTYPE)


class Context:
    """Streams with the same context length, and one row of each at its last position."""

    def __init__(self, batch: int, context: int, page: int, kv_dtype: torch.dtype) -> None:
        pages = -(-context // page)
        # By head, as in the KV cache of a GPU.
        self.keys, self.values = (normal(batch * pages, KV_HEADS, page, DIM).transpose(1, 2) for _ in range(2))
        self.position_bytes = KVShape(1, KV_HEADS, DIM).position_bytes(kv_dtype)
        self.scales: KVScales | None = None
        if is_quantized(kv_dtype):
            (self.keys, keys), (self.values, values) = (
                quantize_rows(pool, kv_dtype) for pool in (self.keys, self.values)
            )
            self.scales = KVScales(*(scales.transpose(1, 2).contiguous() for scales in (keys, values)))
        self.tables = torch.randperm(batch * pages, device=DEVICE).view(batch, pages)
        self.slots = torch.arange(batch, device=DEVICE)
        self.positions = torch.full((batch,), context - 1, device=DEVICE)

    def rows(self, slots: Tensor, positions: Tensor) -> PagedRows:
        return PagedRows(self.keys, self.values, self.tables, slots, positions, self.scales)


def head_rotation(context: int) -> HeadRotation:
    return HeadRotation(normal(context, DIM), normal(context, DIM), (normal(DIM), normal(DIM)), 1e-6)


def attention(batch: int, context: int, page: int, kv_dtype: torch.dtype = DTYPE) -> Case:
    past = Context(batch, context, page, kv_dtype)

    def call(q: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        return paged_attention(q, past.rows(slots, positions))

    nbytes = batch * (context * past.position_bytes + 2 * HEADS * DIM * 2)
    return Case((normal(batch, HEADS, DIM), past.slots, past.positions), call, nbytes)


def prompt(batch: int, size: int, kv_dtype: torch.dtype = DTYPE) -> Case:
    """Rotary embedding, store and attention of the rows of whole prompts of this size."""
    prompts = max(1, min(batch, MAX_PROMPT_ROWS // size))
    past = Context(prompts, size, PAGE, kv_dtype)
    rotation = head_rotation(size)

    def call(qkv: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        return prompt_attention(qkv, rotation, past.rows(slots, positions))

    heads = HEADS + 2 * KV_HEADS
    positions = torch.arange(size, device=DEVICE).repeat(prompts)
    rows = normal(prompts * size, heads * DIM), past.slots.repeat_interleave(size), positions
    nbytes = prompts * size * (past.position_bytes + (HEADS + heads) * DIM * 2)
    return Case(rows, call, nbytes, torch.arange(size // 3, prompts * size, device=DEVICE))


def rotary(batch: int, context: int, page: int, kv_dtype: torch.dtype = DTYPE) -> Case:
    past = Context(batch, context, page, kv_dtype)
    rotation = head_rotation(context)

    def call(qkv: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        return rotary_store(qkv, rotation, past.rows(slots, positions))

    size = (HEADS + 2 * KV_HEADS) * DIM
    nbytes = batch * ((size + HEADS * DIM) * 2 + past.position_bytes)
    return Case((normal(batch, size), past.slots, past.positions), call, nbytes)


def stored(batch: int, context: int, page: int, kv_dtype: torch.dtype) -> Case:
    """The keys and values that the launch above stores in a quantised cache, read back."""
    past = Context(batch, context, page, kv_dtype)
    rotation = head_rotation(context)

    def call(qkv: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        assert past.scales is not None
        rotary_store(qkv, rotation, past.rows(slots, positions))
        own, offset = past.tables[slots, positions // page], positions % page
        pools = ((past.keys, past.scales.keys), (past.values, past.scales.values))
        return torch.cat([dequantize_rows(p[own, offset], s[own, :, offset], torch.float32) for p, s in pools], dim=1)

    size = (HEADS + 2 * KV_HEADS) * DIM
    return Case((normal(batch, size), past.slots, past.positions), call, batch * (size * 2 + 2 * past.position_bytes))


def decode(batch: int, context: int, page: int, kv_dtype: torch.dtype = DTYPE) -> Case:
    """Rotary embedding, store and attention in one launch."""
    past = Context(batch, context, page, kv_dtype)
    rotation = head_rotation(context)

    def call(qkv: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        return attend_decode(qkv, rotation, past.rows(slots, positions))

    rows = normal(batch, (HEADS + 2 * KV_HEADS) * DIM), past.slots, past.positions
    return Case(rows, call, batch * (context * past.position_bytes + (2 * HEADS + 2 * KV_HEADS) * DIM * 2))


def norm(batch: int, size: int) -> Case:
    weight = normal(size)
    return Case((normal(batch, size),), lambda x: rms_norm(x, weight, 1e-6), 2 * batch * size * 2)


def add_norm(batch: int, size: int) -> Case:
    weight = normal(size)
    rows = normal(batch, size), normal(batch, size)
    return Case(rows, lambda x, residual: add_rms_norm(x, residual, weight, 1e-6)[1], 4 * batch * size * 2)


def gate(batch: int, size: int) -> Case:
    return Case((normal(batch, 2 * size),), silu_mul, 3 * batch * size * 2)


def linear(batch: int, inputs: int, outputs: int) -> Case:
    """F.linear, for comparison: the matrix products between the kernels."""
    weight = normal(outputs, inputs)
    nbytes = (inputs * outputs + batch * (inputs + outputs)) * 2
    return Case((normal(batch, inputs),), lambda x: F.linear(x, weight), nbytes)


def draws(batch: int, vocab: int, first: bool, top_p: float = 1.0) -> Case:
    def integers(high: int, *shape: int) -> Tensor:
        return torch.randint(high, (batch, *shape), device=DEVICE)

    params = torch.tensor([0.9, 50, top_p, 1.05], device=DEVICE).expand(batch, 4).contiguous()
    key, segment, frame = integers(2**32, 2), integers(9), integers(1000)
    rules = None
    if first:
        seen = torch.rand(batch, vocab, device=DEVICE) < 0.1
        rules = FirstCodeRules(seen, integers(500), integers(500), 0.05, vocab - 900, vocab - 1024)

    def call(logits: Tensor, slots: Tensor) -> Tensor:
        return draw_keyed(logits, 0 if first else 7, DrawInputs(slots, params, key, segment, frame), rules)

    rows = 3 * normal(batch, vocab), torch.arange(batch, device=DEVICE)
    return Case(rows, call, batch * vocab * (3 if first else 2))


def inputs(batch: int) -> Case:
    """The kernel writes to the slots, whose rows are compared."""
    size, ring = TALKER[0], 64
    tables = normal(VOCAB, size), normal(FRAME - 1, CODES, size)
    end, frame = (torch.randint(200, (batch,), device=DEVICE) for _ in range(2))
    ids = torch.randint(TEXT_VOCAB, (batch, ring), device=DEVICE)
    text = NextText(normal(TEXT_VOCAB, size), 0, ids, end, normal(batch, GIVEN_ROWS, size))
    out = normal(batch, size)

    def call(codes: Tensor, slots: Tensor) -> Tensor:
        next_inputs(codes, *tables, slots, frame, text, out)
        return out[slots]

    rows = torch.randint(CODES, (batch, FRAME), device=DEVICE), torch.arange(batch, device=DEVICE)
    return Case(rows, call, batch * (FRAME + 2) * size * 2)


def lines(context: int, prompt_rows: int) -> dict[str, Callable[[int], Case]]:
    architecture = gpu_of(torch.empty(0, device=DEVICE).device).architecture
    kv_dtypes = {name: dtype for name, dtype in QUANTIZED_DTYPES.items() if supports(dtype, architecture)}
    return {
        f"attention, context {context}": lambda b: attention(b, context, PAGE),
        "attention, context 2,048": lambda b: attention(b, 2048, PAGE),
        "attention, one frame": lambda b: attention(b, FRAME, FRAME),
        f"prompts of {prompt_rows} rows": lambda b: prompt(b, prompt_rows),
        **{
            f"prompts, KV cache {name}": partial(prompt, size=prompt_rows, kv_dtype=kv_dtype)
            for name, kv_dtype in kv_dtypes.items()
        },
        f"rotary and store, context {context}": lambda b: rotary(b, context, PAGE),
        f"fused decode, context {context}": lambda b: decode(b, context, PAGE),
        "fused decode, one frame": lambda b: decode(b, FRAME, FRAME),
        **{
            f"KV cache {name}: {what}": partial(make, context=context, page=PAGE, kv_dtype=kv_dtype)
            for name, kv_dtype in kv_dtypes.items()
            for what, make in {
                "attention": attention,
                "rotary and store": rotary,
                "stored rows": stored,
                "fused decode": decode,
            }.items()
        },
        "norm 2,048": lambda b: norm(b, TALKER[0]),
        "add and norm 2,048": lambda b: add_norm(b, TALKER[0]),
        "add and norm 1,024": lambda b: add_norm(b, PREDICTOR[0]),
        "gate 6,144": lambda b: gate(b, TALKER[1]),
        "gate 3,072": lambda b: gate(b, PREDICTOR[1]),
        "next inputs": inputs,
        "draw code 0": lambda b: draws(b, VOCAB, first=True),
        "draw a residual code": lambda b: draws(b, CODES, first=False),
        "draw with top-p 0.9": lambda b: draws(b, CODES, first=False, top_p=0.9),
        "linear, talker qkv": lambda b: linear(b, TALKER[0], (HEADS + 2 * KV_HEADS) * DIM),
        "linear, talker o": lambda b: linear(b, HEADS * DIM, TALKER[0]),
        "linear, talker gate and up": lambda b: linear(b, TALKER[0], 2 * TALKER[1]),
        "linear, talker down": lambda b: linear(b, TALKER[1], TALKER[0]),
        "linear, predictor qkv": lambda b: linear(b, PREDICTOR[0], (HEADS + 2 * KV_HEADS) * DIM),
        "linear, predictor o": lambda b: linear(b, HEADS * DIM, PREDICTOR[0]),
        "linear, predictor gate and up": lambda b: linear(b, PREDICTOR[0], 2 * PREDICTOR[1]),
        "linear, predictor down": lambda b: linear(b, PREDICTOR[1], PREDICTOR[0]),
        "linear, predictor head": lambda b: linear(b, PREDICTOR[0], CODES),
    }


def compare(case: Case, batch: int) -> tuple[float, bool]:
    """The error against the reference, and whether the rows have the same bits in another order, or without some."""
    order = torch.randperm(batch, device=DEVICE) if case.others is None else case.others
    result, permuted = case.call(*case.rows), case.call(*(rows[order] for rows in case.rows))
    with kernels.disabled():
        reference = case.call(*case.rows)
    if result.is_floating_point():
        error = float((result.float() - reference.float()).abs().max() / reference.float().abs().max())
    else:
        different = result != reference
        error = float(different.float().mean()) if different.sum() > 1 else 0.0  # one may be a tie
    return error, torch.equal(permuted, result[order])


def microseconds(call: Callable[[], object]) -> float:
    """Time of one call, in a CUDA graph with several calls."""

    def call_repeatedly() -> None:
        for _ in range(CALLS):
            call()

    return 1000 * median_replay_ms(call_repeatedly, REPLAYS) / CALLS


@dataclass(frozen=True, slots=True)
class Measurement:
    """A line of the table."""

    cells: list[str]
    errors: list[float]
    same_rows: bool

    @property
    def error(self) -> float:
        return max(self.errors, key=lambda error: (isnan(error), error))

    def passes(self, max_error: float) -> bool:
        return isfinite(self.error) and self.error <= max_error and self.same_rows

    def __str__(self) -> str:
        return f"{' '.join(self.cells)} {self.error:.0e} {'same' if self.same_rows else 'DIFFERENT'}"


def measure(make: Callable[[int], Case], batches: list[int], has_reference: bool) -> Measurement:
    cells, errors, same = [], [], True
    for batch in batches:
        torch.manual_seed(batch)
        case = make(batch)
        error, rows = compare(case, batch)
        errors.append(error)
        same = same and rows
        took = microseconds(partial(case.call, *case.rows))
        cell = f"{took:7.1f} {case.nbytes / took / 1e6:5.2f}"
        if has_reference:
            with kernels.disabled():
                cell += f" [{microseconds(partial(case.call, *case.rows)):8.1f}]"
        cells.append(f"{cell:<25}")
        del case
        torch.cuda.empty_cache()
    return Measurement(cells, errors, same)


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", default="1,64,512", help="comma-separated batch sizes")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=32, help=f"rows of a prompt, 1 to {MAX_PROMPT_ROWS}")
    parser.add_argument("--only", default="", help="comma-separated prefixes of the lines to run")
    options = parser.parse_args()
    if not 1 <= options.prompt <= MAX_PROMPT_ROWS:
        parser.error(f"--prompt {options.prompt}: allowed are 1 to {MAX_PROMPT_ROWS}")
    batches = [int(batch) for batch in options.batch.split(",")]
    chosen = tuple(options.only.split(","))
    table, failed = [], 0
    for name, make in lines(options.context, options.prompt).items():
        if not name.startswith(chosen):
            continue
        try:
            measured = measure(make, batches, not name.startswith("linear"))
        except Exception as error:
            failed += 1
            table.append(f"{name:<36}FAILED: {' '.join(repr(error).split())[:120]}")
        else:
            passed = name.startswith("linear") or measured.passes(MAX_ERROR_FP8 if "fp8" in name else MAX_ERROR)
            failed += not passed
            table.append(f"{name:<36}{measured}{'' if passed else '  FAILED'}")
        sys.stderr.write(table[-1] + "\n")
    heading = " ".join(f"{f'B={batch}: µs TB/s [ref]':<25}" for batch in batches)
    sys.stdout.write(f"\n{torch.cuda.get_device_name()}, {DTYPE}\n{'':<36}{heading} error rows\n")
    sys.stdout.write("\n".join(table) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
