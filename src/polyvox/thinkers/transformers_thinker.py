# SPDX-License-Identifier: Apache-2.0
"""Qwen3-Omni's thinker in transformers: the reference implementation, exact for text, audio and images."""

import base64
import binascii
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from polyvox.audio import read_audio
from polyvox.audio.samples import Samples
from polyvox.errors import NOT_SHOWN, InvalidRequest
from polyvox.models.request import ThinkerPrompt
from polyvox.thinkers.interface import ChatBody

AUDIO_RATE, MAX_AUDIO_SECONDS = 16_000, 300.0  # of the feature extractor; of a recording
MAX_TOKENS, DEFAULT_TOKENS = 32_768, 1024  # of an answer
REPLACEMENT = "\ufffd"  # a character whose bytes are not complete


@dataclass(frozen=True, slots=True)
class GeneratedToken:
    """text: what is certain after this token. finish_reason: set with the last one."""

    id: int
    text: str
    finish_reason: str | None


class PromptReader(Protocol):
    """Messages to the inputs of the model, and ids to text."""

    def inputs(self, body: ChatBody) -> dict[str, torch.Tensor]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class TransformersThinker:
    """One model in this process. One answer at a time; blocks its thread."""

    def __init__(self, model: Any, prompts: PromptReader, eos_ids: Sequence[int]) -> None:
        self._model, self._prompts, self._eos_ids = model, prompts, tuple(eos_ids)
        config = model.config.thinker_config
        self._media_ids = [config.audio_token_id, config.image_token_id, config.video_token_id]
        self._vision_ids = self._media_ids[1:]
        self._hidden_layer = model.config.talker_config.accept_hidden_layer

    @classmethod
    def load(cls, name: str, device: str, dtype: str) -> "TransformersThinker":
        """Loads the thinker of a checkpoint, through host memory; its talker is not kept."""
        from transformers import Qwen3OmniMoeForConditionalGeneration, Qwen3OmniMoeProcessor

        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        processor = Qwen3OmniMoeProcessor.from_pretrained(name)
        model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(name, dtype=dtype)
        model.disable_talker()
        model.to(device)
        eos = model.thinker.generation_config.eos_token_id or processor.tokenizer.eos_token_id
        return cls(model.eval(), ProcessorPrompts(processor), [eos] if isinstance(eos, int) else eos)

    def answer(
        self,
        body: ChatBody,
        on_prompt: Callable[[ThinkerPrompt], None],
        on_token: Callable[[GeneratedToken], None],
        is_cancelled: Callable[[], bool],
    ) -> None:
        """Generates one answer. on_prompt is called with the first token. Raises InvalidRequest."""
        options = generation_options(body)
        inputs = {
            name: value.to(self._model.device, self._model.dtype if value.is_floating_point() else None)
            for name, value in self._prompts.inputs(body).items()
        }
        writer = _AnswerWriter(self._prompts.decode, self._eos_ids, options["max_new_tokens"], on_token)
        rows: list[torch.Tensor] = []  # hidden states of the prompt

        def keep_rows(_: Any, __: Any, output: Any) -> None:
            if not rows:
                rows.append(output[0] if isinstance(output, tuple) else output)

        def put(ids: torch.Tensor) -> None:
            if not writer.has_prompt:  # transformers begins with the prompt
                writer.has_prompt = True
                return
            if writer.num_tokens == 0:
                on_prompt(self._prompt(inputs, rows[0]))
            writer.put(int(ids.reshape(-1)[0]))

        # hidden_states[n] of transformers is the output of layer n - 1.
        hook = self._model.thinker.model.language_model.layers[self._hidden_layer - 1].register_forward_hook(keep_rows)
        if (seed := body.get("seed")) is not None:
            torch.manual_seed(seed)
        try:
            with torch.inference_mode():
                self._model.thinker.generate(
                    **inputs,
                    **options,
                    eos_token_id=list(self._eos_ids),
                    streamer=_Streamer(put),
                    stopping_criteria=[lambda ids, _: torch.full((len(ids),), is_cancelled(), device=ids.device)],
                )
        finally:
            hook.remove()

    def _prompt(self, inputs: Mapping[str, torch.Tensor], hidden: torch.Tensor) -> ThinkerPrompt:
        ids = inputs["input_ids"][0]
        is_media = torch.isin(ids, torch.tensor(self._media_ids, device=ids.device))
        media_rows = hidden[0][is_media].float().cpu().numpy() if is_media.any() else None
        positions = None
        if torch.isin(ids, torch.tensor(self._vision_ids, device=ids.device)).any():
            positions = self._positions(inputs)
        return ThinkerPrompt(tuple(ids.tolist()), media_rows, positions)

    def _positions(self, inputs: Mapping[str, torch.Tensor]) -> NDArray[np.float32]:
        mask = inputs.get("feature_attention_mask")
        found, _ = self._model.thinker.get_rope_index(
            inputs["input_ids"],
            inputs.get("image_grid_thw"),
            inputs.get("video_grid_thw"),
            torch.ones_like(inputs["input_ids"]),
            False,
            None if mask is None else mask.sum(1),
            inputs.get("video_second_per_grid"),
        )
        positions: NDArray[np.float32] = found[:, 0].float().cpu().numpy()
        return positions


class _Streamer:
    """The interface that transformers writes tokens to."""

    def __init__(self, put: Callable[[torch.Tensor], None]) -> None:
        self.put = put

    def end(self) -> None:
        pass


class _AnswerWriter:
    """Tokens with their text, as far as its characters are complete."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        eos_ids: tuple[int, ...],
        max_tokens: int,
        on_token: Callable[[GeneratedToken], None],
    ) -> None:
        self._decode, self._eos_ids, self._max_tokens, self._on_token = decode, eos_ids, max_tokens, on_token
        self.has_prompt = False
        self.num_tokens = 0
        self._pending: list[int] = []  # tokens since the last complete text

    def put(self, token: int) -> None:
        self.num_tokens += 1
        reason = "stop" if token in self._eos_ids else "length" if self.num_tokens == self._max_tokens else None
        if reason != "stop":
            self._pending.append(token)
        text = self._decode(self._pending) if self._pending else ""
        if text.endswith(REPLACEMENT) and reason is None:
            text = ""
        else:
            self._pending = []
        self._on_token(GeneratedToken(token, text, reason))


class ProcessorPrompts:
    """Prompts by the checkpoint's own processor: its chat template, audio features and image patches."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def inputs(self, body: ChatBody) -> dict[str, torch.Tensor]:
        audio: list[Any] = []
        images: list[Any] = []
        messages = [_read_message(message, audio, images) for message in body["messages"]]
        text = self._processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        found = self._processor(text=text, audio=audio or None, images=images or None, return_tensors="pt")
        return dict(found)

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._processor.tokenizer.decode(ids, skip_special_tokens=True)
        return text


def generation_options(body: ChatBody) -> dict[str, Any]:
    """The options of transformers' `generate`; raises InvalidRequest."""
    if body.get("tools"):
        raise InvalidRequest("tools", NOT_SHOWN, "is not supported by this LLM")
    options: dict[str, Any] = {}
    given = (body.get(name) for name in ("max_completion_tokens", "max_tokens"))
    max_tokens = next((value for value in given if value is not None), DEFAULT_TOKENS)
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or not 1 <= max_tokens <= MAX_TOKENS:
        raise InvalidRequest("max_tokens", max_tokens, f"must be between 1 and {MAX_TOKENS}")
    options["max_new_tokens"] = max_tokens
    for name, high, kind in (("temperature", 2, float), ("top_p", 1, float), ("top_k", 1_000_000, int)):
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | kind) or not 0 <= value <= high:
            number = "an integer" if kind is int else "a number"
            raise InvalidRequest(name, value, f"must be {number} between 0 and {high}")
        options[name] = kind(value)  # transformers distinguishes 2 and 2.0
    if (seed := body.get("seed")) is not None and (not isinstance(seed, int) or not 0 <= seed < 2**63):
        raise InvalidRequest("seed", seed, "must be an integer of at least 0")
    if options.get("temperature") == 0:
        return {"max_new_tokens": max_tokens, "do_sample": False}
    return options


def _read_message(message: Any, audio: list[Any], images: list[Any]) -> dict[str, Any]:
    """A message for the chat template; its audio and images are appended to the lists."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(content, str | list):
        raise InvalidRequest("messages", NOT_SHOWN, "must be objects with a role and a content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {"role": message.get("role"), "content": [_read_part(part, audio, images) for part in parts]}


def _read_part(part: Any, audio: list[Any], images: list[Any]) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "input_audio", "input_audio": {"data": str(data)}}:
            audio.append(_read_audio(_decode_base64(data)))
            return {"type": "audio", "audio": ""}
        case {"type": "audio_url", "audio_url": {"url": str(url)}}:
            audio.append(_read_audio(_read_data_url(url)))
            return {"type": "audio", "audio": ""}
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            images.append(_read_image(_read_data_url(url)))
            return {"type": "image", "image": ""}
    raise InvalidRequest("messages", NOT_SHOWN, "parts must be text, input_audio, audio_url or image_url")


def _read_audio(data: bytes) -> Samples:
    samples = read_audio(data, AUDIO_RATE, MAX_AUDIO_SECONDS)
    if len(samples) >= MAX_AUDIO_SECONDS * AUDIO_RATE:
        raise InvalidRequest("messages", NOT_SHOWN, f"recordings must be shorter than {MAX_AUDIO_SECONDS:g} s")
    return samples


def _read_image(data: bytes) -> Any:
    from PIL import Image

    try:
        return Image.open(io.BytesIO(data)).convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InvalidRequest("messages", NOT_SHOWN, f"an image cannot be read: {error}") from None


def _read_data_url(url: str) -> bytes:
    head, found, data = url.partition(";base64,")
    if not found or not head.startswith("data:"):
        raise InvalidRequest("url", url, "must be a data URL in base64")
    return _decode_base64(data)


def _decode_base64(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        raise InvalidRequest("data", NOT_SHOWN, "must be base64") from None
