# SPDX-License-Identifier: Apache-2.0
"""Sampling one code per row: rules for code 0, temperature, top-k, top-p, Gumbel noise, argmax.

The argmax of score + Gumbel noise is a sample from softmax(score); filters are thresholds, parameters a tensor row.

    logits [B,V] · book: the codebook, from 0 · slots [B] int64 · by slot: params [S,4] float32, key [S,2], segment [S],
    frame [S] int64; for code 0 seen [S,V] bool, min_frames [S], soft_limit [S] int64
    -> codes [B] int64, new or written to a view of any stride, such as a column of the codes of frames

Types: bfloat16, float16 or float32 logits; float32 inside.
Roundings: noise bits, filters and ties equal those of the reference implementation. Division is IEEE. Top-k keeps every
score that is at least the k-th, whose bits are found by bisection, two at a time. Logits of a 16-bit type that no rule
changes are ranked before the division, which keeps their order; they have half as many bits. Top-p keeps a score while
the larger ones sum to less than top_p; the order of summation differs from the reference, so a score whose cumulative
mass is within 1e-6 of top_p may be kept by one and dropped by the other. Logarithms of the noise may differ in their
last bits, which changes a sample only where the two best scores are that close. Triton may fuse the product and the sum
that raise the score of the end of speech, with the same effect. A row of NaN logits samples a valid id.
Bytes: the logits once (and seen, for code 0); noise is generated in registers.
Grid: one program per row; a row is one block.

Where code_draw.py supports the logits and rules, it samples the codes in CUDA C++, with the roundings stated there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels import code_draw
from polyvox.kernels.launch_overlap import overlap, wait
from polyvox.kernels.lazy_triton import Kernel, power_of_2
from polyvox.kernels.noise import keyed_noise
from polyvox.kernels.pre_norm import Norm, PreNorm, embed_pre_norm

if TYPE_CHECKING:
    import triton.language as tl

LANES = 256  # tokens per warp
MAX_TOKENS = 1 << 15  # token counts are packed into 16 bits
TEMPERATURE, TOP_K, TOP_P, PENALTY = range(4)  # columns of a parameter row


@dataclass(frozen=True, slots=True, eq=False)
class DrawInputs:
    """The slots to sample for and what each sample depends on; all tensors but slots are indexed by slot."""

    slots: Tensor  # [B]
    params: Tensor  # [S, 4]
    key: Tensor  # [S, 2]
    segment: Tensor  # [S]
    frame: Tensor  # [S]


@dataclass(frozen=True, slots=True, eq=False)
class FirstCodeRules:
    """Rules for code 0 only; tensors are indexed by slot."""

    seen: Tensor  # [S, vocab]: codes sampled so far, for the repetition penalty
    min_frames: Tensor  # [S]: frames before the end of speech may be sampled
    soft_limit: Tensor  # [S]: frames after which the logit of the end of speech grows
    pressure: float  # growth per frame
    end: int  # id of the end of speech
    first_control_id: int  # ids from here on are not codes; only `end` may be sampled


def draw_keyed(
    logits: Tensor, book: int, draws: DrawInputs, first: FirstCodeRules | None = None, out: Tensor | None = None
) -> Tensor:
    """Sample codes [B] of one codebook from logits [B, vocab] with the noise of each slot's seed, segment and frame.

    Writes to `out` if given, int64 of any stride, and returns it.
    """
    rows, vocab = logits.shape
    _check(logits, draws, out)
    if not kernels.active(logits):
        drawn = draw_keyed_reference(logits, book, draws, first)
        return drawn if out is None else out.copy_(drawn)
    codes = torch.empty(rows, dtype=torch.int64, device=logits.device) if out is None else out
    if not rows:
        return codes
    assert vocab <= MAX_TOKENS, vocab
    if code_draw.supports(logits, first):
        code_draw.launch(logits, book, draws, codes, first)
        return codes
    block = power_of_2(vocab)
    seen, min_frames, soft_limit = (
        (logits, logits, logits) if first is None else (first.seen, first.min_frames, first.soft_limit)
    )
    draw_kernel[(rows,)](
        logits, draws.slots, draws.params, draws.key, draws.segment, draws.frame, seen, min_frames, soft_limit, codes,
        logits.stride(0), codes.stride(0), seen.stride(0), book, 0.0 if first is None else first.pressure,
        FIRST=first is not None, END=-1 if first is None else first.end,
        CONTROLS=vocab if first is None else first.first_control_id,
        BITS=32 if first is not None else 8 * logits.itemsize, VOCAB=vocab, BLOCK=block, **overlap(logits),
        num_warps=max(1, min(8, block // LANES)),
    )  # fmt: skip
    return codes


def draw_embedded(
    logits: Tensor, book: int, draws: DrawInputs, table: Tensor, norm: Norm, out: Tensor
) -> tuple[Tensor, PreNorm]:
    """Sample codes into `out`, and look up rows table[codes] [B, 1, size] before a norm, which the next pass reads."""
    _check(logits, draws, out)
    if len(logits) and code_draw.supports(logits) and code_draw.supports_embedding(table, norm):
        return out, code_draw.launch_embedded(logits, book, draws, out, table, norm)
    codes = draw_keyed(logits, book, draws, out=out)
    return codes, embed_pre_norm(codes[:, None], table, norm, starts_early=True)


def _check(logits: Tensor, draws: DrawInputs, out: Tensor | None) -> None:
    assert out is None or (out.shape == logits.shape[:1] and out.dtype == torch.int64), (out.shape, out.dtype)
    assert logits.stride(1) == draws.slots.stride(0) == draws.segment.stride(0) == draws.frame.stride(0) == 1
    assert draws.params.stride() == (4, 1), draws.params.stride()
    assert draws.key.stride() == (2, 1), draws.key.stride()


def draw_keyed_reference(logits: Tensor, book: int, draws: DrawInputs, first: FirstCodeRules | None = None) -> Tensor:
    """Reference implementation."""
    slots, vocab = draws.slots, logits.shape[1]
    params, frame = draws.params[slots], draws.frame[slots]
    if first is not None:
        logits = first_code_scores(logits, first, slots, frame, params)
    noise = keyed_noise(draws.key[slots], draws.segment[slots], frame, book, 1, vocab)[:, 0]
    return draw(logits, params, noise)


def is_greedy(params: Tensor) -> bool:
    """Whether all rows of parameters on a CPU are greedy; elsewhere False, because the host must not wait for them."""
    return params.is_cpu and not params[:, TEMPERATURE].any()


def draw(logits: Tensor, params: Tensor, noise: Tensor | None) -> Tensor:
    """Sample token ids [B] from logits and Gumbel noise [B, vocab] with parameters [B, 4]; noise is None if greedy."""
    if noise is None:
        return logits.argmax(-1)
    scores = _wide(logits)
    temperature = params[:, TEMPERATURE, None]
    greedy = temperature == 0
    scores = scores / torch.where(greedy, 1.0, temperature)
    ordered = scores.sort(dim=-1, descending=True).values
    scores = scores.masked_fill(scores < _threshold(ordered, params), -torch.inf)
    return torch.where(greedy, scores, scores + noise).argmax(-1)


def first_code_scores(logits: Tensor, rules: FirstCodeRules, slots: Tensor, frame: Tensor, params: Tensor) -> Tensor:
    """Apply the rules of code 0 to its logits, in the reference's order; frame and params are indexed by row."""
    token = torch.arange(logits.shape[1], device=logits.device)
    end = token == rules.end
    too_early = (frame < rules.min_frames[slots])[:, None] & end
    logits = apply_repetition_penalty(logits, rules.seen[slots], params)
    pressure = rules.pressure * (frame - rules.soft_limit[slots]).clamp(min=0)
    logits = logits + torch.where(end, pressure[:, None], 0)
    return logits.masked_fill((token >= rules.first_control_id) & ~end | too_early, -torch.inf)


def apply_repetition_penalty(logits: Tensor, seen: Tensor, params: Tensor) -> Tensor:
    """Divide the positive and multiply the negative logits of seen tokens [B, vocab] by the row's factor."""
    logits = _wide(logits)
    factor = params[:, PENALTY, None]
    return torch.where(seen, torch.where(logits > 0, logits / factor, logits * factor), logits)


def _wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _threshold(ordered: Tensor, params: Tensor) -> Tensor:
    """The smallest score to keep, [B, 1], from scores in descending order; equal scores are kept too."""
    vocab = ordered.shape[-1]
    wanted, top_p = params[:, TOP_K].long(), params[:, TOP_P, None]
    top_k = torch.where(wanted == 0, vocab, wanted).clamp(1, vocab)[:, None]
    by_k = ordered.gather(1, top_k - 1)
    # Top-p after top-k: a token is kept while the tokens above it sum to less than top_p.
    probability = ordered.masked_fill(ordered < by_k, -torch.inf).softmax(-1)
    above = probability.cumsum(-1) - probability
    kept = ((above < top_p) | (top_p >= 1)).sum(-1, keepdim=True)
    return torch.maximum(by_k, ordered.gather(1, kept.clamp(1, vocab) - 1))


@Kernel
def draw_kernel(
    logits, slots, settings, key, segment, frame, seen, min_frames, soft_limit, codes,
    logits_row, codes_row, seen_row, book, pressure,
    FIRST: tl.constexpr, END: tl.constexpr, CONTROLS: tl.constexpr, BITS: tl.constexpr, VOCAB: tl.constexpr,
    BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    now = tl.load(frame + slot)
    token = tl.arange(0, BLOCK)
    mask = token < VOCAB
    temperature = tl.load(settings + slot * 4)
    greedy = temperature == 0.0
    counter = token.to(tl.uint32)
    zero = tl.zeros_like(counter)
    low, high = tl.load(key + slot * 2).to(tl.uint32), tl.load(key + slot * 2 + 1).to(tl.uint32)
    words = tl.philox_impl(
        counter, zero + book, zero + now.to(tl.uint32),
        zero + tl.load(segment + slot).to(tl.uint32), low, high,
    )  # fmt: skip
    uniform = ((words[0] >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608.0)
    noise = tl.where(greedy, 0.0, -tl.log(-tl.log(uniform)))
    top_k = tl.load(settings + slot * 4 + 1).to(tl.int32)
    top_p = tl.load(settings + slot * 4 + 2)
    if OVERLAP:
        wait()

    logit = tl.load(logits + row * logits_row + token, mask=mask, other=float("-inf"))
    score = logit.to(tl.float32)
    if FIRST:
        factor = tl.load(settings + slot * 4 + 3)
        before = tl.load(seen + slot * seen_row + token, mask=mask, other=0) != 0
        score = tl.where(before, tl.where(score > 0, tl.div_rn(score, factor), score * factor), score)
        overtime = tl.maximum(now - tl.load(soft_limit + slot), 0).to(tl.float32)
        score = tl.where(token == END, score + overtime * pressure, score)
        early = now < tl.load(min_frames + slot)
        score = tl.where(((token >= CONTROLS) & (token != END)) | ((token == END) & early), float("-inf"), score)

    score = tl.div_rn(score, tl.where(greedy, 1.0, temperature))
    score = tl.where(score == 0.0, 0.0, score)  # -0.0 and 0.0 compare equal

    # Map to unsigned integers of the same order; padding beyond the vocabulary ranks lowest.
    if BITS == 16:
        bits = tl.where(logit == 0.0, 0.0, logit).to(tl.uint16, bitcast=True).to(tl.uint32)
        rank = tl.where(bits >> 15 != 0, bits ^ 0xFFFF, bits | 0x8000)
    else:
        bits = score.to(tl.uint32, bitcast=True)
        rank = tl.where(bits >> 31 != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)
    rank = tl.where(mask, rank, 0)
    threshold = rank_of_largest(rank, tl.where(top_k == 0, VOCAB, tl.minimum(tl.maximum(top_k, 1), VOCAB)), BITS)
    if top_p < 1.0:
        kept = (rank >= threshold) & mask
        mass = tl.where(kept, tl.exp(score - tl.max(score, 0)), 0.0)
        threshold = tl.maximum(threshold, rank_of_mass(rank, mass, top_p * tl.sum(mass, 0), BITS))
        threshold = tl.minimum(threshold, tl.max(rank, 0))
    kept = (rank >= threshold) & mask

    score = tl.where(kept, score + noise, float("-inf"))
    best = tl.min(tl.where(score == tl.max(score, 0), token, BLOCK), 0)
    tl.store(codes + row * codes_row, tl.minimum(best, VOCAB - 1).to(tl.int64))


@Kernel
def rank_of_largest(rank, count, BITS: tl.constexpr):
    """The count-th largest rank, by bisection from the highest bits down."""
    found = tl.zeros([], tl.uint32)
    for step in range(BITS // 2):
        shift = tl.cast(BITS - 2 - 2 * step, tl.uint32)
        one, two, three = found + (1 << shift), found + (2 << shift), found + (3 << shift)
        reach = (rank >= one).to(tl.int64) + ((rank >= two).to(tl.int64) << 16) + ((rank >= three).to(tl.int64) << 32)
        reached = tl.sum(reach, 0)
        found = tl.where((reached & 0xFFFF) >= count, one, found)
        found = tl.where(((reached >> 16) & 0xFFFF) >= count, two, found)
        found = tl.where((reached >> 32) >= count, three, found)
    return found


@Kernel
def rank_of_mass(rank, mass, wanted, BITS: tl.constexpr):
    """The largest threshold such that the ranks at or above it sum to the wanted mass."""
    found = tl.zeros([], tl.uint32)
    for step in range(BITS):
        higher = found + (1 << tl.cast(BITS - 1 - step, tl.uint32))
        found = tl.where(tl.sum(tl.where(rank >= higher, mass, 0.0), 0) >= wanted, higher, found)
    return found
