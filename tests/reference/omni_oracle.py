# SPDX-License-Identifier: Apache-2.0
"""Run transformers' Qwen3-Omni on the conversations: python omni_oracle.py CHECKPOINTS OUT.

Needs the environment that golden.py builds; imports nothing of Polyvox. The checkpoints have the speech side; the
thinker's weights are random numbers keyed by their names. Each conversation becomes one .npz file.

float32 is the unchanged package. In float64 its float32 parts (RMSNorm, rotary angles, the router's softmax) are
widened, as they would hide errors below 1e-7; its logits processors keep float32.
"""

import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3OmniMoeForConditionalGeneration
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as code

from omni_cases import (
    AUDIO,
    AUDIO_FRAMES,
    CODE2WAV_FRAMES,
    CONVERSATIONS,
    END,
    IMAGE,
    IMAGE_GRID,
    SECONDS_PER_GRID,
    VIDEO,
    VIDEO_GRID,
    Conversation,
)

Arrays = dict[str, np.ndarray]
DTYPES = {"float32": torch.float32, "float64": torch.float64}
MIN_FRAMES, MIN_VALUES = 24, 8  # a longer case with fewer frames, or fewer values of code 0, tests too little


class _WideTorch:
    """The torch module with float64 under the names of float32."""

    def __getattr__(self, name: str) -> Any:
        return torch.float64 if name in ("float32", "float") else getattr(torch, name)


@contextmanager
def widened(dtype: torch.dtype) -> Iterator[None]:
    if dtype != torch.float64:
        yield
        return
    to_float = torch.Tensor.float
    code.torch = _WideTorch()
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        code.torch, torch.Tensor.float = torch, to_float


def load(folder: Path, dtype: torch.dtype) -> Any:
    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        str(folder), dtype=torch.float32, experts_implementation="eager"
    )
    for name, tensor in model.state_dict().items():
        loaded = name.endswith("embed_tokens.weight")
        if name.startswith("thinker.") and not loaded and tensor.is_floating_point():
            rng = np.random.Generator(np.random.PCG64([7, zlib.crc32(name.encode())]))
            bound = 1.0 if tensor.dim() < 2 else 3.0 * (3.0 / tensor[0].numel()) ** 0.5
            low = 0.7 if name.endswith("norm.weight") else -bound
            high = 1.3 if name.endswith("norm.weight") else bound
            tensor.copy_(torch.from_numpy((low + (high - low) * rng.random(tuple(tensor.shape))).astype(np.float32)))
    model.to(dtype)
    if dtype == torch.float64:
        for module in model.modules():
            if hasattr(module, "inv_freq") and hasattr(module, "config"):
                theta = module.config.rope_parameters["rope_theta"]
                dim = module.inv_freq.numel() * 2
                exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
                module.inv_freq = 1.0 / theta**exponents
    return model.eval()


def media(case: Conversation, model: Any) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(5)
    if case.media == "audio":
        bins = model.config.thinker_config.audio_config.num_mel_bins
        features = torch.from_numpy(rng.standard_normal((1, bins, AUDIO_FRAMES)).astype(np.float32))
        return {
            "input_features": features.to(model.dtype),
            "feature_attention_mask": torch.ones(1, AUDIO_FRAMES, dtype=torch.int64),
        }
    if not case.media:
        return {}
    grid = IMAGE_GRID if case.media == "image" else VIDEO_GRID
    vision = model.config.thinker_config.vision_config
    size = 3 * vision.temporal_patch_size * vision.patch_size**2
    numbers = rng.standard_normal((int(np.prod(grid)), size)).astype(np.float32)
    patches = torch.from_numpy(numbers).to(model.dtype)
    if case.media == "image":
        return {"pixel_values": patches, "image_grid_thw": torch.tensor([grid])}
    return {
        "pixel_values_videos": patches,
        "video_grid_thw": torch.tensor([grid]),
        "video_second_per_grid": torch.tensor([SECONDS_PER_GRID]),
    }


def positions(model: Any, case: Conversation, ids: torch.Tensor) -> torch.Tensor:
    """The thinker's positions [3, tokens] of a prompt."""
    given = media(case, model)
    mask = given.get("feature_attention_mask")
    found, _ = model.thinker.get_rope_index(
        ids,
        given.get("image_grid_thw"),
        given.get("video_grid_thw"),
        torch.ones_like(ids),
        False,
        None if mask is None else mask.sum(1),
        given.get("video_second_per_grid"),
    )
    return found[:, 0].float()


def converse(model: Any, case: Conversation) -> Arrays:
    """Tokens, prompt rows, trailing rows, codes and samples of one conversation; of media also rows and positions."""
    captured: dict[str, Any] = {}
    result: dict[str, Any] = {}
    talk, think = model.talker.generate, model.thinker.generate

    def thinking(**kwargs: Any) -> Any:
        result["thinker"] = think(**kwargs)
        return result["thinker"]

    def talking(**kwargs: Any) -> Any:
        captured.update(kwargs)
        result["talker"] = talk(**kwargs)
        return result["talker"]

    model.talker.generate, model.thinker.generate = talking, thinking
    try:
        ids = torch.tensor([case.prompt])
        sequences, samples = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            speaker=case.speaker.capitalize(),
            thinker_max_new_tokens=case.answer,
            thinker_eos_token_id=END,
            thinker_do_sample=False,
            talker_max_new_tokens=case.frames,
            talker_min_new_tokens=case.min_frames,
            talker_do_sample=False,
            **media(case, model),
        )
    finally:
        del model.talker.generate, model.thinker.generate
    answer = sequences[0, len(case.prompt) :]
    frames = [states[-1] for states in result["talker"].hidden_states if states[-1] is not None]
    codes = torch.cat(frames)
    arrays = {
        "answer": answer,
        "prefill": captured["inputs_embeds"][0],
        "trailing": captured["trailing_text_hidden"][0],
        "codes": codes,
        "audio": samples.flatten(),
    }
    if case.media:
        layer = model.config.talker_config.accept_hidden_layer
        hidden = torch.cat([states[layer] for states in result["thinker"].hidden_states], dim=1)[0]
        arrays["media_rows"] = hidden[: len(case.prompt)][torch.isin(ids[0], torch.tensor([AUDIO, IMAGE, VIDEO]))]
        arrays["positions"] = positions(model, case, ids)
    if case.min_frames > MIN_FRAMES and (len(codes) < MIN_FRAMES or len(codes[:, 0].unique()) < MIN_VALUES):
        sys.exit(f"{case.shape}-{case.name}: {len(codes)} frames, {len(codes[:, 0].unique())} values: too few")
    return {name: value.numpy() for name, value in arrays.items()}


def decode(model: Any) -> Arrays:
    """Code2wav of random codes, two streams."""
    config = model.config.code2wav_config
    shape = (2, config.num_quantizers, CODE2WAV_FRAMES)
    codes = torch.from_numpy(np.random.default_rng(3).integers(0, config.codebook_size, shape))
    return {"codes": codes.transpose(1, 2).numpy(), "audio": model.code2wav(codes)[:, 0].numpy()}


def main() -> None:
    checkpoints, out = Path(sys.argv[1]), Path(sys.argv[2])
    files: dict[str, Arrays] = {}
    for shape in sorted({case.shape for case in CONVERSATIONS}):
        for suffix, dtype in DTYPES.items():
            model = load(checkpoints / f"omni-{shape}", dtype)
            with widened(dtype), torch.inference_mode():
                made = {case.name: converse(model, case) for case in CONVERSATIONS if case.shape == shape}
                made["code2wav"] = decode(model)
            for name, arrays in made.items():
                kept = files.setdefault(f"omni-{shape}-{name}", {})
                kept |= {f"{suffix}.{key}": value for key, value in arrays.items()}
    for name, arrays in files.items():
        np.savez_compressed(out / f"{name}.npz", **arrays)


if __name__ == "__main__":
    main()
