"""A model that speaks noise: random weights at the published sizes, for benchmarks where no checkpoint is at hand."""

import hashlib
from typing import TYPE_CHECKING

from polyvox.models.qwen3_tts.config import ModelConfig
from polyvox.models.qwen3_tts.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from polyvox.engine.config import EngineConfig
    from polyvox.models.qwen3_tts.model import Qwen3TTS
    from polyvox.tts import TTS

PLAIN_IDS = 1000  # ids below this are ordinary text in every vocabulary of the family
LINE_BREAK = 198


class CountedTokens(TextTokenizer):
    """Stands for a tokenizer that is not there: a text has an id for each word, or as many as it is told."""

    def __init__(self, config: ModelConfig, tokens: int | None) -> None:
        self.role = [config.im_start_id, config.assistant_id, LINE_BREAK]
        self._count, self._ids = tokens, min(PLAIN_IDS, config.talker.text_vocab_size // 2)

    def _encode(self, text: str) -> list[int]:
        words = text.split()
        words = words if self._count is None else [f"{i}{text}" for i in range(self._count)]
        return [int.from_bytes(hashlib.sha256(word.encode()).digest()[:4]) % self._ids for word in words]


def random_weights(size: str, device: str, dtype: str) -> "Qwen3TTS":
    """A model of the size 0.6B or 1.7B."""
    from polyvox.models.qwen3_tts.synthetic import published_files, random_model
    from polyvox.tts import placement

    return random_model(published_files(size, "custom_voice"), *placement(device, dtype))  # type: ignore[arg-type]


def random_tts(size: str, device: str, dtype: str, config: "EngineConfig", tokens: int | None) -> "TTS":
    """The same behind an engine."""
    from polyvox.models.info import ModelIdentity
    from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
    from polyvox.tts import TTS

    model = random_weights(size, device, dtype)
    identity = ModelIdentity(f"random-{size}", f"random-{size}")
    return TTS(Qwen3TTSModel(model, CountedTokens(model.config, tokens), identity), config)
