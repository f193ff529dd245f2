# SPDX-License-Identifier: Apache-2.0
"""Acoustic features: columns of spectra are aligned with samples, and the decoder carries the source to them."""

import torch

from polyvox.models.qwen3_tts.codec import CodecDecoder
from polyvox.models.qwen3_tts.config import parse_config
from training.codec import latent
from training.fast_decoder import features
from training.features import COLUMN, COLUMNS, MELS, AcousticFeatures, LogMel
from training.layout import CODE_DIM, SAMPLING, initialise, voice_files
from training.oscillator import code_phasors, initialise_oscillator
from training.source import source_codes


def test_a_spectrum_is_centred_at_the_end_of_its_column() -> None:
    samples = torch.zeros(1, 20 * COLUMN)
    samples[0, 8 * COLUMN] = 1.0
    mel = LogMel()(samples)
    assert mel.shape == (1, MELS, 20)
    assert mel.mean(1).argmax() == 7


def test_a_louder_signal_has_higher_values_in_its_band_only() -> None:
    time = torch.arange(20 * COLUMN) / 24_000
    low, high = (torch.sin(2 * torch.pi * frequency * time)[None] for frequency in (300, 5000))
    before, after = (LogMel()(0.1 * low + level * high)[0, :, 10] for level in (0.01, 0.1))
    changed = (after - before).abs() > 0.1
    assert (after > before)[changed].all()
    assert changed[3 * MELS // 4 :].any()
    assert not changed[: MELS // 4].any()


def test_the_initial_decoder_has_the_source_in_its_features() -> None:
    torch.manual_seed(0)
    decoder = CodecDecoder(parse_config(voice_files(SAMPLING)).codec)
    initialise(decoder)
    initialise_oscillator(decoder)
    codes, phasors = source_codes(torch.tensor([50, 53, 47]), 0)[None], code_phasors()
    first, rest = 0.3 * torch.randn(1, 3, CODE_DIM), 0.3 * torch.randn(1, 3, CODE_DIM)
    rest[..., : phasors.shape[1]] = phasors[codes]
    acoustic = AcousticFeatures()
    wanted = acoustic(torch.zeros(1, MELS, 3 * COLUMNS), codes)
    made = features(decoder, latent(decoder, first, rest))
    width = acoustic.num_source - 2  # without pitch and voice
    a, b = made[0, :width].flatten(), wanted[0, :width].flatten()
    assert a @ b / (a.norm() * b.norm()) > 0.995


def test_the_loss_is_zero_for_equal_features_whatever_the_free_channels_are() -> None:
    acoustic = AcousticFeatures()
    wanted = acoustic(torch.randn(2, MELS, COLUMNS), torch.tensor([[3], [400]]))
    made = torch.cat([wanted, torch.randn(2, 5, COLUMNS)], 1)
    assert acoustic.loss(made, wanted) == 0
    assert acoustic.loss(made + 0.1, wanted) > 0
