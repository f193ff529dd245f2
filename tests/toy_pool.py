# SPDX-License-Identifier: Apache-2.0
"""Small pools with random codes, for tests of the talker's training."""

import numpy as np

from training.layout import NUM_CODEBOOKS
from training.pool import Pool

TOKEN_BYTES = 2


def random_pool(tokens: list[int], frames: list[int], speakers: list[int] | None = None, held_out: int = 0) -> Pool:
    """Entries with these numbers of tokens and frames, of which the first `held_out` are held out.

    Each token has TOKEN_BYTES bytes. The frames of an entry are spread evenly over its tokens.
    """
    draw = np.random.default_rng(0)
    count = len(tokens)
    lengths, frame_counts = np.array(tokens, np.int32), np.array(frames, np.int32)
    ends = [TOKEN_BYTES * (1 + np.arange(number)) for number in tokens]
    positions = [
        np.arange(number) * (TOKEN_BYTES * words) // number for number, words in zip(frames, tokens, strict=True)
    ]
    index = np.arange(count, dtype=np.int32)
    return Pool(
        draw.integers(300, 700, lengths.sum()).astype(np.int16),
        np.concatenate(ends).astype(np.int16),
        draw.integers(0, 512, (int(frame_counts.sum()), NUM_CODEBOOKS)).astype(np.uint16),
        np.concatenate(positions).astype(np.int16),
        (np.cumsum(lengths) - lengths).astype(np.int32),
        lengths,
        (np.cumsum(frame_counts) - frame_counts).astype(np.int32),
        frame_counts,
        np.array(speakers or [1] * count, np.int32),
        index,
        index < held_out,
    )
