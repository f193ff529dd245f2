# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audio.signals import chunks, speech
from polyvox import InvalidRequest
from polyvox.audio.resample import Resampler, resample
from polyvox.audio.samples import Samples

RATES = (8000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
ROUNDING = 1e-6


def streamed(samples: Samples, in_rate: int, out_rate: int, sizes: list[int]) -> Samples:
    resampler = Resampler(in_rate, out_rate)
    parts = [resampler.push(part) for part in chunks(samples, sizes)]
    return np.concatenate([*parts, resampler.finish()])


@settings(deadline=None, max_examples=60)
@given(
    in_rate=st.sampled_from(RATES),
    out_rate=st.sampled_from(RATES),
    length=st.integers(0, 6000),
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=5).filter(any),
)
def test_chunk_sizes_do_not_change_the_output(in_rate: int, out_rate: int, length: int, sizes: list[int]) -> None:
    sound = np.random.default_rng(length).uniform(-1, 1, length).astype(np.float32)
    out = streamed(sound, in_rate, out_rate, sizes)
    assert len(out) == int(length * out_rate / in_rate + 0.5)
    if in_rate != out_rate:
        assert np.abs(out - resample(sound, in_rate, out_rate)).max(initial=0) < ROUNDING


@pytest.mark.parametrize("out_rate", RATES)
def test_a_tone_keeps_its_pitch_phase_and_level(out_rate: int) -> None:
    time = np.arange(24_000) / 24_000
    out = resample(np.sin(2 * np.pi * 440 * time).astype(np.float32), 24_000, out_rate)
    wanted = np.sin(2 * np.pi * 440 * np.arange(len(out)) / out_rate)
    inner = slice(out_rate // 10, -out_rate // 10)
    assert np.abs(out[inner] - wanted[inner]).max() < 1e-4


def test_up_and_down_is_nearly_the_identity() -> None:
    sound = speech(1.0)
    back = resample(resample(sound, 24_000, 48_000), 48_000, 24_000)
    assert len(back) == len(sound)
    assert np.abs(back - sound).max() < 1e-3


@pytest.mark.parametrize(("rate", "max_delay"), [(8000, 0.08), (16_000, 0.04), (44_100, 0.04), (48_000, 0.04)])
def test_the_delay_is_bounded(rate: int, max_delay: float) -> None:
    resampler = Resampler(24_000, rate)
    num_out = 0
    for turn in range(1, 101):
        num_out += len(resampler.push(np.zeros(480, np.float32)))
        assert 0.02 * turn - num_out / rate <= max_delay


@pytest.mark.parametrize("rates", [(24_000, 0), (0, 24_000), (24_000, 10**9), (-5, 8000)])
def test_rates_out_of_range_are_rejected(rates: tuple[int, int]) -> None:
    with pytest.raises(InvalidRequest, match="between 4000 and 192000"):
        Resampler(*rates)
