# SPDX-License-Identifier: Apache-2.0
"""A Qwen3-TTS checkpoint behind the engine's protocol: validates requests, builds prompts and clones voices."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyvox.audio.samples import Samples
from polyvox.errors import NOT_SHOWN, InvalidRequest
from polyvox.models.codec_vocoder import CodecContext, CodecVocoder
from polyvox.models.content_cache import ContentCache
from polyvox.models.info import Capability, ModelIdentity, ModelInfo
from polyvox.models.protocol import PreparedRequest
from polyvox.models.qwen3_tts.cloning import MAX_SECONDS, Cloner
from polyvox.models.qwen3_tts.config import ModelConfig
from polyvox.models.qwen3_tts.model import Qwen3TTS
from polyvox.models.qwen3_tts.prompt import Reference, build_prompt, languages
from polyvox.models.qwen3_tts.voice_genders import VOICE_GENDERS
from polyvox.models.request import ClonedVoice, Request
from polyvox.models.request_checks import MAX_TEXT, SPLIT_HINT, check_options, check_text
from polyvox.models.streaming_tokenizer import TextStreamTokenizer
from polyvox.models.talker_generator import NEVER, SamplingPayload, TalkerGenerator, frame_limits
from polyvox.models.tokenizer import TextTokenizer
from polyvox.text.phonemes import unmark_phonemes

# A live text has no length yet: two minutes, unless the request has a limit.
LIVE_MAX_FRAMES = 1500
MAX_CACHED_VOICES = 32
NO_CODES: NDArray[np.int64] = np.zeros((0, 0), np.int64)
# For errors: a published model with each capability.
PUBLISHED: dict[Capability, str] = {
    "voices": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
    "takes_instructions": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
    "designs_voices": "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign",
    "can_clone": "Qwen/Qwen3-TTS-12Hz-1.7B-Base",
    "takes_conversations": "Qwen/Qwen3-Omni-30B-A3B-Instruct",
}


@dataclass(frozen=True, slots=True, eq=False)
class PreparedVoice:
    """What prompts need of a cloned voice."""

    rows: Tensor  # [1 + frames, hidden]: the speaker vector, then the recording's frames
    reference: Reference | None = None
    context: CodecContext | None = None


def _check_array(
    field: str, value: object, dtype_kinds: Literal["f", "iu"], requirement: str, shape: list[int | None]
) -> None:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in dtype_kinds:
        raise InvalidRequest(field, type(value).__name__, requirement)
    if value.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, value.shape, strict=True)):
        raise InvalidRequest(field, list(value.shape), requirement)


def model_info(config: ModelConfig, identity: ModelIdentity) -> ModelInfo:
    """The capabilities of a checkpoint with this config."""
    return ModelInfo(
        identity=identity,
        voices=tuple(config.talker.speakers),
        languages=tuple(languages(config)),
        takes_instructions=config.takes_instructions,
        designs_voices=config.kind == "voice_design",
        hidden_size=config.talker.transformer.hidden_size,
        frame_seconds=config.codec.samples_per_frame / config.codec.sample_rate,
        sampling=config.sampling,
        max_reference_seconds=MAX_SECONDS if config.encoders else None,
        voice_genders={name: VOICE_GENDERS[name] for name in config.talker.speakers if name in VOICE_GENDERS},
        takes_phonemes=config.phoneme_alphabet is not None,
        alternatives=PUBLISHED,
    )


class Qwen3TTSModel:
    """One loaded checkpoint; see protocol.py."""

    def __init__(self, model: Qwen3TTS, tokenizer: TextTokenizer, identity: ModelIdentity) -> None:
        self.model, self.tokenizer, self.config, self.identity = model, tokenizer, model.config, identity
        self.generator = TalkerGenerator(model.talker, model.config.talker, model.config.tts_pad_id)
        self.vocoder = CodecVocoder(model.codec)
        self._voices: ContentCache[PreparedVoice] = ContentCache(MAX_CACHED_VOICES)
        self._cloner = Cloner(model.encoders, self.vocoder.sample_rate) if model.encoders else None

    @property
    def voices(self) -> list[str]:
        """Built-in voices."""
        return list(self.config.talker.speakers)

    def info(self) -> ModelInfo:
        return model_info(self.config, self.identity)

    def _on_device(self) -> AbstractContextManager[object]:
        """Makes the generator's device current in a caller's thread, where it is the first one by default."""
        device = self.generator.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    # Cloning

    @property
    def cloner(self) -> Cloner:
        """Raises InvalidRequest if this checkpoint cannot clone."""
        if self._cloner is None:
            raise self.info().unsupported("recording", NOT_SHOWN, "can_clone")
        return self._cloner

    def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:
        """The voice of a recording at the vocoder's sample rate.

        With the transcript of the recording, speech continues it; without one, only the speaker vector is used. Silence
        at both ends is trimmed. Results are cached by content.
        """
        cloner = self.cloner
        if transcript is not None:
            if not isinstance(transcript, str) or len(transcript) > MAX_TEXT:
                raise InvalidRequest("transcript", transcript, f"must be a string of at most {MAX_TEXT:,} characters")
            self.tokenizer.text(transcript, "transcript")
        with self._on_device():
            return cloner.clone(samples, transcript)

    # Preparing

    def streaming_tokenizer(self, request: Request) -> TextStreamTokenizer:
        if request.layout == "whole":
            raise InvalidRequest("layout", request.layout, "must be streaming when text is appended")
        self._check(request)
        return TextStreamTokenizer(self.tokenizer, needs_words=request.segment == 0)

    def prepare(self, request: Request, ids: list[int] | None = None) -> PreparedRequest:
        speaker, cloned = self._check(request)
        config, live = self.config, ids is not None
        layout = request.layout or ("streaming" if config.kind == "base" or live else "whole")
        voice = self._prepare_voice(cloned) if cloned is not None else None
        tokens = ids if ids is not None else self.tokenizer.text(request.text, needs_words=request.segment == 0)
        if len(tokens) > config.max_frames:
            requirement = f"must have at most {config.max_frames} tokens but has {len(tokens)}"
            raise InvalidRequest("text", request.text, requirement, SPLIT_HINT)
        prompt = build_prompt(
            config,
            self.tokenizer.role,
            tokens,
            layout,
            request.language,
            speaker,
            voice is not None,
            voice.reference if voice is not None else None,
            self.tokenizer.instructions(request.instructions) if request.instructions else (),
        )
        positions_left = config.talker.max_positions - len(prompt) - 1
        if positions_left < 1:
            requirement = (
                f"text, instructions and reference must be below {config.talker.max_positions} tokens in total"
            )
            raise InvalidRequest("text", request.text, requirement)
        requested = min(request.max_frames or config.max_frames, positions_left)
        expected, longest = frame_limits(len(unmark_phonemes(request.text).encode()))
        if live:
            expected, longest = NEVER, request.max_frames or LIVE_MAX_FRAMES
            # Without the row that closes the text: it is written when the text is finished.
            trailing = prompt.trailing[:-1]
        else:
            trailing = prompt.trailing
        if not request.guard:
            expected, longest = NEVER, requested
        rows = self.generator.prompt_rows(prompt)
        return PreparedRequest(
            rows=rows
            if voice is None
            else replace(rows, given=voice.rows, given_at=prompt.voice_rows(len(voice.rows) - 1)),
            text=self.generator.text_ids(trailing),
            max_frames=min(requested, longest),
            guarded=longest < requested and not live,
            tokens=len(tokens),
            generator_payload=SamplingPayload(
                request.seed or 0, request.segment, request.sampling or config.sampling, expected
            ),
            vocoder_context=voice.context if voice is not None else None,
            silent=self.tokenizer.is_silent(tokens),
        )

    def text_ids(self, ids: list[int], last: bool) -> list[int]:
        return self.generator.text_ids([*ids, self.config.tts_eos_id] if last else ids)

    def _prepare_voice(self, voice: ClonedVoice) -> PreparedVoice:
        """What prompts need of a voice, cached for the most recent ones."""
        vector, codes = voice.vector.astype(np.float32), NO_CODES if voice.codes is None else voice.codes
        transcript = np.frombuffer((voice.transcript or "").encode(), np.uint8)
        content = np.concatenate([vector.view(np.int32), [codes.size], codes.ravel(), transcript])
        return self._voices.get(content, lambda: self._new_voice(vector, codes, voice.transcript))

    def _new_voice(
        self, vector: NDArray[np.float32], codes: NDArray[np.int64], transcript: str | None
    ) -> PreparedVoice:
        generator = self.generator
        with torch.inference_mode(), self._on_device():
            rows = torch.from_numpy(vector)[None].to(generator.device, generator.dtype)
            if transcript is None:
                return PreparedVoice(rows)
            frames = torch.from_numpy(codes.astype(np.int64))
            rows = torch.cat([rows, generator.talker.frame_rows(frames.to(generator.device))])
            reference = Reference(self.tokenizer.text(transcript, "voice.transcript"), len(frames))
            return PreparedVoice(rows, reference, self.vocoder.context_after(frames))

    # Validation

    def _check(self, request: Request) -> tuple[str | None, ClonedVoice | None]:
        """Raises InvalidRequest; returns the voice as `_voice` does."""
        check_text("text", request.text)
        check_text("instructions", request.instructions or "")
        if request.thinker_prompt is not None:
            raise self.info().unsupported("thinker_prompt", NOT_SHOWN, "takes_conversations")
        if request.instructions and not self.config.takes_instructions:
            hint = "VoiceDesign models and the 1.7B CustomVoice model take instructions."
            raise InvalidRequest("instructions", request.instructions, "is not supported by this model", hint)
        if not isinstance(request.language, str):
            raise InvalidRequest("language", request.language, languages(self.config))
        check_options(request, self.config.talker.max_positions)
        if request.layout not in (None, "whole", "streaming"):
            raise InvalidRequest("layout", request.layout, ("whole", "streaming"))
        return self._voice(request)

    def _voice(self, request: Request) -> tuple[str | None, ClonedVoice | None]:
        """The built-in speaker or the cloned voice of a request; None and None for a designed voice."""
        voice = request.voice
        if self.config.kind == "custom_voice":
            if isinstance(voice, ClonedVoice):
                requirement = f"must be one of {', '.join(self.voices)}; only Base models take a cloned voice"
                raise InvalidRequest("voice", NOT_SHOWN, requirement)
            if voice is None:
                return self.voices[0], None
            if not isinstance(voice, str) or voice.lower() not in self.voices:
                raise InvalidRequest("voice", voice, self.voices)
            return voice, None
        if self.config.kind == "voice_design":
            if voice is not None:
                hint = "Describe the voice in 'instructions'."
                raise InvalidRequest("voice", voice, "is not supported by this model", hint)
            return None, None
        if not isinstance(voice, ClonedVoice):
            raise InvalidRequest("voice", voice, "must be a ClonedVoice, because a Base model has no built-in voices")
        self._check_clone(voice)
        return None, voice

    def _check_clone(self, voice: ClonedVoice) -> None:
        hidden, groups = self.config.talker.transformer.hidden_size, self.config.talker.code_groups
        size = self.config.predictor.vocab_size
        _check_array(
            "voice.vector", voice.vector, "f", f"must be an array of {hidden} finite numbers for this model", [hidden]
        )
        if not np.isfinite(voice.vector).all():
            raise InvalidRequest("voice.vector", NOT_SHOWN, "must not have NaN or infinite numbers")
        if (voice.codes is None) != (voice.transcript is None):
            raise InvalidRequest("voice.transcript", voice.transcript, "codes and transcript require each other")
        if voice.codes is not None:
            requirement = f"must be an array of integers from 0 to {size - 1} in the shape [frames, {groups}]"
            _check_array("voice.codes", voice.codes, "iu", requirement, [None, groups])
            if not len(voice.codes) or not 0 <= voice.codes.min() <= voice.codes.max() < size:
                raise InvalidRequest("voice.codes", NOT_SHOWN, requirement)
            if not isinstance(voice.transcript, str):
                raise InvalidRequest("voice.transcript", voice.transcript, "must be a string")
