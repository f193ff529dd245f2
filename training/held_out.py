# SPDX-License-Identifier: Apache-2.0
"""Reconstruct held-out speech from its codes and save it as recordings, beside the teacher's audio.

    python -m training.held_out --work DIR --codec DIR --out DIR [--count 24] [--codebooks 4]

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
from training.codec import latent
from training.corpus import Phonemes, read_timed
from training.encoder import MARGIN, SpeechEncoder
from training.export import load_decoder
from training.fast_decoder import waveform
from training.features import COLUMNS, AcousticFeatures
from training.files import load_parts
from training.layout import CODE_0_SIZE, CODE_DIM, NUM_CODEBOOKS, RESIDUAL_SIZE, SPEAKERS
from training.speech_data import HELD_OUT, utterance_source, windows
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
    encoder = SpeechEncoder(NUM_CODEBOOKS, CODE_0_SIZE, RESIDUAL_SIZE, CODE_DIM)
    encoder.load_state_dict(load_parts(arguments.codec, "encoder"))
    encoder.to(device).eval()
    decoder = load_decoder(arguments.codec).to(device).eval()
    acoustic = AcousticFeatures().to(device)
    made: dict[str, list[list[tuple[str, np.ndarray]]]] = {}
    positions: dict[Path, int] = {}
    for timed, path in read_timed(arguments.work, "speech"):
        first = positions.get(path, 0)
        count = timed.span.frames * FRAME
        positions[path] = first + count
        voice = int(phonemes.voices[timed.index])
        enough = len(made.get("teacher", [[], []])[voice]) >= arguments.count
        if timed.index % HELD_OUT or timed.span.frames < MIN_FRAMES or enough:
            continue
        wave = torch.from_numpy(np.fromfile(path, np.int16, count, offset=2 * first)).to(device).float() / 32767
        padded = nn.functional.pad(wave, (MARGIN * FRAME, MARGIN * FRAME))[None]
        units = torch.from_numpy(windows(phonemes[timed.index], timed))[None].to(device)
        source = utterance_source(timed, voice)[None].to(device)
        mel = encoder.sound.mel(padded)
        true = acoustic(mel[..., MARGIN * COLUMNS : -MARGIN * COLUMNS], source)
        free = decoder.config.latent_dim - true.shape[1]
        sounds = {"teacher": wave, "features": waveform(decoder, nn.functional.pad(true, (0, 0, 0, free)))[0]}
        for books in arguments.codebooks:
            coded = encoder(units, source, mel, torch.tensor([books], device=device))
            x = latent(decoder, coded.first, coded.rest)
            sounds[f"codec-{books}"] = decoder.sound(x, decoder.initial_state(1))[0][0]
        for name, sound in sounds.items():
            made.setdefault(name, [[], []])[voice].append((texts[timed.index], sound.cpu().numpy()))
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
