# SPDX-License-Identifier: Apache-2.0
"""Which entries the talker is trained on, when training ends, and one training step."""

from argparse import Namespace

import numpy as np
import pytest
import torch

from polyvox import kernels
from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.talker import Talker
from training.batches import Batches, row_count
from training.layout import NUM_CODEBOOKS, SAMPLING, initialise, voice_files
from training.losses import read
from training.pool import UNKNOWN, Pool
from training.talker import (
    MAX_STALE,
    Bucket,
    ModelSelection,
    TalkerTraining,
    buckets,
    compared,
    fuse_norms,
)

FRAMES = 10
LOSSES = {f"{layout}_{name}": 1.0 for layout in ("whole", "live") for name in ("own", "1", "2", "right")}


def small_pool(spoken: list[bool], held_out: list[bool]) -> Pool:
    """Entries of 3 tokens and 10 frames."""
    count = len(spoken)
    codes = np.random.default_rng(0).integers(0, 512, (count * FRAMES, NUM_CODEBOOKS)).astype(np.uint16)
    codes[np.repeat(~np.array(spoken), FRAMES), 1:] = UNKNOWN
    ones, index = np.ones(count, np.int32), np.arange(count, dtype=np.int32)
    words, flags = np.zeros(len(codes), np.int32), (np.array(spoken), np.array(held_out))
    tokens = np.arange(300, 300 + 3 * count).astype(np.int16)
    return Pool(tokens, codes, words, 3 * index, 3 * ones, FRAMES * index, FRAMES * ones, ones, index, *flags)


def test_synthesised_entries_have_their_share_of_a_step() -> None:
    bucket = Bucket(64, np.arange(70), np.arange(930))
    assert bucket.num_spoken(100) == 7
    assert bucket.num_spoken(4) == 1  # the code predictor is trained in each step
    assert bucket.weight == 64 * 1000
    none = np.arange(0)
    assert Bucket(64, np.arange(5), none).num_spoken(10) == 10
    assert Bucket(64, none, np.arange(5)).num_spoken(10) == 0


def test_held_out_entries_are_in_no_bucket() -> None:
    pool = small_pool([True, True, False, False], [True, False, False, True])
    (bucket,) = buckets(pool, row_count(pool))
    assert (bucket.spoken.tolist(), bucket.timed.tolist()) == ([1], [2])


def test_model_selection_depends_on_codes_0_to_2_only() -> None:
    assert compared(LOSSES | {"whole_right": 9.0}) == compared(LOSSES)
    worse = [compared(LOSSES | {f"live_{name}": 1.5}) for name in ("own", "1", "2")]
    assert worse[0] > worse[1] > worse[2] > compared(LOSSES)


def test_training_continues_while_code_0_improves_although_code_1_is_overfitted() -> None:
    selection = ModelSelection(MAX_STALE)
    assert selection.improved(LOSSES, 0.0)
    for step in range(1, 10):
        overfitted = LOSSES | {"whole_own": 1 - 0.01 * step, "whole_1": 1.0 + step}
        assert not selection.improved(overfitted, 0.1 * step)
        assert not selection.is_stale(0.1 * step)
    assert selection.score.value == compared(LOSSES)
    assert selection.is_stale(0.91 + MAX_STALE)


def test_fused_norms_give_the_same_hidden_states_and_gradients() -> None:
    torch.manual_seed(0)
    config = parse_config(voice_files(SAMPLING))
    pool = small_pool([True] * 2, [False] * 2)
    whole = torch.zeros(2, dtype=torch.bool)
    batch = Batches(pool, config, torch.device("cpu")).rows(torch.arange(2), whole, whole, 40)
    model = Talker(config)
    initialise(model)
    found = []
    for change in (lambda _: None, fuse_norms):
        change(model)
        model.zero_grad()
        with kernels.disabled(), torch.enable_grad():
            hidden = read(model, batch, batch.frames)
            hidden.square().sum().backward()
        layer = model.model.layers[0].self_attn
        found.append((hidden.detach(), layer.q_norm.weight.grad, layer.qkv.weight.grad))  # type: ignore[union-attr]
    for plain, fused in zip(*found, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-3, atol=1e-3 * float(plain.abs().max()))


@pytest.mark.parametrize("spoken", [True, False])
def test_a_step_trains_code_0_and_the_codes_that_are_known(spoken: bool) -> None:
    torch.manual_seed(0)
    pool = small_pool([spoken] * 4, [False] * 4)
    arguments = Namespace(rows=192, validation=4)
    with kernels.disabled(), torch.enable_grad():
        training = TalkerTraining(pool, parse_config(voice_files(SAMPLING)), torch.device("cpu"), arguments)
        training.captured(training.buckets[0])()
    assert training.seen["first"] > 1
    assert (training.seen["rest"] > 1) == spoken
    gradient = training.model.code_predictor.lm_head.weight.grad
    assert gradient is not None
    assert bool(gradient.any()) == spoken
