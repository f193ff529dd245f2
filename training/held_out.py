# SPDX-License-Identifier: Apache-2.0
"""Reconstruct held-out speech from its codes and save it as recordings, beside the teacher's audio.

    python -m training.held_out --work DIR --codec DIR --out DIR [--count 24] [--codebooks 2 3]

--out receives teacher/, features/ (the decoder's convolutional layers on the features of the teacher's audio) and
codec-N/ for each number N of codes, which training.score and training.quality read.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn

from polyvox import kernels
from polyvox.audio.pcm import to_pcm
from training.codec import latent, load_encoder
from training.contrast import Flattening
from training.corpus import Phonemes, read_audio, read_timings
from training.encoder import FRAMES_BEFORE
from training.export import load_decoder
from training.fast_decoder import waveform
from training.features import AcousticFeatures, LogMel
from training.layout import NUM_CODEBOOKS, SPEAKERS
from training.speech_data import HELD_OUT, corpus_frames
from training.units import FRAME, SAMPLE_RATE

MIN_FRAMES = 25  # 2 s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("work", "codec", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--count", type=int, default=24, help="utterances of each voice")
    parser.add_argument("--codebooks", type=int, nargs="+", default=[NUM_CODEBOOKS])
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with kernels.disabled():
        reconstruct(arguments, device)


@torch.no_grad()
def reconstruct(arguments: argparse.Namespace, device: torch.device) -> None:
    texts, phonemes = (arguments.work / "texts.txt").read_text().splitlines(), Phonemes(arguments.work)
    encoder = load_encoder(arguments.codec).to(device)
    decoder = load_decoder(arguments.codec).to(device).eval()
    mel, acoustic, flatten = LogMel().to(device), AcousticFeatures().to(device), Flattening().to(device)
    timings, audio = read_timings(arguments.work, "speech"), read_audio(arguments.work)
    ends = np.cumsum(timings.frames)
    made: dict[str, list[list[tuple[str, np.ndarray]]]] = {}
    for number, (text, count) in enumerate(zip(timings.texts, timings.frames, strict=True)):
        voice = int(phonemes.voices[text])
        enough = len(made.get("teacher", [[], []])[voice]) >= arguments.count
        if text % HELD_OUT or count < MIN_FRAMES or enough:
            continue
        samples = audio[(ends[number] - count) * FRAME : ends[number] * FRAME]
        wave = torch.from_numpy(samples).to(device).float() / 32767
        frames = corpus_frames(phonemes, timings[number : number + 1], device)
        units, source = frames.windows(torch.arange(count, device=device))[None], frames.source[None]
        true = acoustic(mel(wave[None]), source[..., FRAMES_BEFORE])
        free = decoder.config.latent_dim - true.shape[1]
        sounds = {"teacher": wave, "features": waveform(decoder, nn.functional.pad(flatten(true), (0, 0, 0, free)))[0]}
        for books in arguments.codebooks:
            coded = encoder(units, source, torch.tensor([books], device=device))
            x = latent(decoder, coded.first, coded.rest)
            sounds[f"codec-{books}"] = decoder.sound(x, decoder.initial_state(1))[0][0]
        for name, sound in sounds.items():
            made.setdefault(name, [[], []])[voice].append((texts[text], sound.cpu().numpy()))
    for name, voices in made.items():
        folder = arguments.out / name
        folder.mkdir(parents=True, exist_ok=True)
        for speaker, spoken in zip(SPEAKERS, voices, strict=True):
            if spoken:
                save(folder / f"whole-{speaker}.npz", spoken)


def save(path: Path, spoken: list[tuple[str, np.ndarray]]) -> None:
    """In the format of training.recordings, whose dependencies this module does not need."""
    pieces = [to_pcm(samples) for _, samples in spoken]
    np.savez_compressed(
        path,
        texts=np.array([text for text, _ in spoken]),
        reasons=np.array(["stop"] * len(spoken)),
        lengths=np.array([len(piece) for piece in pieces]),
        samples=np.concatenate(pieces),
        rate=np.array(SAMPLE_RATE),
    )


if __name__ == "__main__":
    main()
