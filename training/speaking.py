"""Many sentences at once, straight through the model: no engine, no deadlines, for measuring what was learned."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyvox.models.qwen3_tts.config import CONTROL_IDS
from polyvox.models.qwen3_tts.model import Qwen3TTS
from polyvox.models.qwen3_tts.prompt import build_prompt
from polyvox.models.qwen3_tts.sampling import draw, predictor_parameters, talker_parameters
from polyvox.models.qwen3_tts.tokenizer import TextTokenizer
from polyvox.models.request import Layout, Sampling

LEAST_FRAMES = 2


@dataclass(frozen=True, slots=True)
class Said:
    """One sentence as it came out."""

    codes: np.ndarray  # [frames, groups]
    samples: np.ndarray
    ended: bool  # by itself


class DenseKeys:
    """Keys and values of a batch in plain tensors; a row sees what is at its position and before."""

    def __init__(self, model: Qwen3TTS, batch: int, capacity: int) -> None:
        shape = model.config.talker.transformer
        size = (shape.layers, batch, capacity, shape.kv_heads, shape.head_dim)
        self._keys, self._values = (torch.zeros(size, dtype=model.dtype) for _ in range(2))

    def attend(self, positions: Tensor, span: int):  # type: ignore[no-untyped-def]
        batch = torch.arange(len(positions))[:, None]
        seen = (torch.arange(span) <= positions[..., None])[:, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._keys[layer, batch, positions], self._values[layer, batch, positions] = k, v
            keys, values = (x[layer, :, :span].transpose(1, 2) for x in (self._keys, self._values))
            return torch.nn.functional.scaled_dot_product_attention(
                q.transpose(1, 2), keys, values, attn_mask=seen, enable_gqa=True
            ).transpose(1, 2)

        return attend


@torch.inference_mode()
def say_all(
    model: Qwen3TTS,
    tokenizer: TextTokenizer,
    texts: Sequence[str],
    voices: Sequence[str],
    layout: Layout,
    sampling: Sampling,
    seed: int = 0,
    longest: int = 250,
    language: str = "auto",
) -> list[Said]:
    """Each text in its voice; all in one batch."""
    config, talker = model.config, model.talker
    prompts = [
        build_prompt(config, tokenizer.role, tokenizer.text(text), layout, language, voice)
        for text, voice in zip(texts, voices, strict=True)
    ]
    count, prompt_rows = len(prompts), max(len(prompt) for prompt in prompts)
    rows = torch.zeros(count, prompt_rows, config.talker.transformer.hidden_size, dtype=model.dtype)
    trailing = model.text_rows([config.tts_pad_id])[0].expand(count, longest + 1, -1).clone()
    for i, prompt in enumerate(prompts):
        rows[i, : len(prompt)] = model.embed(prompt)
        later = prompt.trailing[:longest]
        trailing[i, : len(later)] = model.text_rows(later)
    cache = DenseKeys(model, count, prompt_rows + longest + 1)
    positions = torch.arange(prompt_rows).expand(count, -1)
    hidden = talker(rows, positions, cache.attend(positions, prompt_rows))
    last = torch.tensor([len(prompt) - 1 for prompt in prompts])
    hidden = hidden[torch.arange(count), last]

    token = torch.arange(config.talker.vocab_size)
    forbidden = (token >= config.talker.vocab_size - CONTROL_IDS) & (token != config.talker.eos_id)
    first_params, rest_params = (
        torch.tensor([values] * count) for values in (talker_parameters(sampling), predictor_parameters(sampling))
    )
    generator = torch.Generator().manual_seed(seed)

    def noise(size: int) -> Tensor:
        return -torch.empty(count, size).exponential_(generator=generator).log()

    ends = torch.full((count,), longest)
    made: list[Tensor] = []
    for frame in range(longest):
        scores = talker.codec_head(hidden).masked_fill(forbidden, -torch.inf)
        if frame < LEAST_FRAMES:
            scores[:, config.talker.eos_id] = -torch.inf
        first = draw(scores, first_params, noise(scores.shape[1]))
        ends = torch.where((first == config.talker.eos_id) & (ends == longest), frame, ends)
        if (ends < longest).all():
            break
        first = torch.where(first == config.talker.eos_id, 0, first)
        rest = talker.code_predictor(
            hidden,
            talker.model.codec_embedding(first),
            lambda _, logits: draw(logits, rest_params, noise(logits.shape[1])),
        )
        made.append(torch.cat([first[:, None], rest], 1))
        position = (last + 1 + frame)[:, None]
        row = talker.frame_rows(made[-1]) + trailing[:, frame]
        hidden = talker(row[:, None], position, cache.attend(position, prompt_rows + frame + 1))[:, 0]
    codes = torch.stack(made, 1)
    samples = model.codec(codes, model.codec.initial_state(count))[0].numpy()
    size = config.codec.samples_per_frame
    return [
        Said(codes[i, :end].numpy(), samples[i, : end * size], end < longest) for i, end in enumerate(ends.tolist())
    ]
