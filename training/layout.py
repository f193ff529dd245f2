# SPDX-License-Identifier: Apache-2.0
"""The checkpoint's config files: all sizes of the voice, in the official layout."""

from typing import Any

import torch
from torch import Tensor, nn

from polyvox.models.layers.conv_layers import ConvNeXt, SnakeBeta
from polyvox.models.layers.linear import Linear, StackedWeights
from polyvox.models.layers.norm import LayerScale, RMSNorm
from polyvox.models.layers.talker_config import CONTROL_IDS
from polyvox.models.qwen3_tts.codec import Codebook
from polyvox.models.qwen3_tts.config import CODEC_FILE, GENERATION_FILE, MODEL_FILE
from polyvox.text.phonemes import ALPHABET
from training.tokens import SPECIAL, VOCABULARY
from training.units import FRAME, SAMPLE_RATE

NUM_CODEBOOKS = 3
CODE_0_SIZE, RESIDUAL_SIZE = 1024, 512
CODE_DIM = 128  # of a codebook entry; the decoder's codebook_dim is twice that
CONTROLS = {"pad": 0, "bos": 1, "eos_token": 2, "think": 3, "nothink": 4, "think_bos": 5, "think_eos": 6}
ENGLISH = 10
SPEAKERS = {"heart": 20, "michael": 21}
ATTENTION = {"attention_bias": False, "attention_dropout": 0, "hidden_act": "silu"}


def voice_files(sampling: dict[str, Any]) -> dict[str, Any]:
    """The config files by name; `sampling` is the content of generation_config.json."""
    common = {
        **ATTENTION,
        "initializer_range": 0.02,
        "use_cache": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000,
        "tie_word_embeddings": False,
        "num_code_groups": NUM_CODEBOOKS,
        "head_dim": 64,
    }
    predictor = {
        **common,
        "model_type": "qwen3_tts_talker_code_predictor",
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "vocab_size": RESIDUAL_SIZE,
        "max_position_embeddings": 65536,
        "rope_scaling": None,
        "layer_types": ["full_attention"] * 3,
        "max_window_layers": 28,
    }
    talker = {
        **common,
        "model_type": "qwen3_tts_talker",
        "code_predictor_config": predictor,
        "hidden_size": 320,
        "intermediate_size": 768,
        "num_hidden_layers": 7,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "vocab_size": CODE_0_SIZE + CONTROL_IDS,
        "text_vocab_size": VOCABULARY + len(SPECIAL),
        "text_hidden_size": 192,
        "max_position_embeddings": 32768,
        "rope_scaling": {
            "interleaved": True,
            "mrope_section": [12, 10, 10],
            "rope_type": "default",
            "type": "default",
        },
        "position_id_per_seconds": 13,
        "pad_token_id": CODE_0_SIZE + CONTROLS["pad"],
        **{f"codec_{name}_id": CODE_0_SIZE + offset for name, offset in CONTROLS.items()},
        "codec_language_id": {"english": CODE_0_SIZE + ENGLISH},
        "spk_id": {name: CODE_0_SIZE + offset for name, offset in SPEAKERS.items()},
        "spk_is_dialect": dict.fromkeys(SPEAKERS, False),
    }
    special = {name.strip("<|>"): VOCABULARY + offset for offset, name in enumerate(SPECIAL)}
    model = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": "0b6",
        "tts_model_type": "custom_voice",
        "assistant_token_id": 256 + len("assistant") - 2,  # the eighth merged token: see tokens.py
        "im_start_token_id": special["im_start"],
        "im_end_token_id": special["im_end"],
        "tts_pad_token_id": special["tts_pad"],
        "tts_bos_token_id": special["tts_text_bos"],
        "tts_eos_token_id": special["tts_text_eod"],
        "text_input": "phonemes",
        "phoneme_alphabet": ALPHABET,
        "talker_config": talker,
        "transformers_version": "4.57.3",
    }
    codec = {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": NUM_CODEBOOKS,
        "input_sample_rate": SAMPLE_RATE,
        "output_sample_rate": SAMPLE_RATE,
        "decode_upsample_rate": FRAME,
        "encode_downsample_rate": FRAME,
        "decoder_config": decoder_config(),
        "encoder_config": ENCODER,
        "transformers_version": "4.57.3",
    }
    return {MODEL_FILE: model, GENERATION_FILE: sampling, CODEC_FILE: codec}


def decoder_config() -> dict[str, Any]:
    return {
        **ATTENTION,
        "codebook_size": CODE_0_SIZE,
        "codebook_dim": 2 * CODE_DIM,
        "latent_dim": 256,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "sliding_window": 8,
        "num_quantizers": NUM_CODEBOOKS,
        "upsample_rates": [5, 4, 4, 3],
        "upsampling_ratios": [2, 4],
        "decoder_dim": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000,
        "max_position_embeddings": 8000,
        "layer_scale_initial_scale": 0.01,
    }


# The reference implementation builds an encoder even without weights: a minimal one.
ENCODER = {
    "audio_channels": 1, "num_filters": 2, "kernel_size": 7, "residual_kernel_size": 3, "last_kernel_size": 3,
    "num_residual_layers": 1, "dilation_growth_rate": 2, "compress": 2, "upsampling_ratios": [8, 6, 5, 4],
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16,
    "intermediate_size": 16, "sliding_window": 250, "num_quantizers": NUM_CODEBOOKS, "num_semantic_quantizers": 1,
    "codebook_size": CODE_0_SIZE, "codebook_dim": 8, "vector_quantization_hidden_dimension": 8, "upsample_groups": 16,
    "use_causal_conv": True, "sampling_rate": SAMPLE_RATE, "frame_rate": 12.5,
}  # fmt: skip
SAMPLING = {
    "do_sample": True, "temperature": 0.3, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.0,
    "subtalker_dosample": False, "subtalker_temperature": 1.0, "subtalker_top_k": 50, "subtalker_top_p": 1.0,
    "max_new_tokens": 2048,
}  # fmt: skip


@torch.no_grad()
def initialise(model: nn.Module) -> None:
    """Initialise the parameters that the served modules leave empty; others keep torch's defaults."""
    for module in model.modules():
        if isinstance(module, RMSNorm):
            module.weight.fill_(1.0)
        elif isinstance(module, LayerScale):
            module.scale.fill_(0.1)
        elif isinstance(module, ConvNeXt):
            module.gamma.fill_(0.1)
        elif isinstance(module, SnakeBeta):
            module.alpha.zero_()
            module.beta.zero_()
        elif isinstance(module, Codebook):
            module.embedding_sum.zero_()
            module.cluster_usage.fill_(1.0)
        elif isinstance(module, Linear):
            for parameter in module.parameters():
                nn.init.uniform_(parameter, *_bounds(module.weight))
        elif isinstance(module, (StackedWeights, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.05)


def _bounds(weight: Tensor) -> tuple[float, float]:
    bound = (1.0 / weight.shape[1]) ** 0.5
    return -bound, bound
