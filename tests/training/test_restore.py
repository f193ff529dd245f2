# SPDX-License-Identifier: Apache-2.0
"""A restored voice, exported again, is the same checkpoint, and each stage of training can continue from it."""

import json
from pathlib import Path

import pytest
import torch

from polyvox.models.qwen3_tts.config import GENERATION_FILE, parse_config
from polyvox.models.qwen3_tts.talker import Talker
from polyvox.tts import EMBEDDED_VOICE
from training.codec import load_encoder
from training.export import export, load_decoder
from training.files import load_parts
from training.layout import voice_files
from training.restore import ENCODER, restore
from training.talker import load_talker


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    restore(EMBEDDED_VOICE, ENCODER, folder)
    return folder


def test_a_restored_voice_exports_to_the_same_files(work: Path, tmp_path: Path) -> None:
    sampling = json.loads((EMBEDDED_VOICE / GENERATION_FILE).read_text())
    talker = Talker(parse_config(voice_files(sampling)))
    load_talker(talker, work / "talker")
    export(talker, load_decoder(work / "codec"), work / "tokens", tmp_path, sampling)
    files = [path for path in EMBEDDED_VOICE.rglob("*") if path.suffix in (".json", ".txt", ".safetensors")]
    expected = {path.relative_to(EMBEDDED_VOICE) for path in files}
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()} == expected
    for name in expected:
        assert (tmp_path / name).read_bytes() == (EMBEDDED_VOICE / name).read_bytes(), name


def test_the_restored_encoder_has_the_codebooks_of_the_decoder(work: Path) -> None:
    encoder = load_encoder(work / "codec")
    kept = load_parts(work / "codec", "decoder")["quantizer.rvq_first.vq.layers.0._codebook.embedding_sum"]
    assert torch.allclose(encoder.first.table(), kept, rtol=0.01, atol=0.01)
