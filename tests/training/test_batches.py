# SPDX-License-Identifier: Apache-2.0
"""Training rows equal the rows of served prompts, in both layouts, and each frame knows the row of its text token."""

import numpy as np
import pytest
import torch

from polyvox.models.qwen3_tts.config import ModelConfig, parse_config
from polyvox.models.qwen3_tts.prompt import build_prompt
from polyvox.models.request import Layout
from polyvox.models.talker_prompt import NO_CODE
from toy_pool import TOKEN_BYTES, random_pool
from training.batches import IGNORED, LIVE_LEAD, NEWLINE, Batch, Batches, row_count
from training.layout import SAMPLING, SPEAKERS, voice_files
from training.pool import Pool

LENGTH = 64


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return parse_config(voice_files(SAMPLING))


@pytest.fixture(scope="module")
def pool() -> Pool:
    return random_pool([5, 1, 9], [7, 4, 6], [0, 1, 0])


def rows(config: ModelConfig, pool: Pool, entry: int, live: bool, auto: bool) -> Batch:
    batches = Batches(pool, config, torch.device("cpu"))
    return batches.rows(torch.tensor([entry]), torch.tensor([live]), torch.tensor([auto]), LENGTH)


@pytest.mark.parametrize("layout", ["whole", "streaming"])
@pytest.mark.parametrize("language", ["english", "auto"])
@pytest.mark.parametrize("entry", [0, 1, 2])
def test_training_rows_equal_the_served_rows(
    config: ModelConfig, pool: Pool, layout: Layout, language: str, entry: int
) -> None:
    batch = rows(config, pool, entry, layout == "streaming", language == "auto")
    first, count = pool.first_token[entry], pool.token_count[entry]
    text = pool.tokens[first : first + count].tolist()
    speaker = list(SPEAKERS)[pool.speaker[entry]]
    role = [config.im_start_id, config.assistant_id, NEWLINE]
    prompt = build_prompt(config, role, text, layout, language, speaker)
    begin = len(prompt)
    assert batch.text[0, :begin].tolist() == list(prompt.text)
    assert batch.control[0, :begin].tolist() == list(prompt.codec)
    assert (batch.frames[0, :begin] == NO_CODE).all()

    start, length = pool.first_frame[entry], pool.frame_count[entry]
    codes = pool.codes[start : start + length].astype(np.int64)
    if layout == "streaming":
        codes = np.concatenate([codes[:1]] * LIVE_LEAD + [codes])
    said = slice(begin, begin + len(codes))
    assert np.array_equal(batch.frames[0, said].numpy(), codes)
    assert (batch.frames[0, said.stop :] == NO_CODE).all()
    assert (batch.control[0, begin:] == NO_CODE).all()
    trailing = [*prompt.trailing, *[config.tts_pad_id] * LENGTH][: len(codes)]
    assert batch.text[0, said].tolist() == trailing

    assert batch.target[0, begin - 1 : said.stop].tolist() == [*codes[:, 0].tolist(), config.talker.eos_id]
    assert (batch.target[0, : begin - 1] == IGNORED).all()
    assert (batch.target[0, said.stop :] == IGNORED).all()
    assert np.array_equal(batch.following[0, begin - 1 : said.stop - 1].numpy(), codes)
    assert said.stop <= row_count(pool)[entry]


@pytest.mark.parametrize("layout", ["whole", "streaming"])
@pytest.mark.parametrize("entry", [0, 1, 2])
def test_each_frame_has_the_row_of_its_text_token(config: ModelConfig, pool: Pool, layout: Layout, entry: int) -> None:
    live = layout == "streaming"
    batch = rows(config, pool, entry, live, False)
    first, count = int(pool.first_token[entry]), int(pool.token_count[entry])
    start, length = int(pool.first_frame[entry]), int(pool.frame_count[entry])
    text = pool.tokens[first : first + count].tolist()
    token_rows = [
        next(row for row in range(9, LENGTH) if batch.text[0, row : row + count - i].tolist() == text[i:])
        for i in range(count)
    ]
    expected = [token_rows[byte // TOKEN_BYTES] for byte in pool.positions[start : start + length].tolist()]
    expected = [*[expected[0]] * (LIVE_LEAD * live), *expected, token_rows[-1] + 1]
    assert batch.text[0, token_rows[-1] + 1] == config.tts_eos_id
    before = int((batch.target[0] != IGNORED).nonzero()[0])
    found = batch.spoken_row[0, before : before + len(expected)].tolist()
    # In the live layout the token of a frame may come later than the frame.
    assert found == [row if row <= before + i else IGNORED for i, row in enumerate(expected)]
    assert (batch.spoken_row[0, :before] == IGNORED).all()
    assert (batch.spoken_row[0, before + len(expected) :] == IGNORED).all()
