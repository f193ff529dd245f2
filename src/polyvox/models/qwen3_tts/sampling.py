"""How a code is drawn from logits: filters by threshold, then Gumbel-max, every parameter a row of a tensor.

A draw is the argmax of score + Gumbel noise, which is a draw from softmax(score). The noise of a token depends
on the request's seed and on what is drawn, never on the batch, the row or the token's rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from polyvox.models.qwen3_tts.config import Sampling
from polyvox.models.qwen3_tts.transformer import widened

SEED_LIMIT = 2**64


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The parameters of a batch of streams for one kind of draw, each [B]."""

    temperature: Tensor  # 0: greedy
    top_k: Tensor  # 0: off
    top_p: Tensor  # 1: off
    repetition_penalty: Tensor  # 1: off


def sampling_rows(params: Sequence[Sampling], device: torch.device) -> tuple[SamplingRows, SamplingRows]:
    """One request a row: the talker's parameters and the predictor's, which has no repetition penalty."""

    def column(values: Sequence[float], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    talker = SamplingRows(
        column([p.temperature for p in params]),
        column([p.top_k for p in params], torch.int64),
        column([p.top_p for p in params]),
        column([p.repetition_penalty for p in params]),
    )
    predictor = SamplingRows(
        column([p.predictor_temperature for p in params]),
        column([p.predictor_top_k for p in params], torch.int64),
        column([p.predictor_top_p for p in params]),
        column([1.0] * len(params)),
    )
    return talker, predictor


class Noise(Protocol):
    """Gumbel noise for the draws of one frame."""

    def __call__(self, frame: Tensor, first: int, count: int, vocab: int) -> Tensor:
        """For codebooks first to first + count - 1 of each row's frame [B]: [B, count, vocab]."""


class KeyedNoise:
    """Noise keyed by (seed, segment, frame, codebook, token): the same for a request in any crowd.

    Philox4x32-10 with the seed's two halves as key and the rest as counter; segment tells apart the
    sentences of one request. Arithmetic is on 32-bit words held in int64.
    """

    def __init__(self, seeds: Sequence[int], segments: Sequence[int], device: torch.device) -> None:
        words = [[seed & _WORD, seed >> 32] for seed in seeds]
        self.key = torch.tensor(words, dtype=torch.int64, device=device)
        self.segment = torch.tensor(segments, dtype=torch.int64, device=device)

    def __call__(self, frame: Tensor, first: int, count: int, vocab: int) -> Tensor:
        token = torch.arange(vocab, device=frame.device).expand(len(frame), count, vocab)
        book = torch.arange(first, first + count, device=frame.device)[:, None]
        bits = philox((token, book, _column(frame), _column(self.segment)), self.key)
        # 23 bits and a half: never 0, never 1, exact in float32.
        uniform = ((bits >> 9).float() + 0.5) * 2.0**-23
        return -torch.log(-torch.log(uniform))


class GeneratorNoise:
    """The draws of the reference, in its order, from one torch generator and for one stream.

    torch.multinomial is a race of exponentials: argmax(p / e), which is argmax(log p - log e).
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __call__(self, frame: Tensor, first: int, count: int, vocab: int) -> Tensor:  # noqa: ARG002
        draws = [torch.empty(1, vocab).exponential_(generator=self.generator) for _ in range(count)]
        return -torch.stack(draws, dim=1).log().to(frame.device)


def draw(logits: Tensor, params: SamplingRows, noise: Tensor) -> Tensor:
    """Logits and Gumbel noise, each [B, vocab], to token ids [B]."""
    scores = logits.to(widened(logits.dtype))
    greedy = params.temperature[:, None] == 0
    scores = scores / torch.where(greedy, 1.0, params.temperature[:, None])
    ordered = scores.sort(dim=-1, descending=True).values
    scores = scores.masked_fill(scores < _threshold(ordered, params), -torch.inf)
    return torch.where(greedy, scores, scores + noise).argmax(-1)


def penalised(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Repetition penalty: tokens seen before [B, vocab] lose by the factor [B], whatever their sign."""
    logits = logits.to(widened(logits.dtype))
    factor = penalty[:, None]
    return torch.where(seen, torch.where(logits > 0, logits / factor, logits * factor), logits)


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: Tensor) -> Tensor:
    """The first output word of Philox4x32-10; counter words broadcast together, key is [B, 2]."""
    c0, c1, c2, c3 = counter
    k0, k1 = _column(key[:, 0]), _column(key[:, 1])
    for _ in range(10):
        product_0, product_1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0, c1, c2, c3 = (
            (product_1 >> 32 & _WORD) ^ c1 ^ k0,
            product_1 & _WORD,
            (product_0 >> 32 & _WORD) ^ c3 ^ k1,
            product_0 & _WORD,
        )
        k0, k1 = k0 + _WEYL_0 & _WORD, k1 + _WEYL_1 & _WORD
    return c0


# Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (2011), table 2 and section 4.3
_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_WORD = 0xFFFFFFFF


def _column(rows: Tensor) -> Tensor:
    return rows[:, None, None]


def _threshold(ordered: Tensor, params: SamplingRows) -> Tensor:
    """The smallest score that stays, [B, 1], from scores in falling order: every score as large stays too."""
    vocab = ordered.shape[-1]
    top_k = torch.where(params.top_k == 0, vocab, params.top_k).clamp(1, vocab)[:, None]
    by_k = ordered.gather(1, top_k - 1)
    # Top-p among what top-k left: a token stays while the tokens above it hold less than top_p.
    probability = ordered.masked_fill(ordered < by_k, -torch.inf).softmax(-1)
    above = probability.cumsum(-1) - probability
    kept = ((above < params.top_p[:, None]) | (params.top_p[:, None] >= 1)).sum(-1, keepdim=True)
    return torch.maximum(by_k, ordered.gather(1, kept.clamp(1, vocab) - 1))
