# SPDX-License-Identifier: Apache-2.0
"""Sampling one code per row in CUDA C++: 2,048 logits of the predictor, or those of code 0 with its rules.

    the inputs of sampler.py -> codes [B] int64 of any stride
    and table [V,1024] of the predictor · gain [1024] -> also table[codes] before a norm, as in pre_norm.py

A frame has 15 launches for the predictor and one for code 0, each between two passes that depend on each other.
Triton's reductions over a program have two or three barriers and a dozen shuffles; here they have one barrier, and
those of integers one instruction per warp. The next pass reads the code's embedding, which the same launch looks up.

With rules, the ids from 2,048 on are control ids, of which only the end of speech may be sampled: the logits of the
others are not read. Scores are ranked by their 32 bits: the upper 16 by bisection, as without rules (at most 8
barriers; it ends when exactly top_k scores reach the threshold). That is enough where top_k scores reach these bits.
Otherwise the scores with the same upper bits are visited in descending order: one barrier if they are equal, and one
more for each value above the threshold's. A greedy row, or one that keeps all scores, needs none of these.

Types: bfloat16 logits; float32 inside.
Roundings: those of the reference implementation in sampler.py. With rules, division is three instructions of
__fdiv_rn, with the inverse of the divisor, and __fdiv_rn itself where the exponents of the values or divisors are
unusual. Sums for top-p: without rules in the order of sampler.py's kernel; with rules by 8 consecutive codes, by lanes
and by warps, and the end of speech after the last code, so a score whose cumulative mass is within 1e-6 of top_p may be
kept here and dropped there. A row of NaN logits samples the last code.
Bytes: the logits once (and seen, for code 0, before the previous launch has ended); noise is generated in registers,
before the previous launch has ended, or of many rows after the filters, for the scores that are kept; a row of the
table is read once and stored twice.
Grid: one program of 8 warps per row, of 64 registers per thread (sm_90): four run on a multiprocessor at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.gpu import GPUS, gpu_of
from polyvox.kernels.launch_overlap import overlap
from polyvox.kernels.pre_norm import Norm, PreNorm

if TYPE_CHECKING:
    from polyvox.kernels.sampler import DrawInputs, FirstCodeRules

CODES, THREADS, WARPS = 2048, 256, 8
SIZE = 1024  # of an embedding
ALIGNMENT = 16  # bytes of a load of logits
SEEN_ALIGNMENT = 8  # bytes of a load of `seen`


@cache
def source(architecture: int) -> CudaSource:
    return CudaSource("code_draw.cu", str(architecture))


def supports(logits: Tensor, first: FirstCodeRules | None = None) -> bool:
    """Whether the kernel runs for logits [B, vocab] and these rules."""
    return (
        kernels.active(logits)
        and not logits.is_cpu
        and logits.dtype == torch.bfloat16
        and logits.stride(0) * logits.itemsize % ALIGNMENT == 0
        and (logits.shape[1] == CODES if first is None else supports_rules(first, logits.shape[1]))
        and supports_architecture(gpu_of(logits.device).architecture)
    )


def supports_rules(first: FirstCodeRules, vocab: int) -> bool:
    """Whether 2,048 codes precede the control ids, one of which is the end of speech."""
    return first.first_control_id == CODES <= first.end < vocab and first.seen.stride(0) % SEEN_ALIGNMENT == 0


def supports_architecture(architecture: int) -> bool:
    """Whether a GPU of this architecture runs the kernels; compiles them at the first call."""
    return architecture in GPUS and source(architecture).available()


def supports_embedding(table: Tensor, norm: Norm) -> bool:
    """Whether the kernel looks up rows of this table before this norm."""
    return (
        table.dtype == norm.gain.dtype == torch.bfloat16
        and table.shape[1] == SIZE
        and table.is_contiguous()
        and norm.gain.is_contiguous()
    )


def launch_embedded(logits: Tensor, book: int, draws: DrawInputs, codes: Tensor, table: Tensor, norm: Norm) -> PreNorm:
    """sampler.draw_embedded, for logits and a table that are supported; writes codes [B]."""
    rows, gained = (table.new_empty(len(logits), 1, SIZE) for _ in range(2))
    squares = torch.empty(len(logits), 1, WARPS, dtype=torch.float32, device=logits.device)
    _launch("code_draw_embed", logits, book, draws, codes, embedding=[table, norm.gain, rows, gained, squares])
    return PreNorm(rows, gained, squares, norm)


def launch(logits: Tensor, book: int, draws: DrawInputs, codes: Tensor, first: FirstCodeRules | None = None) -> None:
    """sampler.draw_keyed, for logits and rules that `supports` accepts; writes codes [B]."""
    if first is None:
        return _launch("code_draw", logits, book, draws, codes)
    assert first.seen.dtype == torch.bool, first.seen.dtype
    assert first.seen.stride(1) == first.min_frames.stride(0) == first.soft_limit.stride(0) == 1
    rules = [first.seen, first.min_frames, first.soft_limit]
    settings = [first.seen.stride(0), first.end, float(first.pressure)]
    return _launch("first_code_draw", logits, book, draws, codes, rules=rules, settings=settings)


def _launch(
    name: str,
    logits: Tensor,
    book: int,
    draws: DrawInputs,
    codes: Tensor,
    embedding: Sequence[Tensor] = (),
    rules: Sequence[Tensor] = (),
    settings: Sequence[int | float] = (),
) -> None:
    source(gpu_of(logits.device).architecture).launch(
        name, len(logits), THREADS, 0,
        [logits, draws.slots, draws.params, draws.key, draws.segment, draws.frame, *rules, codes, *embedding,
         logits.stride(0), codes.stride(0), book, *settings],
        overlaps=overlap(logits)["OVERLAP"],
    )  # fmt: skip
