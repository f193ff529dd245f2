"""Speech that was only timed teaches code 0 and nothing else."""

import numpy as np
import pytest
import torch

from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.talker import Talker
from training.batches import Batches
from training.layout import BOOKS, SAMPLING, initialise, voice_files
from training.losses import first_loss, read, rest_loss
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
    """Of one entry that was spoken (0) and one that was only timed (1)."""
    codes = np.random.default_rng(0).integers(0, 512, (14, BOOKS)).astype(np.uint16)
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
    return first_loss(talker, hidden, batch, CONFIG.talker.eos_id)[0], rest_loss(talker, hidden, batch, count)


def test_codes_that_nobody_heard_are_not_learned(talker: Talker) -> None:
    with torch.enable_grad():
        first, rest = losses(talker, [1], 20)
        (first + rest.sum()).backward()
    assert rest.tolist() == [0.0] * (BOOKS - 1)
    learned, unheard = talker.codec_head.weight.grad, talker.code_predictor.lm_head.weight.grad
    assert learned is not None
    assert learned.abs().sum() > 0
    assert unheard is not None
    assert not unheard.any()
    spoken, both = losses(talker, [0], None)[1], losses(talker, [0, 1], None)[1]
    torch.testing.assert_close(both, spoken)
    torch.testing.assert_close(losses(talker, [0, 1], 20)[1], spoken)  # eight frames are known, the rest fills up


def test_code_0_is_learned_from_both(talker: Talker) -> None:
    spoken, timed, both = (losses(talker, entries, None)[0] for entries in ([0], [1], [0, 1]))
    torch.testing.assert_close(both, (9 * spoken + 7 * timed) / 16)  # frames and an end each
