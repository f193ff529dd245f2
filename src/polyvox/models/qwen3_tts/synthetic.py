# SPDX-License-Identifier: Apache-2.0
"""Synthetic checkpoints: random weights at the published sizes, and tiny checkpoints of each variant on disk."""

import json
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from polyvox.errors import InvalidRequest
from polyvox.models.qwen3_tts.checkpoint import empty_model
from polyvox.models.qwen3_tts.config import CODEC_FILE, GENERATION_FILE, MODEL_FILE, Kind, parse_config
from polyvox.models.qwen3_tts.model import Qwen3TTS
from polyvox.models.random_weights import fill_keyed, fill_seeded, save_shards

Size = Literal["0.6B", "1.7B"]

CONTROLS = ("pad", "bos", "eos_token", "", "", "", "think", "nothink", "think_bos", "think_eos")
LANGUAGES = {
    "english": 2050, "german": 2053, "spanish": 2054, "chinese": 2055, "japanese": 2058,
    "french": 2061, "korean": 2064, "russian": 2069, "italian": 2070, "portuguese": 2071,
}  # fmt: skip
DIALECTS = {"sichuan_dialect": 2062, "beijing_dialect": 2074}
SPEAKERS = {
    "serena": 3066, "vivian": 3065, "uncle_fu": 3010, "ryan": 3061, "aiden": 2861,
    "ono_anna": 2873, "sohee": 2864, "eric": 2875, "dylan": 2878,
}  # fmt: skip
SPEAKER_DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}


def random_model(
    files: dict[str, Any],
    device: torch.device,
    dtype: torch.dtype,
    seed: int = 0,
    vocoder_device: torch.device | None = None,
) -> Qwen3TTS:
    """A model with seeded random weights, created on the device; without values on the meta device.

    files: of published_files or tiny_files.
    """
    model = empty_model(parse_config(files), device, dtype, vocoder_device)
    if device.type == "meta":
        return model
    fill_seeded(_all_tensors(model), _range, seed, device)
    return model


def write_tiny(folder: Path, kind: Kind, seed: int = 0) -> Path:
    """Writes a complete checkpoint of a few hundred kilobytes; the same seed gives the same bytes on any machine."""
    files = tiny_files(kind)
    model = empty_model(parse_config(files), torch.device("cpu"), torch.float32)
    fill_keyed(_all_tensors(model), _range, seed)
    return _write(folder, files, model, torch.float32)


def write_random(folder: Path, size: Size, device: torch.device) -> Path:
    """Writes a CustomVoice checkpoint of a published size and dtype with random weights, which a GPU makes in seconds.

    Its vocabulary is the one of the tiny checkpoints.
    """
    files = published_files(size, "custom_voice")
    files[MODEL_FILE] |= _text_ids()
    return _write(folder, files, random_model(files, device, torch.float32), torch.bfloat16)


def published_files(size: Size, kind: Kind) -> dict[str, Any]:
    """The three config files of a published checkpoint."""
    if size not in get_args(Size):
        raise InvalidRequest("size", size, get_args(Size))
    wide = size == "1.7B"
    talker = {
        "hidden_size": 2048 if wide else 1024,
        "intermediate_size": 6144 if wide else 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "rope_scaling": {"interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "max_position_embeddings": 32768,
        "vocab_size": 3072,
        "text_vocab_size": 151936,
        "text_hidden_size": 2048,
        "num_code_groups": 16,
        **_voices(kind, base=2148, languages=LANGUAGES, dialects=DIALECTS, speakers=SPEAKERS),
    }
    talker["code_predictor_config"] = {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 5,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "max_position_embeddings": 65536,
        "vocab_size": 2048,
        "num_code_groups": 16,
    }
    decoder = {
        "latent_dim": 1024,
        "codebook_dim": 512,
        "codebook_size": 2048,
        "decoder_dim": 1536,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 64,
        "sliding_window": 72,
        "num_quantizers": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
    }
    texts = {"im_start_token_id": 151644, "im_end_token_id": 151645, "assistant_token_id": 77091}
    texts |= {"tts_pad_token_id": 151671, "tts_bos_token_id": 151672, "tts_eos_token_id": 151673}
    encoder = {
        "audio_channels": 1,
        "num_filters": 64,
        "kernel_size": 7,
        "residual_kernel_size": 3,
        "last_kernel_size": 3,
        "num_residual_layers": 1,
        "dilation_growth_rate": 2,
        "compress": 2,
        "upsampling_ratios": [8, 6, 5, 4],
        "hidden_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 2048,
        "hidden_act": "gelu",
        "norm_eps": 1e-5,
        "sliding_window": 250,
        "rope_theta": 10000,
        "num_quantizers": 32,
        "num_semantic_quantizers": 1,
        "codebook_size": 2048,
        "codebook_dim": 256,
        "vector_quantization_hidden_dimension": 256,
        "use_causal_conv": True,
        "pad_mode": "constant",
        "_frame_rate": 12.5,
    }
    speaker = {"enc_dim": talker["hidden_size"], "sample_rate": 24000}
    return _files(kind, "1b7" if wide else "0b6", talker, decoder, encoder, speaker, texts, max_new_tokens=8192)


def tiny_files(kind: Kind) -> dict[str, Any]:
    """The config files of a model small enough for tests, with every feature of the published ones."""
    talker = {
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "rope_scaling": {"interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"},
        "max_position_embeddings": 4096,
        "vocab_size": 1024 + TINY_CODES,
        "text_vocab_size": len(_vocabulary()) + len(SPECIAL_TOKENS),
        "text_hidden_size": 40,
        "num_code_groups": 6,
        **_voices(
            kind,
            base=TINY_CODES + 10,
            languages={"english": TINY_CODES + 30, "chinese": TINY_CODES + 31, "german": TINY_CODES + 32},
            dialects={"sichuan_dialect": TINY_CODES + 40},
            speakers={"serena": TINY_CODES + 50, "eric": TINY_CODES + 51, "vivian": TINY_CODES + 52},
        ),
    }
    talker["code_predictor_config"] = {
        # VoiceDesign has equal widths, as 0.6B: no projection between talker and predictor.
        "hidden_size": 48 if kind == "voice_design" else 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "max_position_embeddings": 4096,
        "vocab_size": TINY_CODES,
        "num_code_groups": 6,
    }
    decoder = {
        "latent_dim": 32,
        "codebook_dim": 24,
        "codebook_size": TINY_CODES,
        "decoder_dim": 32,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 16,
        "num_quantizers": 6,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000,
        "max_position_embeddings": 8000,
        "layer_scale_initial_scale": 0.01,
        "upsample_rates": [4, 3],
        "upsampling_ratios": [2, 2],
    }
    # Fewer codes per frame than quantizers, and a window that is not applied, as published.
    encoder = {
        "num_filters": 4,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 24,
        "sliding_window": 10,
        "upsampling_ratios": [3, 2, 2, 2],
        "num_quantizers": 9,
        "codebook_size": TINY_CODES,
        "codebook_dim": 8,
        "vector_quantization_hidden_dimension": 8,
        "upsample_groups": 16,
        "sampling_rate": 24000,
        "frame_rate": 500,
    }
    speaker = {
        "enc_dim": 48,
        "sample_rate": 24000,
        "enc_channels": [16, 16, 16, 16, 48],
        "enc_attention_channels": 8,
        "enc_res2net_scale": 4,
        "enc_se_channels": 8,
    }
    return _files(kind, "1b7", talker, decoder, encoder, speaker, _text_ids(), max_new_tokens=256)


TINY_CODES = 64
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
)
# Pairs of pieces: "assistant" becomes one token, and some words become several.
TINY_MERGES = (
    "a s|s i|as si|assi s|assis t|a n|an t|assist ant|h e|l l|o n|i n|Ġ t|Ġt he|r e|e r|u s|us er|l o|he ll|hell o"
)


def _voices(
    kind: Kind, base: int, languages: dict[str, int], dialects: dict[str, int], speakers: dict[str, int]
) -> dict[str, Any]:
    custom = kind == "custom_voice"
    named = {f"codec_{name}_id": base + i for i, name in enumerate(CONTROLS) if name}
    return named | {
        "pad_token_id": base,
        "codec_language_id": languages | dialects if custom else languages,
        "spk_id": speakers if custom else {},
        "spk_is_dialect": {name: SPEAKER_DIALECTS.get(name, False) for name in speakers} if custom else {},
    }


def _files(
    kind: Kind,
    size: str,
    talker: dict[str, Any],
    decoder: dict[str, Any],
    encoder: dict[str, Any],
    speaker: dict[str, Any],
    texts: dict[str, int],
    max_new_tokens: int,
) -> dict[str, Any]:
    rate = int(np.prod(decoder["upsample_rates"] + decoder["upsampling_ratios"]))
    model = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": size,
        "tts_model_type": kind,
        **texts,
        "talker_config": talker,
        "transformers_version": "4.57.3",
    }
    if kind == "base":
        model["speaker_encoder_config"] = speaker
    generation = {
        "do_sample": True, "temperature": 0.9, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.05,
        "subtalker_dosample": True, "subtalker_temperature": 0.9, "subtalker_top_k": 50, "subtalker_top_p": 1.0,
        "max_new_tokens": max_new_tokens,
    }  # fmt: skip
    codec = {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": decoder["num_quantizers"],
        "input_sample_rate": 24000,
        "output_sample_rate": 24000,
        "decode_upsample_rate": rate,
        "encode_downsample_rate": rate,
        "decoder_config": decoder,
        "encoder_config": encoder,
    }
    return {MODEL_FILE: model, GENERATION_FILE: generation, CODEC_FILE: codec}


def _vocabulary() -> dict[str, int]:
    """The 256 byte symbols of byte-level BPE in the order of their code points, then the merged tokens."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    symbols = [chr(code) for code in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    merged = [pair.replace(" ", "") for pair in TINY_MERGES.split("|")]
    return {token: i for i, token in enumerate(symbols + merged)}


def _text_ids() -> dict[str, int]:
    """The token ids of the tiny vocabulary in config.json."""
    first = len(_vocabulary())
    special = {name.strip("<|>"): first + i for i, name in enumerate(SPECIAL_TOKENS)}
    found = {f"{name}_token_id": special[name] for name in ("im_start", "im_end", "tts_pad")}
    found |= {"tts_bos_token_id": special["tts_text_bos"], "tts_eos_token_id": special["tts_text_eod"]}
    return found | {"assistant_token_id": _vocabulary()["assistant"]}


def _tokenizer_files() -> dict[str, Any]:
    vocabulary = _vocabulary()
    plain = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    added = {
        str(len(vocabulary) + i): {"content": name, "special": True, **plain} for i, name in enumerate(SPECIAL_TOKENS)
    }
    return {
        "vocab.json": vocabulary,
        "merges.txt": "#version: 0.2\n" + "\n".join(TINY_MERGES.split("|")) + "\n",
        "tokenizer_config.json": {
            "added_tokens_decoder": added,
            "tokenizer_class": "Qwen2Tokenizer",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
        },
        "preprocessor_config.json": {"processor_class": "Qwen3TTSProcessor", "padding_side": "left"},
        "speech_tokenizer/preprocessor_config.json": {
            "feature_extractor_type": "EncodecFeatureExtractor",
            "feature_size": 1,
            "sampling_rate": 24000,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": True,
        },
    }


def _all_tensors(model: Qwen3TTS) -> dict[str, Tensor]:
    talker, codec = model.files()
    return talker | codec


def _range(name: str, tensor: Tensor) -> tuple[float, float]:
    """Bounds that keep activations at a normal scale through any number of layers."""
    if name.endswith(("layernorm.weight", "norm.weight", "_layer_scale.scale", "gamma")):
        return 0.7, 1.3
    if name.endswith("cluster_usage"):
        return 0.5, 3.0
    if name.endswith("initialized"):
        return 1.0, 1.0
    if "embedding" in name or name.endswith("embed_sum"):
        return -1.7, 1.7
    if tensor.dim() == 1:
        return (-0.03, 0.03) if name.startswith("encoder.") else (-0.3, 0.3)
    # ConvTranspose weights are [in, out, kernel], all others [out, in, …].
    transposed = (".upsample." in name and ".0.conv" in name) or (".block.1.conv" in name and "decoder." in name)
    fan_in = tensor.shape[0] if transposed else tensor[0].numel()
    bound = (3.0 / fan_in) ** 0.5
    if "_head." in name:
        bound *= 3.0  # logits larger than the sampling noise, so that inputs affect the output
    if name.endswith(".conv2.conv.weight"):
        bound *= 0.3  # residual branches of the codec add up
    if name == "encoder.encoder.layers.0.conv.weight":
        bound *= 6.0  # samples are small, and codes must differ from those of silence
    if name == "speaker_encoder.fc.weight":
        bound *= 0.3  # a speaker vector must not dominate the rows it is added to
    if tensor.shape[0] == 1:
        bound *= 0.1  # the last convolution of the codec: samples must stay below the clamp
    return -bound, bound


def _write(folder: Path, files: dict[str, Any], model: Qwen3TTS, dtype: torch.dtype) -> Path:
    """Writes a checkpoint folder. dtype: of the talker's file; the codec's is float32."""
    (folder / "speech_tokenizer").mkdir(parents=True, exist_ok=True)
    for name, content in (files | _tokenizer_files()).items():
        text = content if isinstance(content, str) else json.dumps(content, indent=1, ensure_ascii=False)
        (folder / name).write_text(text, encoding="utf-8")
    talker, codec = model.files()
    for path, tensors, kind in ((folder, talker, dtype), (folder / "speech_tokenizer", codec, torch.float32)):
        save_shards({name: tensor.to(kind) for name, tensor in tensors.items()}, path)
    return folder
