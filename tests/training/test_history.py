# SPDX-License-Identifier: Apache-2.0
"""The talker is trained on frames like those it reads at inference: own codes, missing codes, wrong codes."""

import pytest
import torch
from torch import Tensor

from polyvox import kernels
from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.talker import Talker
from toy_pool import random_pool
from training.batches import Batch, Batches
from training.history import MASKED_ENTRIES, OWN, disturbed, in_phase, own_history, with_own
from training.layout import NUM_CODEBOOKS, SAMPLING, initialise, voice_files
from training.losses import predict_codes, read
from training.source import CLASSES, LOWEST, source_codes

FRAMES, ENTRIES = 10, 8


@pytest.fixture(scope="module")
def talker() -> Talker:
    torch.manual_seed(0)
    model = Talker(parse_config(voice_files(SAMPLING)))
    initialise(model)
    return model.eval()


@pytest.fixture(scope="module")
def batch() -> Batch:
    pool = random_pool([3] * ENTRIES, [FRAMES] * ENTRIES)
    whole = torch.zeros(ENTRIES, dtype=torch.bool)
    batches = Batches(pool, parse_config(voice_files(SAMPLING)), torch.device("cpu"))
    return batches.rows(torch.arange(ENTRIES), whole, whole, 32)


def changed(batch: Batch, frames: Tensor, code: int) -> Tensor:
    """Frames [B,L] of which this code differs."""
    return frames[..., code] != batch.frames[..., code]


def test_half_of_the_entries_read_own_codes(talker: Talker, batch: Batch) -> None:
    torch.manual_seed(0)
    with kernels.disabled():
        frames = with_own(talker, batch, torch.ones(()))
        assert torch.equal(with_own(talker, batch, torch.zeros(())), batch.frames)
    assert torch.equal(frames >= 0, batch.frames >= 0)
    own = changed(batch, frames, 0).any(1)
    assert own.sum() == ENTRIES // 2
    # An untrained talker is nearly always wrong, so changed codes are its own.
    assert float(changed(batch, frames, 0)[own].sum() / own.sum() / FRAMES) == pytest.approx(OWN, abs=0.2)
    for code in range(1, NUM_CODEBOOKS):
        assert torch.equal(changed(batch, frames, code).any(1), own)
        assert changed(batch, frames, code)[own].sum() > 0.9 * FRAMES * own.sum()


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


@pytest.mark.parametrize("voice", [0, 1])
def test_the_frame_to_predict_continues_the_phase_of_the_frame_that_is_read(voice: int) -> None:
    draw = torch.Generator().manual_seed(voice)
    steps = torch.randint(64, (2, 12), generator=draw) + LOWEST[voice]
    true, other = (source_codes(advance, voice) for advance in steps)
    frames = torch.zeros(1, 11, NUM_CODEBOOKS, dtype=torch.int64)
    following = frames.clone()
    frames[0, :, 1], following[0, :, 1] = true[:-1], true[1:]
    assert torch.equal(in_phase(following, frames), following)  # in phase already
    frames[0, :, 1] = other[:-1]
    expected = source_codes(torch.cat([steps[1, :-1], steps[0, -1:]]), voice)[-1]  # the true pitch after other frames
    made = in_phase(following, frames)[0, :, 1]
    assert made[-1] == expected
    assert torch.equal(made // CLASSES, true[1:] // CLASSES)
    frames[0, :, 1] = -1
    assert torch.equal(in_phase(following, frames), following)
