# SPDX-License-Identifier: Apache-2.0
"""Texts that were only timed train code 0 and nothing else."""

import numpy as np
import pytest
import torch

from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.talker import Talker
from training.batches import Batches
from training.layout import NUM_CODEBOOKS, SAMPLING, initialise, voice_files
from training.losses import code_0_loss, read, residual_loss
from training.pool import UNKNOWN, Pool
from training.talker import scale_for_depth

CONFIG = parse_config(voice_files(SAMPLING))


@pytest.fixture(scope="module")
def talker() -> Talker:
    torch.manual_seed(0)
    talker = Talker(CONFIG)
    initialise(talker)
    scale_for_depth(talker)
    return talker


def losses(talker: Talker, entries: list[int], count: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses of one synthesised entry (0) and one that was only timed (1)."""
    codes = np.random.default_rng(0).integers(0, 512, (14, NUM_CODEBOOKS)).astype(np.uint16)
    codes[8:, 1:] = UNKNOWN
    tokens, frames = np.array([4, 3], np.int32), np.array([8, 6], np.int32)
    ones, spoken = np.ones(2, np.int32), np.array([True, False])
    starts = [np.array([0, size], np.int32) for size in (4, 8)]
    text = np.arange(300, 307).astype(np.int16)
    pool = Pool(text, codes, codes[:, 0] * 0, starts[0], tokens, starts[1], frames, ones, ones, spoken, ~spoken)
    chosen = torch.tensor(entries)
    whole = torch.zeros(len(entries), dtype=torch.bool)
    batch = Batches(pool, CONFIG, torch.device("cpu")).rows(chosen, whole, whole, 40)
    hidden = read(talker, batch, batch.frames)
    return code_0_loss(talker, hidden, batch, CONFIG.talker.eos_id)[0], residual_loss(talker, hidden, batch, count)


def test_unknown_codes_are_not_trained(talker: Talker) -> None:
    with torch.enable_grad():
        first, rest = losses(talker, [1], 20)
        (first + rest.sum()).backward()
    assert rest.tolist() == [0.0] * (NUM_CODEBOOKS - 1)
    trained, untrained = talker.codec_head.weight.grad, talker.code_predictor.lm_head.weight.grad
    assert trained is not None
    assert trained.abs().sum() > 0
    assert untrained is not None
    assert not untrained.any()
    spoken, both = losses(talker, [0], None)[1], losses(talker, [0, 1], None)[1]
    torch.testing.assert_close(both, spoken)
    torch.testing.assert_close(losses(talker, [0, 1], 20)[1], spoken)  # eight frames are known, the others are masked


def test_code_0_is_trained_on_both_kinds_of_entries(talker: Talker) -> None:
    spoken, timed, both = (losses(talker, entries, None)[0] for entries in ([0], [1], [0, 1]))
    torch.testing.assert_close(both, (9 * spoken + 7 * timed) / 16)  # frames and an end each
