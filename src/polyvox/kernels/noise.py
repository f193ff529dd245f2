# SPDX-License-Identifier: Apache-2.0
"""Gumbel noise for sampling, in PyTorch; the sampling kernel generates the same numbers in registers.

A token's noise depends on the request's seed and on what is sampled, never on the batch, the row or the token's rank.
"""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Words = TypeVar("Words", Tensor, np.ndarray)  # of 32 bits, as int64

# Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (2011), table 2 and section 4.3
_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_WORD = 0xFFFFFFFF


def keyed_noise(key: Tensor, segment: Tensor, frame: Tensor, first: int, count: int, vocab: int) -> Tensor:
    """Noise keyed by (seed, segment, frame, codebook, token): the same for a request in any batch.

    Philox4x32-10 with the seed's two halves as key and the rest as counter, on 32-bit words in int64.
    """
    token = torch.arange(vocab, device=frame.device).expand(len(frame), count, vocab)
    book = torch.arange(first, first + count, device=frame.device)[:, None]
    counter = token, book, _column(frame), _column(segment)
    if frame.is_cpu:  # NumPy takes half the time of torch for such small arrays
        words = [word.numpy() for word in counter]
        bits = torch.from_numpy(philox((words[0], words[1], words[2], words[3]), key.numpy()))
    else:
        bits = philox(counter, key)
    # 23 bits and a half: never 0, never 1, exact in float32.
    uniform = ((bits >> 9).float() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


def philox(counter: tuple[Words, Words, Words, Words], key: Words) -> Words:
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


def _column(rows: Words) -> Words:
    return rows[:, None, None]
