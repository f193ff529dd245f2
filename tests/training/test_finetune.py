# SPDX-License-Identifier: Apache-2.0
"""Codes for decoder fine-tuning stay aligned with the audio; learning rate, early stopping, model selection."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.talker import Talker
from toy_pool import random_pool
from toy_talker import random_talker
from training.batches import Batches
from training.finetune import predict
from training.layout import SAMPLING, voice_files
from training.schedule import BestValue, rate


@pytest.fixture(scope="module")
def talker() -> Talker:
    return random_talker()


def test_predicted_codes_stay_aligned_with_the_audio(talker: Talker) -> None:
    pool = replace(random_pool([2] * 4, [5, 60, 5, 140]), text=np.array([7, 3, 9, 4], np.int32))
    batches = Batches(pool, parse_config(voice_files(SAMPLING)), torch.device("cpu"))
    order = [4, 9, 7, 3]
    made = predict(talker, batches, pool, np.array(order), rows=128)
    entries = [pool.text.tolist().index(text) for text in order]
    codes = np.concatenate(
        [pool.codes[pool.first_frame[e] : pool.first_frame[e] + pool.frame_count[e]] for e in entries]
    )
    assert np.array_equal(made[:, :2].numpy(), codes[:, :2])
    assert (made[:, 2:].numpy() != codes[:, 2:]).mean() > 0.9  # the talker is untrained
    # A frame does not depend on the other texts of its batch.
    alone = predict(talker, batches, pool, np.array([9]), rows=128)
    assert torch.equal(alone, made[140:145])


def test_the_learning_rate_ends_at_its_floor() -> None:
    assert rate(1.0, 10_000, 1.0, floor=0.0) == pytest.approx(0.0)
    assert rate(1.0, 10_000, 0.5, floor=0.0) == pytest.approx(0.5)
    assert rate(1.0, 99, 0.0) == pytest.approx(0.5)


def test_a_run_without_improvement_becomes_stale() -> None:
    best = BestValue(max_stale=0.3)
    assert best.improved(2.0, 0.1)
    assert not best.improved(2.5, 0.2)
    assert not best.is_stale(0.35)
    assert best.improved(1.9, 0.38)
    assert not best.is_stale(0.6)
    assert best.is_stale(0.7)
    assert best.value == 1.9
