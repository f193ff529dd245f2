# SPDX-License-Identifier: Apache-2.0
"""Generated codes 0 are those of the training pass after the same frames; phonemes of texts are found in them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from polyvox import kernels
from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.talker import Talker
from toy_pool import random_pool
from toy_talker import random_talker
from training.batches import IGNORED, Batches
from training.corpus import Phonemes
from training.encoder import PHONEMES, SpeechEncoder
from training.free_running import Found, find, generate, possible_phonemes, report, spoken
from training.layout import CODE_0_SIZE, CODE_DIM, NUM_CODEBOOKS, RESIDUAL_SIZE, SAMPLING, voice_files
from training.losses import predict_codes, read
from training.symbols import to_ids
from training.units import UNITS_PER_FRAME

CONFIG = parse_config(voice_files(SAMPLING))
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def talker() -> Talker:
    return random_talker().eval()


@torch.no_grad()
@pytest.mark.parametrize("live", [False, True])
def test_generation_equals_the_training_pass_over_generated_frames(talker: Talker, live: bool) -> None:
    flags = torch.full((2,), live)
    batch = Batches(random_pool([4, 2], [3, 3]), CONFIG, CPU).rows(torch.arange(2), flags, flags, 26)
    frames = torch.full_like(batch.frames, -1)
    begin = (batch.target != IGNORED).int().argmax(1)
    with kernels.disabled():
        made = generate(talker, batch, CONFIG.talker.eos_id, 0.0)
        for row in range(25):  # one frame after another, over the whole sequence
            hidden = read(talker, batch, frames)[:, row]
            first = talker.codec_head(hidden)[:, :CODE_0_SIZE].argmax(-1)
            said = row >= begin
            frames[said, row + 1] = torch.cat([first[:, None], predict_codes(talker, hidden, first)], 1)[said]
    for entry, codes in enumerate(made):
        expected = frames[entry, int(begin[entry]) + 1 :, 0].tolist()
        assert len(codes) >= 5
        assert codes[: len(expected)].tolist() == expected[: len(codes)]


def units(spelled: str) -> np.ndarray:
    """Which phoneme each unit is."""
    return np.eye(PHONEMES, dtype=bool)[to_ids(spelled)]


def test_missing_phonemes_and_lost_ends() -> None:
    text = np.array(to_ids("hɛlOðɛɹ"))

    def found(spelled: str) -> Found:
        return find(units(spelled)[:, text].T)

    assert found("hhhɛlllOO ððɛɛɹ") == Found(7, 0, False)
    assert found("hhhælllOO ɛɛɹ") == Found(7, 2, False)
    assert found("hhhɛlllOO") == Found(7, 3, True)
    assert found("hhhɛlllOO ð") == Found(7, 2, False)
    assert found("ɹɹɛɛð OOlɛh").missing == 4  # in another order
    assert find(units("")[:, text].T) == Found(7, 7, True)


def test_repetitions_pauses_and_stress_are_left_out() -> None:
    assert spoken(np.array(to_ids("hhˈɛɛ l, lO."))).tolist() == to_ids("hɛlO")


def test_a_unit_may_be_each_phoneme_that_the_encoder_expects() -> None:
    torch.manual_seed(0)
    encoder = SpeechEncoder(NUM_CODEBOOKS, CODE_0_SIZE, RESIDUAL_SIZE, CODE_DIM)
    last = encoder.phonemes.name[-1]
    assert isinstance(last, torch.nn.Linear)
    with torch.no_grad():
        last.weight.zero_()
        last.bias.fill_(-10.0)
        last.bias.view(-1, PHONEMES)[1, [44, 46]] = torch.tensor([3.0, 1.0])
        last.bias.view(-1, PHONEMES)[2, [48, 50]] = torch.tensor([9.0, 1.0])
    possible = possible_phonemes(encoder)
    assert possible.shape == (CODE_0_SIZE, UNITS_PER_FRAME, PHONEMES)
    assert np.nonzero(possible[5, 1])[0].tolist() == [44, 46]
    assert np.nonzero(possible[5, 2])[0].tolist() == [48]


def test_the_report_has_true_codes_and_both_layouts(talker: Talker, tmp_path: Path) -> None:
    pool = random_pool([3] * 3, [6] * 3, held_out=2)
    names = np.arange(CODE_0_SIZE) % 40 + 44
    np.savez(tmp_path / "phonemes.npz", ids=names[pool.codes[:, 0]], counts=np.full(3, 6), voices=np.zeros(3, np.uint8))
    possible = np.repeat(np.eye(PHONEMES, dtype=bool)[names][:, None], UNITS_PER_FRAME, 1)
    with kernels.disabled():
        true, *rows = report(talker, CONFIG, pool, Phonemes(tmp_path), possible, 2, CPU)
    assert true == {"codes": "true", "missing": 0.0, "lost_ends": 0.0}
    assert [(row["codes"], row["temperature"]) for row in rows] == [
        ("whole", 0.0), ("whole", 0.3), ("live", 0.0), ("live", 0.3),
    ]  # fmt: skip
    assert all(float(row["missing"]) > 0.3 for row in rows)
