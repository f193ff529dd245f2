# SPDX-License-Identifier: Apache-2.0
"""Train encoder, codebooks and the first layers of the decoder, then encode the corpus.

    python -m training.codec --work DIR --out DIR --minutes 3

The latents of the decoder's convolutional layers are acoustic features (features.py), so the codec learns from timed
phonemes and prosody to codes to features of synthesised texts; training.vocoder then trains the convolutional layers.
--work holds the corpus. --out receives decoder-*.safetensors, encoder-*.safetensors, codes.npz (of all timed texts) and
codec.jsonl (losses). If --out has an encoder, training continues from it.
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
from training.corpus import Phonemes, read_timings, spans
from training.encoder import SpeechEncoder
from training.fast_decoder import features
from training.features import COLUMNS, AcousticFeatures, LogMel, ignore_free_channels
from training.files import load_parts, save_parts
from training.graph import CapturedStep
from training.layout import CODE_0_SIZE, CODE_DIM, NUM_CODEBOOKS, RESIDUAL_SIZE, SAMPLING, initialise, voice_files
from training.optimizer import adam, set_learning_rate, synchronize
from training.oscillator import initialise_oscillator
from training.pool import CODES_FILE
from training.schedule import Clock, Log, rate
from training.speech_data import MARGIN, Frames, Segments, corpus_frames, load_sound

SEGMENT = 16  # frames
SKIPPED = 2  # frames at the start of a segment that have no loss
PLAIN_SHARE = 0.25  # of the time, without quantization
KEPT = (0.1, 0.9)  # probability that the decoder receives all codes but the last, or all
PEAK_RATE = 1e-3
COMMITMENT, NAMING, SMALL = 0.1, 0.2, 0.001  # weights of losses beside the distance of features
LOG_SECONDS, CHECK = 10.0, 20
ENCODED_UTTERANCES, ENCODED_FRAMES = 8192, 16_384  # encoded together


class CodecTraining:
    """Models, optimizer and steps."""

    def __init__(self, arguments: argparse.Namespace, device: torch.device) -> None:
        self.arguments, self.device = arguments, device
        self.sound = load_sound(arguments.work, SEGMENT, device)
        self.segments = Segments(self.sound, SEGMENT)
        self.mel, self.acoustic = LogMel().to(device), AcousticFeatures().to(device)
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
        units, source, wanted = self._drawn()
        first, rest = self.encoder.plain(units, source)
        naming, named = self.encoder.phonemes.phoneme_loss(first, units)
        distance = self.acoustic.loss(self.made(first, rest), wanted)
        small = first.square().mean() + rest.square().mean()
        self._update(distance + SMALL * small + NAMING * naming)
        self._see(features=distance, naming=naming, named=named)

    def step(self) -> None:
        """With quantization."""
        units, source, wanted = self._drawn()
        draws = torch.rand(len(units), device=self.device)
        kept = NUM_CODEBOOKS - len(KEPT) + 1 + (draws[:, None] > self.kept[:-1]).sum(1)
        coded = self.encoder(units, source, kept, learn=True)
        naming, named = self.encoder.phonemes.phoneme_loss(coded.first, units)
        # Code 0 is for the talker: it learns phonemes only, and the decoder takes it as it is.
        distance = self.acoustic.loss(self.made(coded.first.detach(), coded.rest), wanted)
        self._update(distance + COMMITMENT * coded.commitment + NAMING * naming)
        self._see(features=distance, commitment=coded.commitment, naming=naming, named=named)

    def made(self, first: Tensor, rest: Tensor) -> Tensor:
        return features(self.decoder, latent(self.decoder, first, rest))[..., SKIPPED * COLUMNS :]

    def wanted(self, starts: Tensor) -> Tensor:
        """The features of the teacher's audio."""
        mel = self.mel(self.segments.samples(starts))[..., MARGIN * COLUMNS : -MARGIN * COLUMNS]
        return self.acoustic(mel, self.segments.source(starts))[..., SKIPPED * COLUMNS :]

    def _drawn(self) -> tuple[Tensor, Tensor, Tensor]:
        """The encoder's input for random segments, and their features."""
        starts = self.segments.draw(self.arguments.batch)
        return *self.segments.inputs(starts), self.wanted(starts)

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
                self.encoder.initialise_codebooks(*self.segments.inputs(starts))
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
        units, source = self.segments.inputs(self.sound.validation)
        wanted = self.wanted(self.sound.validation)
        plain = self.encoder.plain(units, source)
        found = {"plain": self.acoustic.distances(self.made(*plain), wanted)}
        first = plain[0]
        for kept in range(2, NUM_CODEBOOKS + 1) if self.quantized else ():
            coded = self.encoder(units, source, torch.full((len(units),), kept, device=self.device))
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

    def encode(self) -> dict[str, np.ndarray]:
        """Codes of all timed texts: text indices and frame counts [U], codes and phoneme positions [F]."""
        phonemes, timings = Phonemes(self.arguments.work), read_timings(self.arguments.work, "durations")
        codes, positions = [], []
        for first in range(0, len(timings), ENCODED_UTTERANCES):
            frames = corpus_frames(phonemes, timings[first : first + ENCODED_UTTERANCES], self.device)
            codes.append(encode(self.encoder, frames).cpu().numpy().astype(np.uint16))
            positions.append(frames.phonemes)
        return {
            "texts": timings.texts.astype(np.int32),
            "frames": timings.frames.astype(np.int16),
            "codes": np.concatenate(codes),
            "phonemes": np.concatenate(positions),
        }

    def save(self, out: Path) -> None:
        """Write encoder and decoder."""
        self.copy_codebooks()
        save_parts(self.decoder.state_dict(), out, "decoder")
        save_parts(self.encoder.state_dict(), out, "encoder")


@torch.no_grad()
def encode(encoder: SpeechEncoder, frames: Frames) -> Tensor:
    """Codes [frames, NUM_CODEBOOKS]."""
    parts = torch.arange(len(frames.first), device=frames.first.device).split(ENCODED_FRAMES)
    return torch.cat([encoder(frames.windows(part)[None], frames.source[part][None]).codes[0] for part in parts])


def load_encoder(folder: Path) -> SpeechEncoder:
    encoder = SpeechEncoder(NUM_CODEBOOKS, CODE_0_SIZE, RESIDUAL_SIZE, CODE_DIM)
    encoder.load_state_dict(load_parts(folder, "encoder"))
    return encoder.eval()


def read_codes(folder: Path, texts: np.ndarray) -> np.ndarray:
    """Codes of these texts from codes.npz, one after another: [frames, NUM_CODEBOOKS]."""
    with np.load(folder / CODES_FILE) as arrays:
        known, frames, codes = arrays["texts"], arrays["frames"].astype(np.int64), arrays["codes"]
    order = np.argsort(known)
    chosen = order[np.searchsorted(known, texts, sorter=order)]
    assert np.array_equal(known[chosen], texts)
    return codes[spans((np.cumsum(frames) - frames)[chosen], frames[chosen])]


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
    parser.add_argument("--minutes", type=float, default=3.0, help="0 only encodes the corpus")
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
    made = training.encode()
    np.savez_compressed(arguments.out / CODES_FILE, **made)  # type: ignore[arg-type]
    codes = made["codes"]
    uses = [np.bincount(codes[:, book], minlength=2) / len(codes) for book in range(NUM_CODEBOOKS)]
    spread = [float(np.exp(-(use * np.log(use + 1e-12)).sum())) for use in uses]
    training.log(
        phase="encoded", texts=str(len(made["texts"])), frames=str(len(codes)), perplexity=str(np.round(spread))
    )


if __name__ == "__main__":
    main()
