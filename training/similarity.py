# SPDX-License-Identifier: Apache-2.0
"""Speaker similarity of recordings by training.recordings to those of a base, by Resemblyzer's speaker encoder.

    python -m training.similarity RECORDINGS BASE [--json FILE]

The similarity of a recording is the cosine between its embedding and the mean embedding of the base's other recordings
of the same voice. Both folders must have the same sentences, so that their difference has its own standard error.

Resemblyzer 0.1.4 has its weights in the package; nothing else is downloaded. It is installed by hand into an
environment with training/requirements.txt, because it requires `webrtcvad`, which has no wheels:

    pip install librosa==0.11.0 webrtcvad-wheels==2.0.14.post1
    pip install --no-deps Resemblyzer==0.1.4
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from training.rates import Estimate, ratio
from training.recordings import Recording
from training.score import recordings_in, report

ENCODER_RATE = 16_000


class SpeakerEncoder:
    """Resemblyzer on the CPU."""

    def __init__(self) -> None:
        from resemblyzer import VoiceEncoder

        self._encoder = VoiceEncoder("cpu", verbose=False)

    def __call__(self, samples: np.ndarray, rate: int) -> np.ndarray:
        """The embedding of speech, of length 1."""
        import soxr
        from resemblyzer import preprocess_wav

        speech = soxr.resample(samples.astype(np.float32), rate, ENCODER_RATE)
        return np.asarray(self._encoder.embed_utterance(preprocess_wav(speech, source_sr=ENCODER_RATE)))


def similarities(found: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Cosines [N] of embeddings [N, D] with the mean of the base's embeddings of other sentences."""
    others = base.sum(0) - base
    return (found * others).sum(1) / np.linalg.norm(others, axis=1) / np.linalg.norm(found, axis=1)


def mean(values: np.ndarray) -> Estimate:
    """The mean and one standard error."""
    return ratio(values.tolist(), [1] * len(values))


def embeddings(encoder: SpeakerEncoder, recordings: list[Recording], rate: int) -> np.ndarray:
    return np.stack([encoder(one.samples, rate) for one in recordings])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("base", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    encoder = SpeakerEncoder()
    found, base = (
        {name: embeddings(encoder, *said) for name, said in recordings_in(folder).items()}
        for folder in (arguments.recordings, arguments.base)
    )
    figures: dict[str, Estimate] = {}
    differences = []
    for name in found:
        ours, theirs = similarities(found[name], base[name]), similarities(base[name], base[name])
        differences.append(ours - theirs)
        figures |= {name: mean(ours), f"{name} of base": mean(theirs), f"{name} less base": mean(ours - theirs)}
    figures["all less base"] = mean(np.concatenate(differences))
    for name, figure in figures.items():
        report(f"{name:32} {figure.value:.4f} ± {figure.error:.4f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({name: asdict(each) for name, each in figures.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
