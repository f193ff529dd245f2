# SPDX-License-Identifier: Apache-2.0
"""Training rows equal the rows of served prompts, in both layouts."""

import numpy as np
import pytest
import torch

from polyvox.models.qwen3_tts.config import ModelConfig, parse_config
from polyvox.models.qwen3_tts.prompt import build_prompt
from polyvox.models.request import Layout
from polyvox.models.talker_prompt import NO_CODE
from training.batches import IGNORED, LIVE_LEAD, NEWLINE, Batches, row_count
from training.layout import NUM_CODEBOOKS, SAMPLING, SPEAKERS, voice_files
from training.pool import UNKNOWN, Pool

LENGTH = 64


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return parse_config(voice_files(SAMPLING))


@pytest.fixture(scope="module")
def pool() -> Pool:
    """Three entries: two synthesised, one per speaker, and one that was only timed."""
    draw = np.random.default_rng(0)
    tokens, frames = np.array([5, 1, 9], np.int32), np.array([7, 4, 6], np.int32)
    codes = draw.integers(0, 512, (frames.sum(), NUM_CODEBOOKS)).astype(np.uint16)
    codes[11:, 1:] = UNKNOWN
    starts = [np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int32) for counts in (tokens, frames)]
    spoken = np.array([True, True, False])
    text = draw.integers(300, 700, tokens.sum()).astype(np.int16)
    speakers = np.array([0, 1, 0], np.int32)
    nothing = np.full(len(codes), -1, np.int32)
    texts = np.arange(3, dtype=np.int32)
    return Pool(text, codes, nothing, starts[0], tokens, starts[1], frames, speakers, texts, spoken, ~spoken)


@pytest.mark.parametrize("layout", ["whole", "streaming"])
@pytest.mark.parametrize("language", ["english", "auto"])
@pytest.mark.parametrize("entry", [0, 1, 2])
def test_training_rows_equal_the_served_rows(
    config: ModelConfig, pool: Pool, layout: Layout, language: str, entry: int
) -> None:
    live = torch.tensor([layout == "streaming"])
    batch = Batches(pool, config, torch.device("cpu")).rows(
        torch.tensor([entry]), live, torch.tensor([language == "auto"]), LENGTH
    )
    first, count = pool.first_token[entry], pool.token_count[entry]
    text = pool.tokens[first : first + count].tolist()
    speaker = list(SPEAKERS)[pool.speaker[entry]]
    role = [config.im_start_id, config.assistant_id, NEWLINE]
    prompt = build_prompt(config, role, text, layout, language, speaker)
    rows = len(prompt)
    assert batch.text[0, :rows].tolist() == list(prompt.text)
    assert batch.control[0, :rows].tolist() == list(prompt.codec)
    assert (batch.frames[0, :rows] == NO_CODE).all()

    start, length = pool.first_frame[entry], pool.frame_count[entry]
    codes = pool.codes[start : start + length].astype(np.int64)
    codes[codes == UNKNOWN] = NO_CODE
    if layout == "streaming":
        codes = np.concatenate([codes[:1]] * LIVE_LEAD + [codes])
    said = slice(rows, rows + len(codes))
    assert np.array_equal(batch.frames[0, said].numpy(), codes)
    assert (batch.control[0, rows:] == NO_CODE).all()
    trailing = [*prompt.trailing, *[config.tts_pad_id] * LENGTH][: len(codes)]
    assert batch.text[0, said].tolist() == trailing

    assert batch.target[0, rows - 1 : rows + len(codes)].tolist() == [*codes[:, 0].tolist(), config.talker.eos_id]
    assert (batch.target[0, : rows - 1] == IGNORED).all()
    assert (batch.target[0, rows + len(codes) :] == IGNORED).all()
    assert np.array_equal(batch.following[0, rows - 1 : rows + len(codes) - 1].numpy(), codes)
    assert rows + len(codes) <= row_count(pool)[entry]
