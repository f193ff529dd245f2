# SPDX-License-Identifier: Apache-2.0
"""Measure the sound quality of recordings: predicted MOS by DistillMOS and the level of the teacher's tones.

    python -m training.quality RECORDINGS…

DistillMOS (package `distillmos`, with its weights) predicts a mean opinion score from 1 to 5 at 16 kHz, without a
reference. Tone levels are relative to the level of the recording.
"""

import argparse
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from training.score import recordings_in, report
from training.units import TONES

MOS_RATE = 16_000
WINDOW = 4096  # samples of one spectrum
PEAK_BINS, NEAR_BINS, FAR_BINS = 3, 8, 30  # half width of a tone; nearest and farthest bins of the noise floor
MIN_POWER = 1e-14


class MosPredictor:
    """DistillMOS on the CPU."""

    def __init__(self) -> None:
        # DistillMOS uses torchaudio in its command only, and torchaudio does not load beside a torch for CPUs.
        stub = ModuleType("torchaudio")
        known = sys.modules.setdefault("torchaudio", stub)
        try:
            from distillmos import ConvTransformerSQAModel  # type: ignore[import-not-found]
        finally:
            if known is stub:
                del sys.modules["torchaudio"]

        self._model = ConvTransformerSQAModel().eval()

    @torch.no_grad()
    def __call__(self, samples: np.ndarray, rate: int) -> float:
        import soxr

        audio = soxr.resample(samples.astype(np.float32), rate, MOS_RATE)
        return float(self._model(torch.from_numpy(audio)[None]))


def load_mos_predictor() -> MosPredictor | None:
    """The predictor, or None and a line with the reason where DistillMOS cannot be loaded."""
    try:
        return MosPredictor()
    except (ImportError, OSError) as error:  # OSError: a shared library is missing
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        report(f"MOS is not measured: DistillMOS cannot be loaded ({reason})")
        return None


def tone_level(samples: np.ndarray, rate: int, frequency: float) -> float:
    """Level of a steady tone in dB relative to the recording, above the noise floor beside it; NaN if too short."""
    window = np.hanning(WINDOW)
    starts = range(0, len(samples) - WINDOW, WINDOW // 2)
    if not starts:
        return float("nan")
    spectra = [np.abs(np.fft.rfft(samples[start : start + WINDOW] * window)) ** 2 for start in starts]
    # A bin of `power` is the power of a sine; the main lobe of a Hann window sums to 1.5 times that.
    power = np.mean(spectra, 0) / window.sum() ** 2 * 2 / 1.5
    peak = round(frequency * WINDOW / rate)
    beside = np.concatenate([power[peak - FAR_BINS : peak - NEAR_BINS], power[peak + NEAR_BINS : peak + FAR_BINS]])
    bins = power[peak - PEAK_BINS : peak + PEAK_BINS + 1]
    tone = bins.sum() - len(bins) * np.median(beside)
    return float(10 * np.log10(max(tone, MIN_POWER) / np.mean(samples**2)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="folders by training.recordings")
    args = parser.parse_args()
    predict = load_mos_predictor()
    for folder in args.folders:
        for name, (recordings, rate) in recordings_in(folder).items():
            levels = [np.nanmedian([tone_level(one.samples, rate, tone) for one in recordings]) for tone in TONES]
            tones = " ".join(f"tone_{tone}={level:.1f}dB" for tone, level in zip(TONES, levels, strict=True))
            mos = ""
            if predict:
                scores = [predict(one.samples, rate) for one in recordings]
                mos = f" mos={np.mean(scores):.2f}±{np.std(scores) / len(scores) ** 0.5:.2f}"
            report(f"{folder.name}/{name} n={len(recordings)}{mos} {tones}")


if __name__ == "__main__":
    main()
