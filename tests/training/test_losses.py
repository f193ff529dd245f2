# SPDX-License-Identifier: Apache-2.0
"""Losses are means over frames; the guide is the cross-entropy of one head's attention."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.talker import Talker
from toy_pool import random_pool
from toy_talker import random_talker
from training.batches import IGNORED, Batch, Batches
from training.guide import GuidedAttention, guide_loss
from training.layout import SAMPLING, voice_files
from training.losses import causal, code_0_loss, read, residual_loss

CONFIG = parse_config(voice_files(SAMPLING))
FRAMES = (8, 6)


@pytest.fixture(scope="module")
def talker() -> Talker:
    return random_talker()


def rows(entries: list[int], live: bool = False) -> Batch:
    pool = random_pool([4, 3], list(FRAMES))
    flags = torch.full((len(entries),), live)
    return Batches(pool, CONFIG, torch.device("cpu")).rows(torch.tensor(entries), flags, flags, 40)


def losses(talker: Talker, entries: list[int], count: int | None) -> tuple[Tensor, Tensor]:
    batch = rows(entries)
    hidden = read(talker, batch, batch.frames)
    return code_0_loss(talker, hidden, batch, CONFIG.talker.eos_id)[0], residual_loss(talker, hidden, batch, count)


def test_losses_are_means_over_frames(talker: Talker) -> None:
    (first, rest), (other, other_rest), (both, both_rest) = (losses(talker, some, None) for some in ([0], [1], [0, 1]))
    torch.testing.assert_close(both, (9 * first + 7 * other) / 16)  # frames and an end each
    torch.testing.assert_close(both_rest, (FRAMES[0] * rest + FRAMES[1] * other_rest) / sum(FRAMES))


def test_a_fixed_number_of_rows_has_the_frames_first(talker: Talker) -> None:
    torch.testing.assert_close(losses(talker, [0, 1], 20)[1], losses(talker, [0, 1], None)[1])  # 14 are frames


@pytest.mark.parametrize("live", [False, True])
def test_the_guide_is_the_attention_to_the_spoken_token(talker: Talker, live: bool) -> None:
    batch, seen = rows([0, 1], live), {}
    layers = CONFIG.talker.transformer.layers

    def keep(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen[layer] = q, k
        return causal(layer, q, k, v)

    hidden = read(talker, batch, batch.frames, keep)
    attention = GuidedAttention(layers, batch.spoken_row)
    torch.testing.assert_close(read(talker, batch, batch.frames, attention), hidden)
    q, k = seen[layers // 2]
    expected = []
    for entry, row in (batch.spoken_row != IGNORED).nonzero().tolist():
        scores = k[entry, : row + 1, 0] @ q[entry, row, 0] / q.shape[-1] ** 0.5
        expected.append(-F.log_softmax(scores, 0)[batch.spoken_row[entry, row]])
    torch.testing.assert_close(attention.loss, torch.stack(expected).mean())


def test_attention_to_the_spoken_token_has_no_loss() -> None:
    spoken_row = torch.tensor([[IGNORED, 0, 1, 1]])
    keys = torch.eye(4)[None, :, None] * 100
    queries = keys[:, spoken_row[0].clamp(min=0)]
    loss, right = guide_loss(queries, keys, spoken_row)
    assert float(loss) == pytest.approx(0, abs=1e-5)
    assert right == 1
    assert guide_loss(queries, keys.flip(1), spoken_row)[1] < 1
