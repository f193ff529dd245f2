# SPDX-License-Identifier: Apache-2.0
"""Train encoder, codebooks and the first layers of the decoder, then encode the corpus.

    python -m training.codec --work DIR --out DIR --minutes 1.5

The latents of the decoder's convolutional layers are acoustic features (features.py), so the codec learns features to
codes to features, without audio; training.vocoder then trains the convolutional layers. --work holds the corpus. --out
receives decoder-*.safetensors, encoder-*.safetensors, codes.npz (all codes of the synthesised texts), timed.npz (code 0
of texts that were only timed) and codec.jsonl (losses). If --out has an encoder, training continues from it.
"""

import argparse
import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from polyvox import kernels
from polyvox.models.qwen3_tts.codec import CodecDecoder, ResidualQuantizer, VectorQuantizer
from polyvox.models.qwen3_tts.config import parse_config
from training.corpus import Phonemes, read_timed
from training.encoder import MARGIN, SpeechEncoder
from training.fast_decoder import features
from training.features import COLUMNS, AcousticFeatures, ignore_free_channels
from training.files import load_parts, save_parts
from training.graph import CapturedStep
from training.layout import CODE_0_SIZE, CODE_DIM, NUM_CODEBOOKS, RESIDUAL_SIZE, SAMPLING, initialise, voice_files
from training.optimizer import adam, set_learning_rate, synchronize
from training.oscillator import initialise_oscillator
from training.pool import SPOKEN_FILE, TIMED_FILE
from training.schedule import Clock, Log, rate
from training.speech_data import HELD_OUT, Segments, load_sound, windows
from training.units import FRAME
from training.word_frequency import frame_counts, word_counts

SEGMENT = 16  # frames
SKIPPED = 2  # frames at the start of a segment that have no loss
PLAIN_SHARE = 0.25  # of the time, without quantization
KEPT = (0.1, 0.9)  # probability that the decoder receives all codes but the last, or all
PEAK_RATE = 1e-3
COMMITMENT, NAMING, SMALL = 0.1, 0.2, 0.001  # weights of losses beside the distance of features
LOG_SECONDS, CHECK = 10.0, 20


class CodecTraining:
    """Models, optimizer and steps."""

    def __init__(self, arguments: argparse.Namespace, device: torch.device) -> None:
        self.arguments, self.device = arguments, device
        self.sound = load_sound(arguments.work, SEGMENT, device)
        self.segments = Segments(self.sound, SEGMENT)
        self.acoustic = AcousticFeatures().to(device)
        self.decoder = CodecDecoder(parse_config(voice_files(SAMPLING)).codec)
        initialise(self.decoder)
        ignore_free_channels(self.decoder, self.acoustic.num_channels)
        initialise_oscillator(self.decoder)
        with torch.no_grad():
            self.decoder.decoder[-1].conv.weight.mul_(0.1)  # type: ignore[union-attr, operator]
        self.encoder = SpeechEncoder(NUM_CODEBOOKS, CODE_0_SIZE, RESIDUAL_SIZE, CODE_DIM)
        encoder = load_parts(arguments.out, "encoder")
        self.quantized = bool(encoder)
        if encoder:
            self.encoder.load_state_dict(encoder)
            self.decoder.load_state_dict(load_parts(arguments.out, "decoder"))
        self.decoder.to(device)
        self.encoder.to(device)
        self.kept = torch.tensor(KEPT, device=device).cumsum(0)
        self.seen = {name: torch.zeros((), device=device) for name in ("features", "commitment", "naming", "named")}
        self.parameters = [*feature_parameters(self.decoder), *self.encoder.parameters()]
        self.optimizer = adam(self.parameters, PEAK_RATE, device)
        self.steps = 0
        self.log = Log(arguments.out / "codec.jsonl")

    def plain_step(self) -> None:
        """Without quantization."""
        units, source, mel = self._drawn()
        first, rest = self.encoder.plain(units, source, mel)
        naming, named = self.encoder.phonemes.phoneme_loss(first, units)
        distance = self.loss(first, rest, self.wanted(mel, source))
        small = first.square().mean() + rest.square().mean()
        self._update(distance + SMALL * small + NAMING * naming)
        self._see(features=distance, naming=naming, named=named)

    def step(self) -> None:
        """With quantization."""
        units, source, mel = self._drawn()
        draws = torch.rand(len(units), device=self.device)
        kept = NUM_CODEBOOKS - len(KEPT) + 1 + (draws[:, None] > self.kept[:-1]).sum(1)
        coded = self.encoder(units, source, mel, kept, learn=True)
        naming, named = self.encoder.phonemes.phoneme_loss(coded.first, units)
        # Code 0 is for the talker: it learns phonemes only, and the decoder takes it as it is.
        distance = self.loss(coded.first.detach(), coded.rest, self.wanted(mel, source))
        self._update(distance + COMMITMENT * coded.commitment + NAMING * naming)
        self._see(features=distance, commitment=coded.commitment, naming=naming, named=named)

    def made(self, first: Tensor, rest: Tensor) -> Tensor:
        return features(self.decoder, latent(self.decoder, first, rest))[..., SKIPPED * COLUMNS :]

    def loss(self, first: Tensor, rest: Tensor, wanted: Tensor) -> Tensor:
        return self.acoustic.loss(self.made(first, rest), wanted)

    def wanted(self, mel: Tensor, source: Tensor) -> Tensor:
        return self.acoustic(mel[..., MARGIN * COLUMNS : -MARGIN * COLUMNS], source)[..., SKIPPED * COLUMNS :]

    def _drawn(self) -> tuple[Tensor, Tensor, Tensor]:
        """Phoneme windows, source codes and log-mel spectra of random segments."""
        return self._inputs(self.segments.draw(self.arguments.batch))

    def _inputs(self, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mel = self.encoder.sound.mel(self.segments.samples(starts))
        return self.segments.windows(starts), self.segments.source(starts), mel

    def _update(self, loss: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()

    def _see(self, **values: Tensor) -> None:
        for name, value in values.items():
            self.seen[name].copy_(value.detach())

    def train(self, minutes: float) -> None:
        run = CapturedStep(self.step if self.quantized else self.plain_step, self.device)
        self.log(phase="captured", step=self.steps)
        clock, logged = Clock(minutes), -LOG_SECONDS
        while not clock.over:
            if not self.quantized and clock.part > PLAIN_SHARE:
                self.log_progress()
                self.quantized = True
                starts = torch.cat([self.segments.draw(64) for _ in range(self.arguments.start_batches)])
                self.encoder.initialise_codebooks(*self._inputs(starts))
                run = CapturedStep(self.step, self.device)
            set_learning_rate(self.optimizer, rate(PEAK_RATE, self.steps, clock.part))
            run()
            self.steps += 1
            if self.steps % CHECK == 0:
                synchronize(self.device)
                if clock.seconds - logged > LOG_SECONDS:
                    logged = clock.seconds
                    self.log_progress()
        synchronize(self.device)
        self.log_progress()

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Distances of features on held-out speech, and the accuracy of phonemes predicted from code 0."""
        units, source, mel = self._inputs(self.sound.validation)
        wanted = self.wanted(mel, source)
        plain = self.encoder.plain(units, source, mel)
        found = {"plain": self.acoustic.distances(self.made(*plain), wanted)}
        first = plain[0]
        for kept in range(2, NUM_CODEBOOKS + 1) if self.quantized else ():
            coded = self.encoder(units, source, mel, torch.full((len(units),), kept, device=self.device))
            found[str(kept)] = self.acoustic.distances(self.made(coded.first, coded.rest), wanted)
            first = coded.first
        named = self.encoder.phonemes.phoneme_loss(first, units)[1]
        shown = {f"valid_{name}_{kind}": value for kind, values in found.items() for name, value in values.items()}
        return {name: float(value) for name, value in (shown | {"valid_named": named}).items()}

    def log_progress(self) -> None:
        seen = {name: float(value) for name, value in self.seen.items() if float(value)}
        self.log(phase="quantized" if self.quantized else "plain", step=self.steps, **seen, **self.validate())

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
            made.append(self.encoder(units, source, self.encoder.sound.mel(samples)).codes[0].cpu().numpy())
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
        """Write encoder and decoder."""
        self.copy_codebooks()
        save_parts(self.decoder.state_dict(), out, "decoder")
        save_parts(self.encoder.state_dict(), out, "encoder")


def latent(decoder: CodecDecoder, first: Tensor, rest: Tensor) -> Tensor:
    """The decoder's input [B,codebook_dim,T] from both parts of its codes [B,T,CODE_DIM]."""
    quantizer = decoder.quantizer
    return quantizer.rvq_first.output_proj(first.transpose(1, 2)) + quantizer.rvq_rest.output_proj(rest.transpose(1, 2))


def trained_parameters(decoder: CodecDecoder) -> list[nn.Parameter]:
    """All but the codebooks and the quantizer's input projections, which a decoder does not use."""
    unused = re.compile(r"quantizer\..*(\.vq|\.input_proj)\.")
    return [parameter for name, parameter in decoder.named_parameters() if not unused.match(name)]


def feature_parameters(decoder: CodecDecoder) -> list[nn.Parameter]:
    """Those of the layers up to the acoustic features."""
    vocoder = set(decoder.decoder.parameters())
    return [parameter for parameter in trained_parameters(decoder) if parameter not in vocoder]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=1.5, help="0 only encodes the corpus")
    parser.add_argument("--batch", type=int, default=32)
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
    if arguments.minutes:
        training.train(arguments.minutes)
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
