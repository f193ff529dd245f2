# SPDX-License-Identifier: Apache-2.0
"""The talker is trained on frames like those it reads at inference: own codes, missing codes, wrong codes."""

import numpy as np
import pytest
import torch
from torch import Tensor

from polyvox import kernels
from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.talker import Talker
from training.batches import Batch, Batches
from training.history import MASKED_ENTRIES, disturbed, own_history, with_own
from training.layout import NUM_CODEBOOKS, SAMPLING, initialise, voice_files
from training.losses import predict_codes, read
from training.pool import UNKNOWN, Pool

FRAMES, ENTRIES = 10, 8  # of which the second half was only timed


@pytest.fixture(scope="module")
def talker() -> Talker:
    torch.manual_seed(0)
    model = Talker(parse_config(voice_files(SAMPLING)))
    initialise(model)
    return model.eval()


@pytest.fixture(scope="module")
def batch() -> Batch:
    codes = np.random.default_rng(0).integers(0, 512, (ENTRIES * FRAMES, NUM_CODEBOOKS)).astype(np.uint16)
    codes[ENTRIES // 2 * FRAMES :, 1:] = UNKNOWN
    ones, index = np.ones(ENTRIES, np.int32), np.arange(ENTRIES, dtype=np.int32)
    flags = index < ENTRIES // 2, index < 0
    tokens = np.arange(300, 300 + 3 * ENTRIES).astype(np.int16)
    words = np.zeros(len(codes), np.int32)
    pool = Pool(tokens, codes, words, 3 * index, 3 * ones, FRAMES * index, FRAMES * ones, ones, index, *flags)
    whole = torch.zeros(ENTRIES, dtype=torch.bool)
    batches = Batches(pool, parse_config(voice_files(SAMPLING)), torch.device("cpu"))
    return batches.rows(torch.arange(ENTRIES), whole, whole, 32)


def changed(batch: Batch, frames: Tensor, first: int, stop: int) -> Tensor:
    """Entries [B] of which some of these codes differ."""
    return (frames[..., first:stop] != batch.frames[..., first:stop]).flatten(1).any(1)


def test_half_of_the_entries_read_own_codes(talker: Talker, batch: Batch) -> None:
    torch.manual_seed(0)
    with kernels.disabled():
        frames = with_own(talker, batch)
    own = changed(batch, frames, 0, 1)
    assert own.sum() == ENTRIES // 2
    assert torch.equal(frames[..., 0] >= 0, batch.frames[..., 0] >= 0)
    spoken, timed = own[: ENTRIES // 2], own[ENTRIES // 2 :]
    assert spoken.any()
    assert timed.any()
    # The codes of speech stay; an entry that was only timed gets generated ones.
    assert not changed(batch, frames, 1, NUM_CODEBOOKS)[: ENTRIES // 2].any()
    for code in range(1, NUM_CODEBOOKS):
        assert torch.equal(changed(batch, frames, code, code + 1)[ENTRIES // 2 :], timed)


def test_own_codes_follow_the_true_code_0_in_validation(talker: Talker, batch: Batch) -> None:
    with kernels.disabled():
        frames = own_history(talker, batch)
        hidden = read(talker, batch, frames)
        begin = int((batch.frames[0, :, 0] >= 0).nonzero()[0])  # the row of the first frame
        expected = predict_codes(talker, hidden[:, begin - 1], batch.frames[:, begin, 0])
    assert torch.equal(frames[..., 0], batch.frames[..., 0])
    assert torch.equal(frames[:, begin, 1:], expected)
    assert bool((frames[:, begin : begin + FRAMES] >= 0).all())


def test_some_entries_lose_all_codes_but_the_first() -> None:
    torch.manual_seed(0)
    frames = disturbed(torch.zeros(400, 12, NUM_CODEBOOKS, dtype=torch.int64))
    assert bool((frames[..., 0] >= 0).all())
    without = (frames[..., 1] < 0).any(1)
    assert bool((frames[without, :, 1:] < 0).all())
    assert float(without.float().mean()) == pytest.approx(MASKED_ENTRIES, abs=0.08)
    assert bool((frames[~without, :, 2] < 0).any())
