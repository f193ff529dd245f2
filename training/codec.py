# SPDX-License-Identifier: Apache-2.0
"""Train the codec (encoder, codebooks and decoder), then encode the corpus.

    python -m training.codec --work DIR --out DIR --minutes 20 [--run-minutes 7] [--resume DIR]

--work holds the corpus. --out receives decoder-*.safetensors, encoder-*.safetensors, codes.npz (all codes of the
synthesised texts), timed.npz (code 0 of texts that were only timed), codec.jsonl (losses) and state-*.safetensors. A
run resumes from the state in --resume or --out. Once a talker is trained, training.finetune trains the decoder further.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from polyvox import kernels
from polyvox.models.qwen3_tts.codec import CodecDecoder, ResidualQuantizer, VectorQuantizer
from polyvox.models.qwen3_tts.config import parse_config
from training.adversarial import AdversarialLoss
from training.corpus import Phonemes, read_timed
from training.encoder import MARGIN, SpeechEncoder
from training.fast_decoder import sound
from training.files import load_parts, save_parts
from training.graph import CapturedStep
from training.layout import CODE_0_SIZE, CODE_DIM, NUM_CODEBOOKS, RESIDUAL_SIZE, SAMPLING, initialise, voice_files
from training.optimizer import adam, set_learning_rate, synchronize
from training.oscillator import initialise_oscillator
from training.pool import SPOKEN_FILE, TIMED_FILE
from training.schedule import Clock, Log, rate
from training.speech_data import HELD_OUT, Segments, load_sound, windows, without_margin
from training.units import FRAME
from training.word_frequency import frame_counts, word_counts

SEGMENT = 8  # frames
SKIPPED = 2  # frames at the start of a segment that have no loss
PLAIN_STEPS = 8000  # steps before quantization starts
REGRESSION_STEPS = 12_000  # steps before the discriminators start
RISE = 600  # steps until the discriminators have their full weight
KEPT = (0.03, 0.07, 0.15, 0.75)  # probability that the decoder receives all but 3, 2, 1 or 0 codes
PEAK_RATE = 5e-4
AVERAGE = 0.999  # of the decoder's weights
RESUMED_STEP = 1000.0  # of an optimizer whose second moments are kept
STATE = "state"
COMMITMENT, NAMING = 0.1, 1.0
LOG_SECONDS, SAVE_SECONDS, CHECK = 15.0, 200.0, 20


class CodecTraining:
    """Models, optimizers and steps; the state is saved and resumed."""

    def __init__(self, arguments: argparse.Namespace, device: torch.device) -> None:
        self.arguments, self.device = arguments, device
        self.batch = arguments.batch
        self.sound = load_sound(arguments.work, SEGMENT, device)
        self.segments = Segments(self.sound, SEGMENT)
        config = parse_config(voice_files(SAMPLING)).codec
        self.decoder = CodecDecoder(config)
        initialise(self.decoder)
        initialise_oscillator(self.decoder)
        with torch.no_grad():
            self.decoder.decoder[-1].conv.weight.mul_(0.1)  # type: ignore[union-attr, operator]
        self.decoder.to(device)
        self.encoder = SpeechEncoder(NUM_CODEBOOKS, CODE_0_SIZE, RESIDUAL_SIZE, CODE_DIM).to(device)
        self.adversarial = AdversarialLoss(device)
        self.kept = torch.tensor(KEPT, device=device).cumsum(0)
        self.seen = {name: torch.zeros((), device=device) for name in ("commitment", "naming", "named")}
        names = {"input_proj"}
        self.parameters = [
            p for n, p in self.decoder.named_parameters() if not names & set(n.split(".")) and "vq" not in n
        ]
        self.num_averaged = len(self.parameters)
        self.parameters += self.encoder.parameters()
        self.optimizer = adam(self.parameters, PEAK_RATE, device)
        self.average = [p.detach().clone() for p in self.parameters[: self.num_averaged]]
        self.steps, self.seconds = 0, 0.0
        self.log = Log(arguments.out / "codec.jsonl")

    def latent(self, first: Tensor, rest: Tensor) -> Tensor:
        """The decoder's input, [B,codebook_dim,T]."""
        quantizer = self.decoder.quantizer
        return quantizer.rvq_first.output_proj(first.transpose(1, 2)) + quantizer.rvq_rest.output_proj(
            rest.transpose(1, 2)
        )

    def decode(self, latent: Tensor) -> Tensor:
        """Samples after the first frames, whose history is missing."""
        return sound(self.decoder, latent)[:, SKIPPED * FRAME :]

    def target(self, samples: Tensor) -> Tensor:
        return without_margin(samples)[:, SKIPPED * FRAME :]

    def plain_step(self) -> None:
        """Without quantization and without discriminators."""
        self.optimizer.zero_grad(set_to_none=True)
        starts = self.segments.draw(self.batch)
        samples = self.segments.samples(starts)
        first, rest = self.encoder.plain(self.segments.windows(starts), self.segments.source(starts), samples)
        made = self.decode(self.latent(first, rest))
        gradient = self.adversarial.gradient(made, self.target(samples), adversarial=False)
        self._update([made, 0.01 * (first.square().mean() + rest.square().mean())], [gradient, None])

    def regression_step(self) -> None:
        """With quantization, without discriminators."""
        self.step(adversarial=False)

    def step(self, adversarial: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        starts = self.segments.draw(self.batch)
        samples, units = self.segments.samples(starts), self.segments.windows(starts)
        draws = torch.rand(self.batch, device=self.device)
        kept = NUM_CODEBOOKS - len(KEPT) + 1 + (draws[:, None] > self.kept[:-1]).sum(1)
        coded = self.encoder(units, self.segments.source(starts), samples, kept, learn=True)
        naming, named = self.encoder.phonemes.phoneme_loss(coded.first, units)
        # Code 0 is for the talker: it learns phonemes only, and the decoder takes it as it is.
        made = self.decode(self.latent(coded.first.detach(), coded.rest))
        gradient = self.adversarial.gradient(made, self.target(samples), adversarial)
        self._update([made, COMMITMENT * coded.commitment + NAMING * naming], [gradient, None])
        for name, value in (("commitment", coded.commitment), ("naming", naming), ("named", named)):
            self.seen[name].copy_(value.detach())

    def _update(self, outputs: list[Tensor], gradients: list[Tensor | None]) -> None:
        torch.autograd.backward(outputs, gradients)
        nn.utils.clip_grad_norm_(self.parameters, 2.0)
        self.optimizer.step()
        trained = [p.detach() for p in self.parameters[: self.num_averaged]]
        torch._foreach_lerp_(self.average, trained, 1 - AVERAGE)

    def train(self, minutes: float, run_minutes: float) -> None:
        """Train for `minutes` in all, at most `run_minutes` of them in this run; save the state from time to time."""
        before, plain_steps, regression_steps = (
            self.seconds,
            self.arguments.plain_steps,
            self.arguments.regression_steps,
        )
        run = self._captured()
        self.log(phase="captured", step=self.steps)
        clock, logged, saved, began = Clock(minutes, before), -LOG_SECONDS, 0.0, self.steps
        while clock.seconds - before < 60 * run_minutes and not clock.over:
            if self.steps == plain_steps:
                starts = torch.cat([self.segments.draw(64) for _ in range(self.arguments.start_batches)])
                units, source = self.segments.windows(starts), self.segments.source(starts)
                self.encoder.initialise_codebooks(units, source, self.segments.samples(starts))
            if self.steps in (plain_steps, regression_steps):
                run = self._captured()
            fall = rate(1.0, self.steps - began, clock.part, floor=0.05)
            set_learning_rate(self.optimizer, PEAK_RATE * fall)
            rise = min(1.0, max(0.0, (self.steps - regression_steps) / RISE))
            self.adversarial.schedule(fall, clock.part, rise)
            run()
            self.steps += 1
            if self.steps % CHECK == 0:
                synchronize(self.device)
                if clock.seconds - before - logged > LOG_SECONDS:
                    logged = clock.seconds - before
                    self.log_progress("codec")
                if clock.seconds - before - saved > SAVE_SECONDS:
                    self.seconds = clock.seconds
                    saved = clock.seconds - before
                    self.save(self.arguments.out)
        synchronize(self.device)
        self.seconds = clock.seconds
        self.log_progress("codec")

    def _captured(self) -> CapturedStep:
        """The step of the current stage."""
        if self.steps < self.arguments.plain_steps:
            return CapturedStep(self.plain_step, self.device)
        regression = self.steps < self.arguments.regression_steps
        return CapturedStep(self.regression_step if regression else self.step, self.device)

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Losses of the averaged decoder on held-out speech, and the accuracy of phonemes predicted from code 0."""
        starts = self.sound.validation
        samples, units, source = (getattr(self.segments, name)(starts) for name in ("samples", "windows", "source"))
        found: dict[str, float] = {}
        self.swap()
        for kept in range(2, NUM_CODEBOOKS + 1):
            coded = self.encoder(units, source, samples, torch.full((len(starts),), kept, device=self.device))
            made = self.decode(self.latent(coded.first, coded.rest))
            spectral, waves = self.adversarial.spectral.both(made, self.target(samples))
            found |= {f"valid_{kept}": float(spectral), f"waves_{kept}": float(waves)}
        plain = self.decode(self.latent(*self.encoder.plain(units, source, samples)))
        found["valid_plain"] = float(self.adversarial.spectral(plain, self.target(samples)))
        self.swap()
        found["valid_named"] = float(self.encoder.phonemes.phoneme_loss(coded.first, units)[1])
        return found

    def log_progress(self, phase: str) -> None:
        seen = {name: float(value) for name, value in self.seen.items() if float(value)}
        self.log(phase=phase, step=self.steps, **seen, **self.adversarial.values(), **self.validate())

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the decoder's weights and their running average."""
        for parameter, mean in zip(self.parameters[: self.num_averaged], self.average, strict=True):
            kept = parameter.detach().clone()
            parameter.copy_(mean)
            mean.copy_(kept)

    @torch.no_grad()
    def copy_codebooks(self) -> None:
        """Copy the codebooks to the decoder; entries beyond the size of a smaller codebook are unused."""
        quantizer = self.decoder.quantizer
        for branch, tables in (
            (quantizer.rvq_first, [self.encoder.first.table()]),
            (quantizer.rvq_rest, self.encoder.rest_tables()),
        ):
            assert isinstance(branch, ResidualQuantizer)
            for layer, table in zip(branch.vq.layers, tables, strict=True):
                assert isinstance(layer, VectorQuantizer)
                kept = layer._codebook
                kept.embedding_sum.zero_()
                kept.embedding_sum[: len(table)] = table
                kept.cluster_usage.fill_(1.0)

    def state(self) -> dict[str, Tensor]:
        """All that a later run resumes from: averaged weights, and of the optimizers only the squared gradients."""
        found = {f"average.{index}": value for index, value in enumerate(self.average)}
        found |= {f"encoder.{name}": value for name, value in self.encoder.state_dict().items()}
        critics = self.adversarial.discriminators
        found |= {f"discriminators.{name}": value for name, value in critics.state_dict().items()}
        for name, optimizer in self._optimizers().items():
            for index, moments in optimizer.state_dict()["state"].items():
                found[f"{name}.{index}"] = moments["exp_avg_sq"].to(torch.bfloat16)
        return found | {"progress": torch.tensor([self.steps, self.seconds], dtype=torch.float64)}

    @torch.no_grad()
    def resume(self, state: dict[str, Tensor]) -> None:
        def part(prefix: str) -> dict[str, Tensor]:
            chosen = {name: value for name, value in state.items() if name.startswith(prefix + ".")}
            return {name.removeprefix(prefix + "."): value.to(self.device) for name, value in chosen.items()}

        self.encoder.load_state_dict(part("encoder"))
        self.adversarial.discriminators.load_state_dict(part("discriminators"))
        for index, value in part("average").items():
            self.average[int(index)].copy_(value)
            self.parameters[int(index)].copy_(value)
        for name, optimizer in self._optimizers().items():
            given = optimizer.state_dict()
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            for index, squares in part(name).items():
                given["state"][int(index)] = {
                    "step": torch.tensor(RESUMED_STEP, device=self.device),
                    "exp_avg": torch.zeros_like(parameters[int(index)]),
                    "exp_avg_sq": squares,
                }
            optimizer.load_state_dict(given)
        self.steps, self.seconds = int(state["progress"][0]), float(state["progress"][1])

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"generator": self.optimizer, "critic": self.adversarial.optimizer}

    @torch.no_grad()
    def encode(self, chunk: int = 1024) -> np.ndarray:
        """Codes of the synthesised corpus, [frames, NUM_CODEBOOKS]."""
        total = len(self.sound.windows)
        made = []
        for first in range(0, total, chunk):
            last = min(first + chunk, total)
            low, high = max(0, first - MARGIN), min(total, last + MARGIN)
            samples = self.sound.samples[low * FRAME : high * FRAME].float()[None] / 32767
            edges = ((low - first + MARGIN) * FRAME, (last + MARGIN - high) * FRAME)
            samples = nn.functional.pad(samples, edges)
            units, source = self.sound.windows[None, first:last], self.sound.source[None, first:last]
            made.append(self.encoder(units, source, samples).codes[0].cpu().numpy())
        return np.concatenate(made).astype(np.uint16)

    @torch.no_grad()
    def encode_timed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Code 0 of texts that were timed but not synthesised: text indices, frame counts, codes."""
        phonemes = Phonemes(self.arguments.work)
        index, frames, made = [], [], []
        pending: list[np.ndarray] = []

        def flush() -> None:
            if pending:
                rows = torch.from_numpy(np.concatenate(pending)).to(self.device)[None]
                made.append(self.encoder.first_codes(rows)[0].cpu().numpy().astype(np.uint16))
                pending.clear()

        spoken = set(self.sound.index.tolist())
        for timed, _ in read_timed(self.arguments.work, "durations"):
            if timed.index not in spoken:
                index.append(timed.index)
                frames.append(timed.span.frames)
                pending.append(windows(phonemes[timed.index], timed))
            if len(pending) == 2048:
                flush()
        flush()
        codes = np.concatenate(made) if made else np.zeros(0, np.uint16)
        return np.array(index, np.int32), np.array(frames, np.int16), codes

    def word_counts(self) -> np.ndarray:
        """For each held-out frame, how often its word occurs in the training texts; -1 elsewhere."""
        phonemes = Phonemes(self.arguments.work)
        counts = word_counts(phonemes, np.nonzero(np.arange(len(phonemes)) % HELD_OUT)[0])
        return np.concatenate(
            [
                np.full(timed.span.frames, -1, np.int32)
                if timed.index % HELD_OUT
                else frame_counts(phonemes[timed.index], timed, counts)
                for timed, _ in read_timed(self.arguments.work, "speech")
            ]
        )

    def save(self, out: Path) -> None:
        """Write the averaged decoder and the encoder for later stages, and the state of training."""
        self.copy_codebooks()
        self.swap()
        save_parts(self.decoder.state_dict(), out, "decoder")
        self.swap()
        save_parts(self.encoder.state_dict(), out, "encoder")
        save_parts(self.state(), out, STATE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path, help="folder of the state of an earlier run; by default --out")
    parser.add_argument("--minutes", type=float, default=20.0, help="of training, earlier runs included")
    parser.add_argument("--run-minutes", type=float, default=math.inf, help="maximum minutes of this run")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--plain-steps", type=int, default=PLAIN_STEPS, help="before quantization")
    parser.add_argument("--regression-steps", type=int, default=REGRESSION_STEPS, help="before the discriminators")
    parser.add_argument("--start-batches", type=int, default=24)
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = 4
    torch.manual_seed(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with kernels.disabled():  # kernels have no backward pass
        train(arguments, device)


def train(arguments: argparse.Namespace, device: torch.device) -> None:
    training = CodecTraining(arguments, device)
    training.log(phase="data", utterances=str(len(training.sound.frames)), frames=str(training.sound.frames.sum()))
    state = load_parts(arguments.resume or arguments.out, STATE)
    if state:
        training.resume(state)
    training.train(arguments.minutes, arguments.run_minutes)
    training.save(arguments.out)
    codes = training.encode()
    texts, frames, firsts = training.encode_timed()
    np.savez_compressed(
        arguments.out / SPOKEN_FILE, codes=codes, frames=training.sound.frames, texts=training.sound.index,
        word_counts=training.word_counts(),
    )  # fmt: skip
    np.savez_compressed(arguments.out / TIMED_FILE, codes=firsts, frames=frames, texts=texts)
    uses = [np.bincount(codes[:, book], minlength=2) / len(codes) for book in range(NUM_CODEBOOKS)]
    spread = [float(np.exp(-(use * np.log(use + 1e-12)).sum())) for use in uses]
    training.log(phase="encoded", frames=str(len(codes)), timed=str(len(firsts)), perplexity=str(np.round(spread)))


if __name__ == "__main__":
    main()
