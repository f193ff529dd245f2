# SPDX-License-Identifier: Apache-2.0
"""The speech side of a Qwen3-Omni checkpoint behind the engine's protocol.

A request has the prompt of a thinker, and the answer's token ids follow. A request with text is spoken as the answer to
an empty turn of the user.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from polyvox.audio.samples import Samples
from polyvox.errors import NOT_SHOWN, InvalidRequest
from polyvox.models.codec_vocoder import CodecVocoder
from polyvox.models.info import Capability, ModelIdentity, ModelInfo
from polyvox.models.protocol import NO_ID, PreparedRequest, PromptRows, StreamingTokenizer
from polyvox.models.qwen3_omni.answer import AnswerTokens, check_ids
from polyvox.models.qwen3_omni.config import OmniConfig
from polyvox.models.qwen3_omni.model import Qwen3Omni
from polyvox.models.qwen3_omni.prompt import OmniPrompt, build_prompt, media_tokens, read_tokens, rotary_offsets
from polyvox.models.request import AUTO, ClonedVoice, Request, ThinkerPrompt
from polyvox.models.request_checks import SPLIT_HINT, check_options, check_text
from polyvox.models.streaming_tokenizer import TextStreamTokenizer
from polyvox.models.talker_generator import MAX_OFFSET_ROWS, NEVER, SamplingPayload, TalkerGenerator, frame_limits
from polyvox.models.tokenizer import TextTokenizer

# Prompt rows for which an average stream has memory, beside the longest answer: its length is not known at its start.
AVERAGE_PROMPT = 512
# For errors: a published model with each capability.
PUBLISHED: dict[Capability, str] = {
    "takes_instructions": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
    "designs_voices": "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign",
    "can_clone": "Qwen/Qwen3-TTS-12Hz-1.7B-Base",
}


def model_info(config: OmniConfig, identity: ModelIdentity, has_tokenizer: bool) -> ModelInfo:
    """The capabilities of a checkpoint with this config."""
    # Instead of line breaks, whose id only a tokenizer knows, it has the token of silence.
    turns = (config.im_start_id, config.user_id, config.tts_pad_id, config.im_end_id)
    trial_prompt = (*turns, config.im_start_id, config.assistant_id, config.tts_pad_id)
    return ModelInfo(
        identity=identity,
        voices=tuple(config.talker.speakers),
        languages=(AUTO,),
        takes_instructions=False,
        designs_voices=False,
        hidden_size=config.talker.transformer.hidden_size,
        frame_seconds=config.code2wav.samples_per_frame / config.code2wav.sample_rate,
        sampling=config.sampling,
        takes_conversations=True,
        trial_prompt=() if has_tokenizer else trial_prompt,
        alternatives=PUBLISHED,
    )


class Qwen3OmniModel:
    """One loaded checkpoint; see protocol.py. Without a tokenizer it speaks only the answers of a thinker."""

    def __init__(self, model: Qwen3Omni, tokenizer: TextTokenizer | None, identity: ModelIdentity) -> None:
        self.model, self.config, self.identity = model, model.config, identity
        self._tokenizer = tokenizer
        self.generator = TalkerGenerator(
            model.talker, model.config.talker, model.config.tts_pad_id, AVERAGE_PROMPT + model.config.max_frames
        )
        self.vocoder = CodecVocoder(model.code2wav)

    def info(self) -> ModelInfo:
        return model_info(self.config, self.identity, self._tokenizer is not None)

    def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:  # noqa: ARG002
        raise self.info().unsupported("recording", NOT_SHOWN, "can_clone")

    # Preparing

    @property
    def tokenizer(self) -> TextTokenizer:
        """Raises InvalidRequest if the checkpoint has none."""
        if self._tokenizer is None:
            hint = "Send a conversation to /v1/chat/completions, or add vocab.json and merges.txt to the checkpoint."
            raise InvalidRequest("text", NOT_SHOWN, "is not supported by a checkpoint without a tokenizer", hint)
        return self._tokenizer

    def streaming_tokenizer(self, request: Request) -> StreamingTokenizer:
        self._check(request)
        if request.thinker_prompt is not None:
            return AnswerTokens(self.config)
        return TextStreamTokenizer(self.tokenizer)

    def prepare(self, request: Request, ids: list[int] | None = None) -> PreparedRequest:
        self._check(request)
        config, live = self.config, ids is not None
        tokens = self.tokenizer.text(request.text) if ids is None else ids
        if len(tokens) > config.max_frames:
            requirement = f"must have at most {config.max_frames} tokens but has {len(tokens)}"
            raise InvalidRequest("text", request.text, requirement, SPLIT_HINT)
        thinker_prompt = request.thinker_prompt or self._empty_turn()
        prompt = build_prompt(config, thinker_prompt.ids, tokens, self._speaker(request), closed=not live)
        positions_left = config.talker.max_positions - len(prompt.rows) - 1
        if positions_left < 1:
            requirement = f"must have fewer than {config.talker.max_positions} tokens of user turns"
            raise InvalidRequest("thinker_prompt", NOT_SHOWN, requirement)
        requested = min(request.max_frames or config.max_frames, positions_left)
        expected, longest = frame_limits(len(request.text.encode()))
        if live or not request.guard:
            expected, longest = NEVER, requested
        return PreparedRequest(
            rows=self._prompt_rows(prompt, thinker_prompt),
            text=self.generator.text_ids(prompt.rows.trailing),
            max_frames=min(requested, longest),
            guarded=longest < requested,
            tokens=len(tokens),
            generator_payload=SamplingPayload(
                request.seed or 0,
                request.segment,
                request.sampling or config.sampling,
                expected,
                self._rotary_offsets(prompt, thinker_prompt),
            ),
        )

    def _empty_turn(self) -> ThinkerPrompt:
        """The conversation of a text: a turn of the user without words."""
        config, role = self.config, self.tokenizer.role
        line_break = role[-1]
        return ThinkerPrompt((config.im_start_id, config.user_id, line_break, config.im_end_id, line_break, *role))

    def _prompt_rows(self, prompt: OmniPrompt, thinker_prompt: ThinkerPrompt) -> PromptRows:
        """Rows of audio, image and video tokens have no id: they are projections of the thinker's rows."""
        rows = self.generator.prompt_rows(prompt.rows)
        if not prompt.media:
            return rows
        at, counts = np.array(prompt.media).T
        if thinker_prompt.media_rows is None:
            hidden = np.zeros((len(at), self.config.talker.text_hidden_size), np.float32)
        else:
            hidden = thinker_prompt.media_rows[counts]
        rows.ids[0, at] = NO_ID
        with torch.inference_mode(), self._on_device():
            on_device = self.generator.to_device(hidden).to(self.generator.dtype)
            return replace(rows, given=self.model.talker.hidden_projection(on_device), given_at=at)

    def _rotary_offsets(self, prompt: OmniPrompt, thinker_prompt: ThinkerPrompt) -> Tensor | None:
        if thinker_prompt.positions is None:
            return None
        offsets = rotary_offsets(prompt, thinker_prompt.positions)
        if len(offsets) >= MAX_OFFSET_ROWS:
            requirement = f"must have its last image or video before token {MAX_OFFSET_ROWS} of the user turns"
            raise InvalidRequest("thinker_prompt", NOT_SHOWN, requirement)
        return torch.from_numpy(offsets)

    def text_ids(self, ids: list[int], last: bool) -> list[int]:
        return self.generator.text_ids([*ids, self.config.tts_eos_id] if last else ids)

    def _on_device(self) -> AbstractContextManager[object]:
        """Makes the generator's device current in a caller's thread, where it is the first one by default."""
        device = self.generator.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    # Validation

    def _check(self, request: Request) -> None:
        check_text("text", request.text)
        if request.instructions:
            raise self.info().unsupported("instructions", request.instructions, "takes_instructions")
        if request.language != AUTO:
            raise InvalidRequest("language", request.language, (AUTO,))
        if request.layout not in (None, "streaming"):
            raise InvalidRequest("layout", request.layout, ("streaming",))
        check_options(request, self.config.talker.max_positions)
        self._speaker(request)
        if request.thinker_prompt is not None:
            if request.text or not request.live:
                raise InvalidRequest("thinker_prompt", NOT_SHOWN, "requires a live request without text")
            self._check_thinker_prompt(request.thinker_prompt)

    def _check_thinker_prompt(self, prompt: ThinkerPrompt) -> None:
        talker = self.config.talker
        check_ids("thinker_prompt", prompt.ids, talker.text_vocab_size)
        read_tokens(self.config, prompt.ids)
        if prompt.media_rows is not None:
            shape = [len(media_tokens(self.config, prompt.ids)), talker.text_hidden_size]
            requirement = f"must be finite numbers of the shape {shape}, one row per audio, image and video token"
            if list(prompt.media_rows.shape) != shape or not np.isfinite(prompt.media_rows).all():
                raise InvalidRequest("media_rows", list(prompt.media_rows.shape), requirement)
        if prompt.positions is not None:
            shape = [3, len(prompt.ids)]
            if list(prompt.positions.shape) != shape or not np.isfinite(prompt.positions).all():
                requirement = f"must be finite numbers of the shape {shape}"
                raise InvalidRequest("positions", list(prompt.positions.shape), requirement)

    def _speaker(self, request: Request) -> str:
        voice, speakers = request.voice, tuple(self.config.talker.speakers)
        if isinstance(voice, ClonedVoice):
            requirement = f"must be one of {', '.join(speakers)}; only Base models take a cloned voice"
            raise InvalidRequest("voice", NOT_SHOWN, requirement)
        if voice is None:
            return speakers[0]
        if not isinstance(voice, str) or voice.lower() not in speakers:
            raise InvalidRequest("voice", voice, speakers)
        return voice
