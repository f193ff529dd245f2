# SPDX-License-Identifier: Apache-2.0
"""Write the trained voice as a checkpoint in the official layout.

    python -m training.export --codec DIR --talker DIR --tokenizer DIR --out src/polyvox/assets/voice

Weights are stored as float16, whose precision these small models need; bfloat16 is too coarse.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from polyvox.models.layers.linear import checkpoint_tensors
from polyvox.models.qwen3_tts.codec import CodecDecoder
from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.talker import Talker
from training.files import load_parts
from training.layout import CODE_0_SIZE, SAMPLING, voice_files
from training.talker import load_talker

TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")
TEMPERATURES = {"temperature": "do_sample", "subtalker_temperature": "subtalker_dosample"}
PROCESSOR_FILES: dict[str, Any] = {
    "preprocessor_config.json": {
        "padding_side": "left",
        "padding_value": 0.0,
        "processor_class": "Qwen3TTSProcessor",
        "return_attention_mask": True,
    },
    "speech_tokenizer/configuration.json": {"framework": "pytorch", "task": "audio-tokenization"},
    "speech_tokenizer/preprocessor_config.json": {
        "chunk_length_s": None,
        "feature_extractor_type": "EncodecFeatureExtractor",
        "feature_size": 1,
        "overlap": None,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
        "sampling_rate": 24000,
    },
}


def export(talker: Talker, decoder: CodecDecoder, tokenizer: Path, out: Path, sampling: dict[str, Any]) -> None:
    """Write all files of a checkpoint folder."""
    (out / "speech_tokenizer").mkdir(parents=True, exist_ok=True)
    for name, content in (voice_files(sampling) | PROCESSOR_FILES).items():
        (out / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for name in TOKENIZER_FILES:
        (out / name).write_bytes((tokenizer / name).read_bytes())
    _clear_unused(talker)
    _save(talker, "talker.", out / "model.safetensors")
    _save(decoder, "decoder.", out / "speech_tokenizer/model.safetensors")


@torch.no_grad()
def _clear_unused(talker: Talker) -> None:
    """Zero the rows of unused control ids, which were never trained."""
    config = parse_config(voice_files(SAMPLING)).talker
    used = {config.pad_id, config.bos_id, config.eos_id, config.think_id, config.nothink_id}
    used |= {config.think_bos_id, config.think_eos_id, *config.languages.values(), *config.speakers.values()}
    unused = [row for row in range(CODE_0_SIZE, config.vocab_size) if row not in used]
    talker.model.codec_embedding.weight[unused] = 0
    talker.codec_head.weight[[row for row in range(CODE_0_SIZE, config.vocab_size) if row != config.eos_id]] = 0


def _save(module: nn.Module, prefix: str, path: Path) -> None:
    tensors: dict[str, Tensor] = checkpoint_tensors(module, prefix)
    kept = {name: tensor.to(torch.float16).contiguous() for name, tensor in tensors.items()}
    save_file(kept, path, metadata={"format": "pt"})


def load_decoder(folder: Path) -> CodecDecoder:
    decoder = CodecDecoder(parse_config(voice_files(SAMPLING)).codec)
    decoder.load_state_dict(load_parts(folder, "decoder"))
    return decoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("codec", "talker", "tokenizer", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name, flag in TEMPERATURES.items():
        own = SAMPLING[name] if SAMPLING[flag] else 0.0
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=own, help="0 is greedy")
    for name in ("top_k", "subtalker_top_k"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=SAMPLING[name])
    arguments = parser.parse_args()
    talker = Talker(parse_config(voice_files(SAMPLING)))
    load_talker(talker, arguments.talker)
    sampling = dict(SAMPLING)
    for name, flag in TEMPERATURES.items():
        value = getattr(arguments, name)
        sampling |= {flag: value > 0, name: value or 1.0}
    sampling |= {name: getattr(arguments, name) for name in ("top_k", "subtalker_top_k")}
    export(talker, load_decoder(arguments.codec), arguments.tokenizer, arguments.out, sampling)


if __name__ == "__main__":
    main()
