# SPDX-License-Identifier: Apache-2.0
"""The code search recovers the codes of audio that the decoder made."""

import numpy as np
import pytest
import torch

from polyvox import kernels
from polyvox.models.qwen3_tts.checkpoint import load_weights
from polyvox.models.qwen3_tts.config import parse_config
from polyvox.tts import EMBEDDED_VOICE
from training import search_codes
from training.batches import Batches, row_count
from training.layout import NUM_CODEBOOKS, SAMPLING, voice_files
from training.pool import Packing, Utterance
from training.search_codes import CodeSearch
from training.tokens import load_tokenizer
from training.units import FRAME

pytestmark = pytest.mark.slow

FRAMES = 6


def test_the_search_finds_the_codes_of_decoded_speech(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_weights(EMBEDDED_VOICE, torch.device("cpu"), torch.float32)
    packing = Packing([load_tokenizer(EMBEDDED_VOICE)])
    packing.add(Utterance("Hello.", np.zeros((FRAMES, NUM_CODEBOOKS), np.uint16), 0, 0, True, False))
    pool = packing.pool()
    batches = Batches(pool, parse_config(voice_files(SAMPLING)), torch.device("cpu"))
    entry, rows = torch.zeros(1, dtype=torch.int64), int(row_count(pool)[0])
    silence = torch.zeros(FRAMES * FRAME, dtype=torch.int16)
    with kernels.disabled():
        with monkeypatch.context() as patch:
            patch.setattr(search_codes, "CANDIDATES", (1, 1, 1))  # the talker's most likely codes
            codes, _ = CodeSearch(model.talker, model.codec, batches, silence)(entry, rows, FRAMES)
        samples = model.codec(codes, model.codec.initial_state(1))[0][0]
        target = (samples * 32767).round().to(torch.int16)
        found, scores = CodeSearch(model.talker, model.codec, batches, target)(entry, rows, FRAMES)
    assert torch.equal(found, codes)
    assert scores["distance"] < 0.05
