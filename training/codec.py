# SPDX-License-Identifier: Apache-2.0
"""Train the codec (encoder, codebooks and decoder), then encode the corpus.

    python -m training.codec --work DIR --out DIR --minutes 4.5

--work holds the corpus and the state to resume from. --out receives decoder.safetensors, encoder.safetensors, codes.npz
(all codes of the synthesised texts), timed.npz (code 0 of texts that were only timed) and codec.jsonl (losses). Once a
talker is trained, training.finetune trains the decoder further.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from polyvox import kernels
from polyvox.models.qwen3_tts.codec import CodecDecoder, ResidualQuantizer, VectorQuantizer
from polyvox.models.qwen3_tts.config import parse_config
from training.corpus import Phonemes, read_timed
from training.encoder import MARGIN, Codes, SpeechEncoder
from training.graph import CapturedStep
from training.layout import CODE_0_SIZE, CODE_DIM, NUM_CODEBOOKS, RESIDUAL_SIZE, SAMPLING, initialise, voice_files
from training.optimizer import adam, set_learning_rate, synchronize
from training.pool import SPOKEN_FILE, TIMED_FILE
from training.schedule import Clock, Log, rate
from training.spectrum import SpectralLoss
from training.speech_data import HELD_OUT, Segments, load_sound, windows, without_margin
from training.units import FRAME
from training.word_frequency import frame_counts, word_counts

SEGMENT = 16  # frames
PLAIN_STEPS = 500  # steps before quantization starts
KEPT = (0.1, 0.2, 0.2, 0.5)  # probability that the decoder receives 1, 2, 3 or all codes
PEAK_RATE = 6e-4
COMMITMENT, NAMING = 0.25, 0.25
LOG_SECONDS, CHECK = 15.0, 10


class CodecTraining:
    """Models, optimizer and steps of one run."""

    def __init__(self, arguments: argparse.Namespace, device: torch.device) -> None:
        self.arguments, self.device = arguments, device
        self.batch = arguments.batch
        self.sound = load_sound(arguments.work, SEGMENT, device)
        self.segments = Segments(self.sound, SEGMENT)
        config = parse_config(voice_files(SAMPLING)).codec
        self.decoder = CodecDecoder(config)
        initialise(self.decoder)
        with torch.no_grad():
            self.decoder.decoder[-1].conv.weight.mul_(0.3)  # type: ignore[union-attr, operator]
        self.decoder.to(device)
        self.encoder = SpeechEncoder(NUM_CODEBOOKS, CODE_0_SIZE, RESIDUAL_SIZE, CODE_DIM).to(device)
        self.loss = SpectralLoss().to(device)
        self.kept = torch.tensor(KEPT, device=device).cumsum(0)
        self.seen = {name: torch.zeros((), device=device) for name in ("spectral", "commitment", "naming", "named")}
        self.log = Log(arguments.out / "codec.jsonl")

    def latent(self, first: Tensor, rest: Tensor) -> Tensor:
        """The decoder's input, [B,codebook_dim,T]."""
        quantizer = self.decoder.quantizer
        return quantizer.rvq_first.output_proj(first.transpose(1, 2)) + quantizer.rvq_rest.output_proj(
            rest.transpose(1, 2)
        )

    def decode(self, latent: Tensor) -> Tensor:
        return self.decoder.sound(latent, self.decoder.initial_state(len(latent)))[0]

    def train(self, minutes: float) -> None:
        """Train encoder, codebooks and decoder together."""
        names = {"input_proj"}
        parameters = [p for n, p in self.decoder.named_parameters() if not names & set(n.split(".")) and "vq" not in n]
        parameters += self.encoder.parameters()
        optimizer = adam(parameters, PEAK_RATE, self.device)

        def update(loss: Tensor) -> None:
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 2.0)
            optimizer.step()

        def plain() -> None:
            optimizer.zero_grad(set_to_none=True)
            starts = self.segments.draw(self.batch)
            samples = self.segments.samples(starts)
            first, rest = self.encoder.plain(self.segments.windows(starts), samples)
            spectral = self.loss(self.decode(self.latent(first, rest)), without_margin(samples))
            self.seen["spectral"].copy_(spectral.detach())
            update(spectral + 0.01 * (first.square().mean() + rest.square().mean()))

        def quantized() -> None:
            optimizer.zero_grad(set_to_none=True)
            starts = self.segments.draw(self.batch)
            samples, units = self.segments.samples(starts), self.segments.windows(starts)
            draws = torch.rand(self.batch, device=self.device)
            kept = 1 + (draws[:, None] > self.kept[:-1]).sum(1)
            coded = self.encoder(units, samples, kept, learn=True)
            naming, named = self.encoder.phonemes.phoneme_loss(coded.first, units)
            spectral = self.loss(self.decode(self.latent(coded.first, coded.rest)), without_margin(samples))
            for name, value in (("spectral", spectral), ("commitment", coded.commitment), ("naming", naming)):
                self.seen[name].copy_(value.detach())
            self.seen["named"].copy_(named)
            update(spectral + COMMITMENT * coded.commitment + NAMING * naming)

        step, plain_steps = 0, self.arguments.plain_steps
        run = CapturedStep(plain, self.device)
        clock, logged = Clock(minutes), -LOG_SECONDS
        while not clock.over:
            if step == plain_steps:
                starts = torch.cat([self.segments.draw(64) for _ in range(self.arguments.start_batches)])
                self.encoder.initialise_codebooks(self.segments.windows(starts), self.segments.samples(starts))
                run = CapturedStep(quantized, self.device)
            set_learning_rate(optimizer, rate(PEAK_RATE, step, clock.part))
            run()
            step += 1
            if step % CHECK == 0:
                synchronize(self.device)
                if clock.seconds - logged > LOG_SECONDS and step > plain_steps:
                    logged = clock.seconds
                    self.log_progress("codec", step)
        self.log_progress("codec", step)
        self.copy_codebooks()

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Loss on held-out speech from one, two and all codes, and the accuracy of phonemes predicted from code 0."""
        starts = self.sound.validation
        samples, units = self.segments.samples(starts), self.segments.windows(starts)
        found = {}
        for kept in (1, 2, NUM_CODEBOOKS):
            coded = self.encoder(units, samples, torch.full((len(starts),), kept, device=self.device))
            made = self.decode(self.latent(coded.first, coded.rest))
            found[f"valid_{kept}"] = float(self.loss(made, without_margin(samples)))
        found["valid_named"] = float(self.encoder.phonemes.phoneme_loss(coded.first, units)[1])
        return found

    def log_progress(self, phase: str, step: int) -> None:
        seen = {name: float(value) for name, value in self.seen.items() if float(value)}
        self.log(phase=phase, step=step, **seen, **self.validate())

    @torch.no_grad()
    def copy_codebooks(self) -> None:
        """Copy the codebooks to the decoder; entries beyond the size of a smaller codebook are unused."""
        quantizer = self.decoder.quantizer
        for branch, books in (
            (quantizer.rvq_first, self.encoder.books[:1]),
            (quantizer.rvq_rest, self.encoder.books[1:]),
        ):
            assert isinstance(branch, ResidualQuantizer)
            for layer, book in zip(branch.vq.layers, books, strict=True):
                assert isinstance(layer, VectorQuantizer)
                assert isinstance(book, Codes)
                table, kept = book.table(), layer._codebook
                kept.embedding_sum.zero_()
                kept.embedding_sum[: len(table)] = table
                kept.cluster_usage.fill_(1.0)

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
            made.append(self.encoder(self.sound.windows[None, first:last], samples).codes[0].cpu().numpy())
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
        for name, model in (("decoder", self.decoder), ("encoder", self.encoder)):
            tensors = {key: value.detach().half().cpu().contiguous() for key, value in model.state_dict().items()}
            save_file(tensors, out / f"{name}.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=4.5)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--plain-steps", type=int, default=PLAIN_STEPS)
    parser.add_argument("--start-batches", type=int, default=24)
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = 4
    torch.manual_seed(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with kernels.disabled():  # kernels have no backward pass
        train(arguments, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def train(arguments: argparse.Namespace, device: torch.device) -> None:
    training = CodecTraining(arguments, device)
    training.log(phase="data", utterances=str(len(training.sound.frames)), frames=str(training.sound.frames.sum()))
    state = arguments.work / "codec.pt"
    if state.exists():
        found = torch.load(state, map_location=device)
        training.decoder.load_state_dict(found["decoder"])
        training.encoder.load_state_dict(found["encoder"])
    else:
        training.train(arguments.minutes)
        half = state.with_suffix(".half")
        torch.save({"decoder": training.decoder.state_dict(), "encoder": training.encoder.state_dict()}, half)
        half.replace(state)
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
