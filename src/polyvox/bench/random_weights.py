# SPDX-License-Identifier: Apache-2.0
"""Models with random weights at the published sizes, for benchmarks without a checkpoint. Their audio is noise."""

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from polyvox.models.qwen3_tts.config import ModelConfig
from polyvox.models.qwen3_tts.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from polyvox.engine.config import EngineConfig
    from polyvox.models.qwen3_tts.model import Qwen3TTS
    from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
    from polyvox.tts import TTS

SIZES = ("0.6B", "1.7B")
TEXT_IDS = 1000  # ids below this are ordinary text in every vocabulary of the family
LINE_BREAK = 198


class SyntheticTokenizer(TextTokenizer):
    """A tokenizer without a vocabulary: one id per word, or a fixed number of ids per text."""

    def __init__(self, config: ModelConfig, num_tokens: int | None) -> None:
        self.role = [config.im_start_id, config.assistant_id, LINE_BREAK]
        self._num_tokens, self._num_ids = num_tokens, min(TEXT_IDS, config.talker.text_vocab_size // 2)

    def _encode(self, text: str) -> list[int]:
        words = text.split() if self._num_tokens is None else [f"{i}{text}" for i in range(self._num_tokens)]
        return [int.from_bytes(hashlib.sha256(word.encode()).digest()[:4]) % self._num_ids for word in words]


def random_weights(size: str, device: str, dtype: str) -> "Qwen3TTS":
    """A model of one of SIZES."""
    from polyvox.models.qwen3_tts.synthetic import published_files, random_model
    from polyvox.tts import placement

    return random_model(published_files(size, "custom_voice"), *placement(device, dtype))  # type: ignore[arg-type]


def random_speech_model(
    size: str, device: str, dtype: str, num_tokens: int | None, frames: int | None = None
) -> "Qwen3TTSModel":
    """Such a model for an engine.

    num_tokens: ids per text, by default one per word. frames: exact length of every utterance, by default requested.
    """
    from polyvox.models.info import ModelIdentity
    from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel

    model = random_weights(size, device, dtype)
    if frames is not None:
        object.__setattr__(model.config, "sampling", replace(model.config.sampling, min_frames=frames))
        object.__setattr__(model.config, "max_frames", frames)
    identity = ModelIdentity(f"random-{size}", f"random-{size}")
    return Qwen3TTSModel(model, SyntheticTokenizer(model.config, num_tokens), identity)


def random_tts(size: str, device: str, dtype: str, config: "EngineConfig", num_tokens: int | None) -> "TTS":
    """An engine with such a model."""
    from polyvox.tts import TTS

    return TTS(random_speech_model(size, device, dtype, num_tokens), config)
