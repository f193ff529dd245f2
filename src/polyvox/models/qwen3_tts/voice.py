"""A voice that was not trained into a checkpoint: what a Base model needs to speak in it."""

from dataclasses import dataclass

from torch import Tensor

from polyvox.errors import InvalidRequest
from polyvox.models.qwen3_tts.config import ModelConfig


@dataclass(frozen=True, slots=True)
class ClonedVoice:
    """The speaker vector of a recording; with the recording's codes and transcript, speech continues it."""

    vector: Tensor  # [talker hidden]
    codes: Tensor | None = None  # [frames, groups]
    transcript: str | None = None

    def check(self, config: ModelConfig) -> None:
        """Raises InvalidRequest where the voice was made for a model of other sizes, or is half given."""
        hidden, groups = config.talker.transformer.hidden_size, config.talker.code_groups
        if list(self.vector.shape) != [hidden]:
            raise InvalidRequest("voice.vector", list(self.vector.shape), f"the shape [{hidden}] for this model")
        if (self.codes is None) != (self.transcript is None):
            raise InvalidRequest("voice.transcript", self.transcript, "codes and transcript together, or neither")
        if self.codes is not None:
            if self.codes.dim() != 2 or self.codes.shape[1] != groups or not len(self.codes):
                raise InvalidRequest("voice.codes", list(self.codes.shape), f"the shape [frames, {groups}]")
            size = config.predictor.vocab_size
            if self.codes.is_floating_point() or not 0 <= int(self.codes.min()) <= int(self.codes.max()) < size:
                raise InvalidRequest("voice.codes", "their values", f"whole numbers from 0 to {size - 1}")
