"""How a code is drawn from logits: filters by threshold, then Gumbel-max, every parameter a row of a tensor.

A draw is the argmax of score + Gumbel noise, which is a draw from softmax(score). The noise of a token depends on the
request's seed and on what is drawn, never on the batch, the row or the token's rank.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from polyvox.models.qwen3_tts.transformer import widened
from polyvox.models.request import Sampling

# Columns of a parameter row.
TEMPERATURE, TOP_K, TOP_P, PENALTY = range(4)


def talker_parameters(params: Sampling) -> list[float]:
    """One row of parameters for code 0. Temperature 0 is greedy; top_k 0, top_p 1 and penalty 1 are off."""
    return [params.temperature, params.top_k, params.top_p, params.repetition_penalty]


def predictor_parameters(params: Sampling) -> list[float]:
    """The same for the other codes, which have no repetition penalty."""
    return [params.predictor_temperature, params.predictor_top_k, params.predictor_top_p, 1.0]


def seed_words(seed: int) -> list[int]:
    """A seed of 64 bits as the two words of a key."""
    return [seed & _WORD, seed >> 32]


class Noise(Protocol):
    """Gumbel noise for the draws of one frame."""

    def __call__(self, key: Tensor, segment: Tensor, frame: Tensor, first: int, count: int, vocab: int) -> Tensor:
        """For codebooks first to first + count - 1 of each row's frame: [B, count, vocab].

        key is [B, 2]; segment, which tells apart the sentences of one request, and frame are [B].
        """


def keyed_noise(key: Tensor, segment: Tensor, frame: Tensor, first: int, count: int, vocab: int) -> Tensor:
    """Noise keyed by (seed, segment, frame, codebook, token): the same for a request in any crowd.

    Philox4x32-10 with the seed's two halves as key and the rest as counter, on 32-bit words held in int64.
    """
    token = torch.arange(vocab, device=frame.device).expand(len(frame), count, vocab)
    book = torch.arange(first, first + count, device=frame.device)[:, None]
    bits = philox((token, book, _column(frame), _column(segment)), key)
    # 23 bits and a half: never 0, never 1, exact in float32.
    uniform = ((bits >> 9).float() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


class GeneratorNoise:
    """The draws of the reference, in its order, from one torch generator and for one stream.

    torch.multinomial is a race of exponentials: argmax(p / e), which is argmax(log p - log e).
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __call__(self, key: Tensor, segment: Tensor, frame: Tensor, first: int, count: int, vocab: int) -> Tensor:  # noqa: ARG002
        if len(frame) != 1:
            raise ValueError("the reference's generator draws for one stream at a time")
        draws = [torch.empty(1, vocab).exponential_(generator=self.generator) for _ in range(count)]
        return -torch.stack(draws, dim=1).log().to(frame.device)


def draw(logits: Tensor, params: Tensor, noise: Tensor) -> Tensor:
    """Logits and Gumbel noise [B, vocab] and parameters [B, 4] to token ids [B]."""
    scores = logits.to(widened(logits.dtype))
    temperature = params[:, TEMPERATURE, None]
    greedy = temperature == 0
    scores = scores / torch.where(greedy, 1.0, temperature)
    ordered = scores.sort(dim=-1, descending=True).values
    scores = scores.masked_fill(scores < _threshold(ordered, params), -torch.inf)
    return torch.where(greedy, scores, scores + noise).argmax(-1)


@dataclass(frozen=True, slots=True, eq=False)
class FirstRules:
    """What holds for code 0 alone; tensors have a row a slot."""

    seen: Tensor  # [S, vocab]: the codes so far, for the repetition penalty
    least: Tensor  # [S]: frames before end of speech may be drawn
    budget: Tensor  # [S]: frames after which end of speech gains logit
    pressure: float  # so much with every frame
    end: int  # the id of end of speech
    controls: int  # the first of the ids that are no codes; of them only end may be drawn


def first_scores(logits: Tensor, rules: FirstRules, slots: Tensor, frame: Tensor, params: Tensor) -> Tensor:
    """Logits of code 0 as they are drawn from, by the reference's order of processors; frame and params by row."""
    token = torch.arange(logits.shape[1], device=logits.device)
    end = token == rules.end
    too_early = (frame < rules.least[slots])[:, None] & end
    logits = penalised(logits, rules.seen[slots], params)
    pressure = rules.pressure * (frame - rules.budget[slots]).clamp(min=0)
    logits = logits + torch.where(end, pressure[:, None], 0)
    return logits.masked_fill((token >= rules.controls) & ~end | too_early, -torch.inf)


def penalised(logits: Tensor, seen: Tensor, params: Tensor) -> Tensor:
    """Repetition penalty: tokens seen before [B, vocab] lose by their row's factor, whatever their sign."""
    logits = logits.to(widened(logits.dtype))
    factor = params[:, PENALTY, None]
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


def _threshold(ordered: Tensor, params: Tensor) -> Tensor:
    """The smallest score that stays, [B, 1], from scores in falling order: every score as large stays too."""
    vocab = ordered.shape[-1]
    wanted, top_p = params[:, TOP_K].long(), params[:, TOP_P, None]
    top_k = torch.where(wanted == 0, vocab, wanted).clamp(1, vocab)[:, None]
    by_k = ordered.gather(1, top_k - 1)
    # Top-p among what top-k left: a token stays while the tokens above it hold less than top_p.
    probability = ordered.masked_fill(ordered < by_k, -torch.inf).softmax(-1)
    above = probability.cumsum(-1) - probability
    kept = ((above < top_p) | (top_p >= 1)).sum(-1, keepdim=True)
    return torch.maximum(by_k, ordered.gather(1, kept.clamp(1, vocab) - 1))
