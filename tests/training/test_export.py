# SPDX-License-Identifier: Apache-2.0
"""Exported weights, loaded by the engine, give the tokens of the training forward pass."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from conftest import LoadedTTS
from parity import run
from polyvox import load
from polyvox.models.qwen3_tts.checkpoint import load_weights
from polyvox.models.qwen3_tts.codec import CodecDecoder
from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.talker import Talker
from polyvox.models.request import Layout
from polyvox.models.tokenizer import TextTokenizer
from polyvox.text.phonemes import ALPHABET, phonemize
from polyvox.tts import EMBEDDED_VOICE
from reference.cases import Case, Utterance
from toy_pool import random_pool
from toy_talker import random_talker
from training.batches import Batches
from training.export import export
from training.layout import CODE_0_SIZE, NUM_CODEBOOKS, SAMPLING, initialise, voice_files
from training.losses import read
from training.tokens import load_tokenizer

pytestmark = pytest.mark.slow

TEXT = "Good morning, my neighbor has 3 cats."


@pytest.fixture(scope="module")
def talker() -> Talker:
    talker = random_talker()
    with torch.no_grad():
        talker.half().float()  # the precision of the file
    return talker.eval()


@pytest.fixture(scope="module")
def exported(talker: Talker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    decoder = CodecDecoder(parse_config(voice_files(SAMPLING)).codec)
    initialise(decoder)
    folder = tmp_path_factory.mktemp("voice")
    export(talker, decoder, EMBEDDED_VOICE, folder, dict(SAMPLING))
    return folder


@pytest.mark.parametrize("layout", ["whole", "streaming"])
def test_an_exported_voice_gives_the_codes_of_the_training_pass(talker: Talker, exported: Path, layout: Layout) -> None:
    with load(exported, "cpu") as loaded:
        tts = cast(LoadedTTS, loaded)
        said = run(tts, Case(layout, "exported", layout, (Utterance(phonemize(TEXT), "auto", "michael"),)), {}).codes[0]
    config, ids = tts.model.config, np.array(tts.model.tokenizer.text(TEXT), np.int16)
    codes = said[1:] if layout == "streaming" else said  # this layout repeats the first frame
    pool = replace(random_pool([len(ids)], [len(codes)]), tokens=ids, codes=codes.astype(np.uint16))
    streaming = torch.tensor([layout == "streaming"])
    batches = Batches(pool, config, torch.device("cpu"))
    batch = batches.rows(torch.tensor([0]), streaming, torch.tensor([True]), 256)
    frames = batch.frames.clone()
    if layout == "streaming":
        first = int((frames[0, :, 0] >= 0).nonzero()[0])
        frames[0, first] = torch.from_numpy(said[0])
    with torch.inference_mode():
        scores = talker.codec_head(read(talker, batch, frames))[0, :, :CODE_0_SIZE]
    begin = int((batch.frames[0, :, 0] >= 0).nonzero()[0]) - 1
    assert scores[begin : begin + len(said)].argmax(-1).tolist() == said[:, 0].tolist()


def test_the_embedded_voice_is_small() -> None:
    size = sum(path.stat().st_size for path in EMBEDDED_VOICE.rglob("*") if path.is_file())
    assert size <= 40_000_000


def test_an_exported_voice_reads_phonemes_and_all_codebooks(exported: Path) -> None:
    config = load_weights(exported, torch.device("cpu"), torch.float32).config
    assert config.phoneme_alphabet == ALPHABET
    assert config.talker.code_groups == NUM_CODEBOOKS


def test_training_and_serving_tokenize_alike() -> None:
    served = TextTokenizer(EMBEDDED_VOICE, parse_config(voice_files(SAMPLING)))
    trained = load_tokenizer(EMBEDDED_VOICE)
    for text in (TEXT, "Isn't it five to ten?", "naïve café, half off!"):
        assert served.text(text) == trained.encode(phonemize(text), add_special_tokens=False).ids
