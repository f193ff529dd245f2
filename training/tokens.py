# SPDX-License-Identifier: Apache-2.0
"""Train the text vocabulary: a small byte-level BPE with Qwen2's pattern, so that one token per frame outpaces speech.

python -m training.tokens CORPUS OUT
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from polyvox.models.tokenizer import QWEN2_PATTERN
from training.corpus import Phonemes

VOCABULARY = 768
ROLE = "assistant"  # must be one token: every prompt begins with it
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="folder with phonemes.npz")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    phonemes = Phonemes(arguments.corpus)
    texts = [phonemes.text(index) for index in range(len(phonemes))]
    for name, content in tokenizer_files(texts).items():
        text = content if isinstance(content, str) else json.dumps(content, indent=1, ensure_ascii=False)
        (arguments.out / name).write_text(text, encoding="utf-8")


def tokenizer_files(texts: list[str]) -> dict[str, Any]:
    """vocab.json, merges.txt and tokenizer_config.json."""
    tokenizer = new_tokenizer(BPE())
    trainer = BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=sorted(ByteLevel.alphabet()), show_progress=False)
    # Frequent enough for the role's name to be merged first.
    tokenizer.train_from_iterator([*texts, *[ROLE] * (10 * len(texts))], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    plain = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {
        "vocab.json": model["vocab"],
        "merges.txt": "#version: 0.2\n" + "\n".join(merges) + "\n",
        "tokenizer_config.json": {
            "add_bos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": {
                str(VOCABULARY + offset): {"content": name, "special": True, **plain}
                for offset, name in enumerate(SPECIAL)
            },
            "additional_special_tokens": list(SPECIAL[1:]),
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "errors": "replace",
            "model_max_length": 32768,
            "pad_token": "<|endoftext|>",
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
        },
    }


def new_tokenizer(model: BPE) -> Tokenizer:
    """The served tokenizer without special tokens; with BPE dropout, tokenization is random."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = NFC()
    pattern = Split(Regex(QWEN2_PATTERN), behavior="isolated")
    tokenizer.pre_tokenizer = Sequence([pattern, ByteLevel(add_prefix_space=False, use_regex=False)])
    return tokenizer


def load_tokenizer(folder: Path, dropout: float | None = None) -> Tokenizer:
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    return new_tokenizer(BPE(vocab=vocabulary, merges=merges, dropout=dropout))  # type: ignore[arg-type]


def token_sizes(tokenizer: Tokenizer) -> np.ndarray:
    """Bytes of each token; in a byte-level vocabulary each character is one byte."""
    sizes = np.zeros(VOCABULARY, np.int64)
    for token, number in tokenizer.get_vocab().items():
        sizes[number] = len(token)
    return sizes


if __name__ == "__main__":
    main()
