# SPDX-License-Identifier: Apache-2.0
"""Synthetic checkpoints: random weights at the published size, and tiny checkpoints on disk."""

import json
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from polyvox.models.qwen3_omni.checkpoint import empty_model
from polyvox.models.qwen3_omni.config import MODEL_FILE, parse_config
from polyvox.models.qwen3_omni.model import Qwen3Omni
from polyvox.models.random_weights import fill_keyed, fill_seeded, save_shards

Shape = Literal["plain", "wide"]

TINY_CODES = 64


def random_model(
    content: dict[str, Any],
    device: torch.device,
    dtype: torch.dtype,
    seed: int = 0,
    vocoder_device: torch.device | None = None,
) -> Qwen3Omni:
    """A model with seeded random weights, created on the device; without values on the meta device."""
    model = empty_model(parse_config(content), device, dtype, vocoder_device)
    if device.type != "meta":
        fill_seeded(model.files(), _bounds, seed, device)
    return model


def write_tiny(folder: Path, shape: Shape, seed: int = 0) -> Path:
    """Writes the speech side of a checkpoint in two shards; the same seed gives the same bytes on any machine."""
    content = tiny_config(shape)
    model = empty_model(parse_config(content), torch.device("cpu"), torch.float32)
    fill_keyed(model.files(), _bounds, seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODEL_FILE).write_text(json.dumps(content, indent=1), encoding="utf-8")
    save_shards(model.files(), folder, shards=2)
    return folder


def published_config() -> dict[str, Any]:
    """The fields of Qwen3-Omni-30B-A3B-Instruct that the speech side reads."""
    return _config(
        ids={
            "im_start": 151644, "im_end": 151645, "system": 8948, "user": 872, "assistant": 77091,
            "tts_pad": 151671, "tts_bos": 151672, "tts_eos": 151673,
        },
        media={"audio_token_id": 151675, "image_token_id": 151655, "video_token_id": 151656},
        thinker={"text_config": {"hidden_size": 2048, "vocab_size": 152064}},
        hidden_layer=24,
        first_control=2148,
        first_speaker=2301,
        groups=16,
        talker={
            "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 20, "num_attention_heads": 16,
            "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 3072, "num_experts": 128,
            "num_experts_per_tok": 6, "moe_intermediate_size": 384, "shared_expert_intermediate_size": 768,
            "max_position_embeddings": 65536, "mrope_section": [24, 20, 20],
        },
        predictor={
            "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 5, "num_attention_heads": 16,
            "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 2048,
        },
        code2wav={
            "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 8, "num_attention_heads": 16,
            "sliding_window": 72, "codebook_size": 2048, "decoder_dim": 1536,
            "upsample_rates": [8, 5, 4, 3], "upsampling_ratios": [2, 2],
        },
    )  # fmt: skip


def tiny_config(shape: Shape) -> dict[str, Any]:
    """A model small enough for tests, with every feature of the published one; two shapes."""
    wide = shape == "wide"
    return _config(
        ids={
            "im_start": 1, "im_end": 2, "system": 10, "user": 11, "assistant": 12,
            "tts_pad": 20, "tts_bos": 21, "tts_eos": 22,
        },
        media={"audio_token_id": 23, "image_token_id": 24, "video_token_id": 25},
        thinker=_tiny_thinker(40 if wide else 32),
        hidden_layer=2,
        first_control=TINY_CODES + 10,
        first_speaker=TINY_CODES + 50,
        groups=6 if wide else 4,
        talker={
            "hidden_size": 48 if wide else 32, "intermediate_size": 56, "num_hidden_layers": 3 if wide else 2,
            "num_attention_heads": 4, "num_key_value_heads": 1 if wide else 2, "head_dim": 16,
            "vocab_size": TINY_CODES + 1024, "num_experts": 16 if wide else 4, "num_experts_per_tok": 6 if wide else 2,
            "moe_intermediate_size": 12, "shared_expert_intermediate_size": 24,
            "max_position_embeddings": 4096, "mrope_section": [4, 2, 2],
        },
        predictor={
            "hidden_size": 48 if wide else 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": TINY_CODES,
        },
        code2wav={
            "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 2,
            "sliding_window": 8, "codebook_size": TINY_CODES, "decoder_dim": 32,
            "upsample_rates": [4, 3] if wide else [3, 2, 2], "upsampling_ratios": [2, 2],
        },
    )  # fmt: skip


def _tiny_thinker(hidden_size: int) -> dict[str, Any]:
    return {
        "text_config": {
            "hidden_size": hidden_size, "vocab_size": 512, "intermediate_size": 48, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4,
            "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True, "mlp_only_layers": [],
            "decoder_sparse_step": 1, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000, "max_position_embeddings": 4096,
            "rope_scaling": {"interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"},
        },
        "audio_config": {
            "num_mel_bins": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 24, "d_model": 16,
            "n_window": 50, "n_window_infer": 800, "conv_chunksize": 500, "downsample_hidden_size": 4,
            "output_dim": hidden_size,
        },
        "vision_config": {
            "depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "patch_size": 4,
            "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": hidden_size,
            "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
        },
        "audio_start_token_id": 26, "audio_end_token_id": 27, "vision_start_token_id": 28, "vision_end_token_id": 29,
        "position_id_per_seconds": 13, "user_token_id": 11,
    }  # fmt: skip


def _config(
    ids: dict[str, int],
    media: dict[str, int],
    thinker: dict[str, Any],
    hidden_layer: int,
    first_control: int,
    first_speaker: int,
    groups: int,
    talker: dict[str, Any],
    predictor: dict[str, int],
    code2wav: dict[str, Any],
) -> dict[str, Any]:
    section = talker.pop("mrope_section")
    common = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1_000_000, "attention_bias": False}
    controls = ("codec_pad_id", "codec_bos_id", "codec_eos_token_id")
    thinking = ("codec_nothink_id", "codec_think_bos_id", "codec_think_eos_id")
    return {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "enable_audio_output": True,
        **{f"{name}_token_id": value for name, value in ids.items()},
        "thinker_config": {**media, **thinker},
        "talker_config": {
            "accept_hidden_layer": hidden_layer,
            "num_code_groups": groups,
            "spatial_merge_size": 2,
            "thinker_hidden_size": thinker["text_config"]["hidden_size"],
            **{name: first_control + index for index, name in enumerate(controls)},
            **{name: first_control + 7 + index for index, name in enumerate(thinking)},
            **media,
            **{name: thinker[name] for name in ("audio_start_token_id", "vision_start_token_id") if name in thinker},
            "position_id_per_seconds": 13,
            "speaker_id": {name: first_speaker + index for index, name in enumerate(("chelsie", "ethan", "aiden"))},
            "text_config": {
                **common,
                **talker,
                "norm_topk_prob": True,
                "mlp_only_layers": [],
                "decoder_sparse_step": 1,
                "rope_scaling": {"interleaved": True, "mrope_section": section, "rope_type": "default"},
            },
            "code_predictor_config": {**common, **predictor, "num_code_groups": groups},
        },
        "code2wav_config": {
            **common,
            **code2wav,
            "num_key_value_heads": code2wav["num_attention_heads"],
            "num_quantizers": groups,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000,
        },
    }


def _bounds(name: str, tensor: Tensor) -> tuple[float, float]:
    """Bounds that keep activations at a normal scale through any number of layers."""
    if name.endswith(("layernorm.weight", "norm.weight", "_layer_scale.scale", "gamma")):
        return 0.7, 1.3
    if "embed" in name:
        return -1.7, 1.7
    if tensor.dim() == 1:
        return -0.3, 0.3
    # ConvTranspose weights are [in, out, kernel], all others [out, in, …].
    transposed = (".upsample." in name and ".0.conv" in name) or ".block.1.conv" in name
    fan_in = tensor.shape[0] if transposed else tensor[0].numel()
    bound = (3.0 / fan_in) ** 0.5
    if "_head." in name:
        bound *= 3.0  # logits larger than the sampling noise, so that inputs affect the output
    if name.endswith(".conv2.conv.weight"):
        bound *= 0.3  # residual branches of the codec add up
    if name.startswith("code2wav.") and tensor.shape[0] == 1:
        bound *= 0.1  # the last convolution: samples must stay below the clamp
    return -bound, bound
