# SPDX-License-Identifier: Apache-2.0
"""Write the files from which training continues, from an exported checkpoint: the inverse of training.export.

    python -m training.restore --checkpoint src/polyvox/assets/voice --encoder training/state --work DIR

A checkpoint has no encoder: --encoder is a folder with encoder-*.safetensors. --work receives codec/, talker/ and
tokens/. Discriminators and optimizers start anew, so the vocoder continues with --spectral-steps 0.
"""

import argparse
from pathlib import Path

import torch

from polyvox.models.qwen3_tts.checkpoint import load_weights
from polyvox.tts import EMBEDDED_VOICE
from training.export import TOKENIZER_FILES
from training.files import load_parts, save_parts

ENCODER = Path(__file__).parent / "state"


def restore(checkpoint: Path, encoder: Path, work: Path) -> None:
    """Write decoder and encoder to work/codec, the talker to work/talker and the tokenizer to work/tokens."""
    for name in ("codec", "talker", "tokens"):
        (work / name).mkdir(parents=True, exist_ok=True)
    model = load_weights(checkpoint, torch.device("cpu"), torch.float32)
    save_parts(model.codec.state_dict(), work / "codec", "decoder")
    save_parts(load_parts(encoder, "encoder"), work / "codec", "encoder")
    save_parts(dict(model.talker.named_parameters()), work / "talker", "talker")
    for name in TOKENIZER_FILES:
        (work / "tokens" / name).write_bytes((checkpoint / name).read_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=EMBEDDED_VOICE)
    parser.add_argument("--encoder", type=Path, default=ENCODER, help="folder with encoder-*.safetensors")
    parser.add_argument("--work", type=Path, required=True)
    arguments = parser.parse_args()
    restore(arguments.checkpoint, arguments.encoder, arguments.work)


if __name__ == "__main__":
    main()
