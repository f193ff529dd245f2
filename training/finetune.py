# SPDX-License-Identifier: Apache-2.0
"""Fine-tune the decoder adversarially, half of the time on codes that the talker predicts.

    python -m training.finetune --work DIR --codec DIR --pool pool.npz --talker DIR --minutes 3

Codes 0 and 1 are always the encoder's, so that codes and samples have the same phonemes, pitch and phase. In half of
the segments, codes 2 and up are the talker's, predicted with dropout. --codec holds codes.npz and the decoder, which is
replaced, and receives finetune.jsonl.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from polyvox import kernels
from polyvox.models.qwen3_tts.codec import CodecDecoder
from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.talker import Talker
from training.adversarial import AdversarialLoss
from training.batches import Batch, Batches, row_count
from training.codec import read_codes, trained_parameters
from training.export import load_decoder
from training.files import save_parts
from training.graph import CapturedStep
from training.layers import replace_layers
from training.layout import NUM_CODEBOOKS, SAMPLING, voice_files
from training.losses import read
from training.optimizer import adam, set_learning_rate, synchronize
from training.pool import Pool
from training.schedule import Clock, Log, rate
from training.speech_data import Segments, Sound, load_sound, without_margin
from training.talker import LENGTHS, load_talker
from training.units import FRAME
from training.vocoder import SEGMENT, SKIPPED

PEAK_RATE = 2e-4
AVERAGE = 0.998  # of the decoder's weights
RISE = 300  # steps until the discriminators have their full weight
PREDICTED = 0.5  # share of segments with codes of the talker
NUM_ALIGNED = 2  # codes of a frame that stay the encoder's
PASSES = 2  # the first pass reads the encoder's codes, the second the codes of the first
LOG_SECONDS, CHECK = 15.0, 10


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


class DecoderFinetuning:
    """The decoder, its discriminators and one training step of both."""

    def __init__(self, sound: Sound, codes: Tensor, decoder: CodecDecoder, batch: int) -> None:
        """codes: [variants, frames, NUM_CODEBOOKS]; variant 0 is the encoder's."""
        device = codes.device
        self.sound, self.codes, self.batch, self.device = sound, codes, batch, device
        self.decoder = decoder.to(device)
        self.segments = Segments(sound, SEGMENT)
        self.adversarial = AdversarialLoss(device)
        self.parameters = trained_parameters(decoder)
        self.optimizer = adam(self.parameters, PEAK_RATE, device)
        self.average = [parameter.detach().clone() for parameter in self.parameters]
        self.columns = torch.arange(SEGMENT, device=device)

    def decode(self, starts: Tensor, variants: Tensor) -> Tensor:
        """Samples of the segments that start at these frames, from these variants of their codes."""
        codes = self.codes[variants[:, None], starts[:, None] + self.columns]
        return self.decoder(codes, self.decoder.initial_state(len(starts)))[0][:, SKIPPED * FRAME :]

    def target(self, starts: Tensor) -> Tensor:
        return without_margin(self.segments.samples(starts))[:, SKIPPED * FRAME :]

    def step(self) -> None:
        starts = self.segments.draw(self.batch)
        variants = (torch.rand(self.batch, device=self.device) < PREDICTED).long() * (len(self.codes) - 1)
        self.optimizer.zero_grad(set_to_none=True)
        made = self.decode(starts, variants)
        made.backward(self.adversarial.gradient(made, self.target(starts)))
        nn.utils.clip_grad_norm_(self.parameters, 5.0)
        self.optimizer.step()
        torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1 - AVERAGE)

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Spectral distance on held-out speech, from the encoder's codes and from predicted ones."""
        starts = self.sound.validation
        target, distance = self.target(starts), self.adversarial.spectral
        return {
            f"valid_{name}": float(distance(self.decode(starts, torch.full_like(starts, variant)), target))
            for variant, name in zip(range(len(self.codes)), ("encoded", "predicted"), strict=False)
        }

    def run(self, minutes: float, log: Log) -> None:
        log(phase="finetune", step=0, **self.validate())
        run = CapturedStep(self.step, self.device)
        clock, number, logged = Clock(minutes), 0, 0.0
        while not clock.over:
            fall = rate(1.0, number, clock.part, floor=0.1)
            set_learning_rate(self.optimizer, PEAK_RATE * fall)
            self.adversarial.schedule(fall, 1.0, min(1.0, number / RISE))
            run()
            number += 1
            if number % CHECK == 0:
                synchronize(self.device)
                if clock.seconds - logged > LOG_SECONDS:
                    logged = clock.seconds
                    log(phase="finetune", step=number, **self.adversarial.values(), **self.validate())
        with torch.no_grad():
            for parameter, mean in zip(self.parameters, self.average, strict=True):
                parameter.copy_(mean)
        log(phase="finetuned", step=number, **self.validate())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("work", "codec", "pool", "talker"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--rows", type=int, default=16_384, help="rows of one talker batch")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = 4
    torch.manual_seed(1)
    with kernels.disabled():
        finetune(arguments, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def finetune(arguments: argparse.Namespace, device: torch.device) -> None:
    pool, config = Pool.load(arguments.pool), parse_config(voice_files(SAMPLING))
    sound = load_sound(arguments.work, SEGMENT, device)
    true = read_codes(arguments.codec, sound.index).astype(np.int64)
    talker, decoder = Talker(config), load_decoder(arguments.codec)
    load_talker(talker, arguments.talker)
    replace_layers(talker)  # with dropout
    talker.to(device)
    codes = torch.from_numpy(true).to(device)
    predicted = predict(talker, Batches(pool, config, device), pool, sound.index, arguments.rows)
    log = Log(arguments.codec / "finetune.jsonl")
    same = (predicted == codes).float().mean(0).tolist()
    log(phase="predicted", **{f"same_{book}": value for book, value in enumerate(same)})
    DecoderFinetuning(sound, torch.stack([codes, predicted]), decoder, arguments.batch).run(arguments.minutes, log)
    save_parts(decoder.state_dict(), arguments.codec, "decoder")


if __name__ == "__main__":
    main()
