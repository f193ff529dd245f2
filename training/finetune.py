# SPDX-License-Identifier: Apache-2.0
"""Continue the vocoder's training on codes, half of which the talker predicts.

    python -m training.finetune --work DIR --codec DIR --pool pool.npz --talker DIR --minutes 3 [--run-minutes 7]

Codes 0 and 1 are always the encoder's, so that codes and samples have the same phonemes, pitch and phase. In half of
the segments, codes 2 and up are the talker's, predicted with dropout. --codec holds codes.npz, the decoder, which is
replaced, and the state of the vocoder, whose discriminators continue; it receives finetune.jsonl and
finetune-state-*.safetensors, from which a later run resumes.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polyvox import kernels
from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.talker import Talker
from training.batches import Batch, Batches, row_count
from training.files import load_parts
from training.layers import replace_layers
from training.layout import NUM_CODEBOOKS, SAMPLING, voice_files
from training.losses import read
from training.pool import Pool
from training.talker import LENGTHS, load_talker
from training.vocoder import STATE, VocoderTraining, add_arguments, set_up

PEAK_RATE = 2e-4
NUM_ALIGNED = 2  # codes of a frame that stay the encoder's
PASSES = 2  # the first pass reads the encoder's codes, the second the codes of the first


@torch.no_grad()
def predict(talker: Talker, batches: Batches, pool: Pool, texts: np.ndarray, rows: int) -> Tensor:
    """Frames [frames, NUM_CODEBOOKS] of these texts, concatenated; codes 2 and up are predicted by the talker."""
    talker.train()  # dropout imitates the errors on texts that it was not trained on
    length, device = row_count(pool), batches.codes.device
    by_text = {int(pool.text[entry]): int(entry) for entry in np.nonzero(pool.text >= 0)[0][::-1]}
    entries = np.array([by_text[int(text)] for text in texts])
    counts = pool.frame_count[entries]
    starts = np.cumsum(counts) - counts
    made = torch.empty(int(counts.sum()), NUM_CODEBOOKS, dtype=torch.int64, device=device)
    for low, size in zip((0, *LENGTHS), (*LENGTHS, int(length[entries].max())), strict=True):
        chosen = np.nonzero((length[entries] > low) & (length[entries] <= size))[0]
        for first in range(0, len(chosen), max(1, rows // size)):
            some = chosen[first : first + max(1, rows // size)]
            whole = torch.zeros(len(some), dtype=torch.bool, device=device)
            batch = batches.rows(torch.from_numpy(entries[some]).to(device), whole, whole, size)
            positions = np.concatenate([np.arange(starts[row], starts[row] + counts[row]) for row in some])
            made[torch.from_numpy(positions).to(device)] = talker_codes(talker, batch, NUM_ALIGNED)
    talker.eval()
    return made


def talker_codes(talker: Talker, batch: Batch, num_given: int) -> Tensor:
    """The frames of a batch in row order, [frames, NUM_CODEBOOKS]; codes from num_given on are by the talker."""
    frames, following = batch.frames, batch.following.clone()
    known = following[..., 0] >= 0
    true = following[known]

    def draw(book: int, scores: Tensor) -> Tensor:  # book 0 is that of code 1
        return true[:, book + 1] if book + 1 < num_given else scores.argmax(-1)

    for _ in range(PASSES):
        hidden = read(talker, batch, frames)[known]
        rest = talker.code_predictor(hidden, talker.model.codec_embedding(true[:, 0]), draw)
        following[known] = torch.cat([true[:, :1], rest], 1)
        frames = torch.where(frames >= 0, following.roll(1, 1), frames)
    return following[known]


class DecoderFinetuning(VocoderTraining):
    """The vocoder's training on two variants of the codes: the encoder's, and those that the talker predicts."""

    name, state_name = "finetune", "finetune-state"
    variants = ("encoded", "predicted")
    adversarial_rate = PEAK_RATE
    first_part = 1.0

    def add_predicted(self, codes: Tensor) -> None:
        """Take the talker's codes [frames, NUM_CODEBOOKS] in half of the segments from codes."""
        self.codes = torch.cat([self.codes, codes[None]])

    def start(self) -> None:
        """Continue from the saved state, or with the discriminators of the vocoder's training, if there are any."""
        super().start()
        vocoder = load_parts(self.arguments.codec, STATE)
        if not self.seconds and vocoder:
            self.resume(vocoder)
            self.seconds = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, minutes=3.0, from_features=0.0)
    for name in ("pool", "talker"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=16_384, help="rows of one talker batch")
    parser.set_defaults(spectral_steps=0)
    arguments = parser.parse_args()
    device = set_up()
    with kernels.disabled():
        finetune(arguments, device)


def finetune(arguments: argparse.Namespace, device: torch.device) -> None:
    training = DecoderFinetuning(arguments, device)
    pool, config = Pool.load(arguments.pool), parse_config(voice_files(SAMPLING))
    talker = Talker(config)
    load_talker(talker, arguments.talker)
    replace_layers(talker)  # with dropout
    talker.to(device)
    predicted = predict(talker, Batches(pool, config, device), pool, training.sound.index, arguments.rows)
    same = (predicted == training.codes[0]).float().mean(0).tolist()
    training.log(phase="predicted", **{f"same_{book}": value for book, value in enumerate(same)})
    training.add_predicted(predicted)
    training.start()
    training.train(arguments.minutes, arguments.run_minutes)


if __name__ == "__main__":
    main()
