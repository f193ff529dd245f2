"""Finishes the decoder on what it will be given: the talker's codes, against critics.

    python -m training.polish --work DIR --codec DIR --pool pool.npz --talker DIR --minutes 3

Code 0 stays what was said, so that sound and codes stay in step; codes 1 and up are what the talker would say, with
dropout, in half of the segments. --codec holds the decoder, which is replaced, and codes.npz; polish.jsonl the losses.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from polyvox import kernels
from polyvox.models.qwen3_tts.codec import CodecDecoder
from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.talker import Talker
from training.batches import Batch, Batches, row_count
from training.codec import SEGMENT
from training.discriminators import Critics
from training.export import load_decoder
from training.graph import Captured, half_precision
from training.layout import BOOKS, SAMPLING, initialise, voice_files
from training.losses import read
from training.optimizer import adam, set_rate, synchronize
from training.pool import SPOKEN_FILE, Pool
from training.schedule import Clock, Log, rate
from training.sound import Segments, Sound, load_sound, without_margin
from training.spectrum import SpectralLoss
from training.talker import LENGTHS, add_dropout, load_talker

PEAK_RATE, CRITIC_RATE = 2e-4, 3e-4
MATCHING, SPECTRAL = 2.0, 4.0
AVERAGE = 0.998  # of the decoder's weights
RISE = 300  # steps until critics count in full
PREDICTED = 0.5  # of segments: codes 1 and up by the talker
PASSES = 2  # of prediction: the first reads what was said, the next what the one before predicted
LOG_SECONDS, CHECK = 15.0, 10


@torch.no_grad()
def predict(talker: Talker, batches: Batches, pool: Pool, texts: np.ndarray, rows: int) -> Tensor:
    """Frames [frames, BOOKS] of these spoken texts one after another, codes 1 and up as the talker predicts them."""
    talker.train()  # it makes more mistakes with texts that it has not seen; dropout stands for those
    length, device = row_count(pool), batches.codes.device
    by_text = {int(pool.text[entry]): int(entry) for entry in np.nonzero(pool.spoken & (pool.text >= 0))[0][::-1]}
    entries = np.array([by_text[int(text)] for text in texts])
    counts = pool.frame_count[entries]
    starts = np.cumsum(counts) - counts
    made = torch.empty(int(counts.sum()), BOOKS, dtype=torch.int64, device=device)
    for low, size in zip((0, *LENGTHS), (*LENGTHS, int(length[entries].max())), strict=True):
        chosen = np.nonzero((length[entries] > low) & (length[entries] <= size))[0]
        for first in range(0, len(chosen), max(1, rows // size)):
            some = chosen[first : first + max(1, rows // size)]
            whole = torch.zeros(len(some), dtype=torch.bool, device=device)
            batch = batches.rows(torch.from_numpy(entries[some]).to(device), whole, whole, size)
            places = np.concatenate([np.arange(starts[place], starts[place] + counts[place]) for place in some])
            made[torch.from_numpy(places).to(device)] = said(talker, batch)
    talker.eval()
    return made


def said(talker: Talker, batch: Batch) -> Tensor:
    """The frames of a batch's rows in order, [frames, BOOKS]: code 0 as it was, the others as the talker has them."""
    frames, following = batch.frames, batch.following.clone()
    known = following[..., 0] >= 0
    first = following[known][:, :1]
    for _ in range(PASSES):
        hidden = read(talker, batch, frames)[known]
        rest = talker.code_predictor(hidden, talker.model.codec_embedding(first[:, 0]), lambda _, x: x.argmax(-1))
        following[known] = torch.cat([first, rest], 1)
        frames = torch.where(frames >= 0, following.roll(1, 1), frames)
    return following[known]


class Polishing:
    """The decoder, its critics and a step of both."""

    def __init__(self, sound: Sound, codes: Tensor, decoder: CodecDecoder, batch: int) -> None:
        """codes: [ways, frames, BOOKS], the first way as they were said."""
        device = codes.device
        self.sound, self.codes, self.batch, self.device = sound, codes, batch, device
        self.decoder = decoder.to(device)
        self.segments = Segments(sound, SEGMENT)
        self.critics = Critics().to(device)
        self.loss = SpectralLoss().to(device)
        self.parameters = [p for n, p in decoder.named_parameters() if "vq" not in n and "input_proj" not in n]
        self.maker = adam(self.parameters, PEAK_RATE, device)
        self.judge = adam(self.critics.parameters(), CRITIC_RATE, device)
        self.average = [parameter.detach().clone() for parameter in self.parameters]
        self.weight = torch.zeros((), device=device)  # of the critics
        self.columns = torch.arange(SEGMENT, device=device)
        self.seen = {
            name: torch.zeros((), device=device) for name in ("spectral", "critics", "adversarial", "matching")
        }

    def made(self, starts: Tensor, ways: Tensor) -> Tensor:
        """Samples of the segments that begin here, from codes of these ways."""
        codes = self.codes[ways[:, None], starts[:, None] + self.columns]
        return self.decoder(codes, self.decoder.initial_state(len(starts)))[0]

    def step(self) -> None:
        starts = self.segments.draw(self.batch)
        wanted = without_margin(self.segments.samples(starts))
        ways = (torch.rand(self.batch, device=self.device) < PREDICTED).long() * (len(self.codes) - 1)
        made = self.made(starts, ways)
        with half_precision(self.device):
            self.critics.requires_grad_(True)
            self.judge.zero_grad(set_to_none=True)
            judged = self.critics.loss(wanted, made.detach())
        judged.backward()
        nn.utils.clip_grad_norm_(self.critics.parameters(), 5.0)
        self.judge.step()
        with half_precision(self.device):
            self.critics.requires_grad_(False)
            self.maker.zero_grad(set_to_none=True)
            adversarial, matching = self.critics.praise(wanted, made)
        spectral = self.loss(made, wanted)
        (SPECTRAL * spectral + self.weight * (adversarial + MATCHING * matching)).backward()
        nn.utils.clip_grad_norm_(self.parameters, 5.0)
        self.maker.step()
        torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1 - AVERAGE)
        for name, value in (("spectral", spectral), ("critics", judged), ("adversarial", adversarial)):
            self.seen[name].copy_(value.detach())
        self.seen["matching"].copy_(matching.detach())

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """The spectral distance on speech not trained on, from codes as they were said and as they are predicted."""
        starts = self.sound.validation
        wanted = without_margin(self.segments.samples(starts))
        return {
            f"valid_{name}": float(self.loss(self.made(starts, torch.full_like(starts, way)), wanted))
            for way, name in zip(range(len(self.codes)), ("said", "predicted"), strict=False)
        }

    def run(self, minutes: float, log: Log) -> None:
        log(phase="polish", step=0, **self.validate())
        run = Captured(self.step, self.device)
        clock, number, told = Clock(minutes), 0, 0.0
        while not clock.over:
            set_rate(self.maker, rate(PEAK_RATE, number, clock.part, least=0.1))
            self.weight.fill_(min(1.0, number / RISE))
            run()
            number += 1
            if number % CHECK == 0:
                synchronize(self.device)
                if clock.seconds - told > LOG_SECONDS:
                    told = clock.seconds
                    seen = {name: float(value) for name, value in self.seen.items()}
                    log(phase="polish", step=number, **seen, **self.validate())
        with torch.no_grad():
            for parameter, mean in zip(self.parameters, self.average, strict=True):
                parameter.copy_(mean)
        log(phase="polished", step=number, **self.validate())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("work", "codec", "pool", "talker"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--rows", type=int, default=16_384, help="that the talker reads at a time")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = 4
    torch.manual_seed(1)
    with kernels.disabled():
        polish(arguments, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def polish(arguments: argparse.Namespace, device: torch.device) -> None:
    pool, config = Pool.load(arguments.pool), parse_config(voice_files(SAMPLING))
    sound = load_sound(arguments.work, SEGMENT, device)
    with np.load(arguments.codec / SPOKEN_FILE) as arrays:
        true, texts = arrays["codes"].astype(np.int64), arrays["texts"]
    talker = Talker(config)
    initialise(talker)
    load_talker(talker, arguments.talker)
    add_dropout(talker)
    talker.to(device)
    codes = torch.from_numpy(true).to(device)
    predicted = predict(talker, Batches(pool, config, device), pool, texts, arguments.rows)
    log = Log(arguments.codec / "polish.jsonl")
    same = (predicted == codes).float().mean(0).tolist()
    log(phase="predicted", **{f"same_{book}": value for book, value in enumerate(same)})
    decoder = load_decoder(arguments.codec / "decoder.safetensors")
    Polishing(sound, torch.stack([codes, predicted]), decoder, arguments.batch).run(arguments.minutes, log)
    tensors = {key: value.detach().half().cpu().contiguous() for key, value in decoder.state_dict().items()}
    save_file(tensors, arguments.codec / "decoder.safetensors")


if __name__ == "__main__":
    main()
