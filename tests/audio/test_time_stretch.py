# SPDX-License-Identifier: Apache-2.0
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audio.signals import chunks, speech, vowel
from polyvox import InvalidRequest
from polyvox.audio.samples import Samples
from polyvox.audio.time_stretch import TimeStretcher

RATE = 24_000
SPEEDS = (0.25, 0.5, 0.75, 0.9, 1.1, 1.5, 2.0, 3.0, 4.0)


def stretched(samples: Samples, speed: float, rate: int = RATE, sizes: list[int] | None = None) -> Samples:
    stretcher = TimeStretcher(speed, rate)
    parts = [stretcher.push(part) for part in (chunks(samples, sizes) if sizes else [samples])]
    return np.concatenate([*parts, stretcher.finish()])


def pitch(samples: Samples, rate: int = RATE, low: float = 70, high: float = 400) -> float:
    """The fundamental frequency by autocorrelation, with sub-sample precision."""
    spectrum = np.abs(np.fft.rfft(samples.astype(np.float64), 2 * len(samples))) ** 2
    repeats = np.fft.irfft(spectrum)
    first, last = int(rate / high), int(rate / low)
    lag = first + int(np.argmax(repeats[first : last + 1]))
    before, here, after = repeats[lag - 1 : lag + 2]
    return float(rate / (lag + 0.5 * (before - after) / (before - 2 * here + after)))


@settings(deadline=None, max_examples=80)
@given(
    speed=st.floats(0.25, 4.0),
    length=st.integers(0, 12_000),
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=5).filter(any),
    rate=st.sampled_from([8000, 24_000]),
)
def test_chunk_sizes_do_not_change_the_output(speed: float, length: int, sizes: list[int], rate: int) -> None:
    sound = speech(1.5, rate)[:length]
    once = stretched(sound, speed, rate)
    assert np.array_equal(stretched(sound, speed, rate, sizes), once)
    assert len(once) == (len(sound) if speed == 1 else round(len(sound) / speed))


def test_speed_1_is_the_identity() -> None:
    sound = speech(0.3)
    assert np.array_equal(stretched(sound, 1.0), sound)
    assert np.array_equal(stretched(sound, 1, sizes=[7, 333]), sound)


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("f0", [90.0, 120.0, 220.0])
def test_pitch_is_preserved(speed: float, f0: float) -> None:
    tone = (0.5 * np.sin(2 * np.pi * f0 * np.arange(2 * RATE) / RATE)).astype(np.float32)
    for sound in (tone, vowel(2.0, RATE, f0)):
        assert pitch(stretched(sound, speed)) == pytest.approx(f0, rel=0.01)


@pytest.mark.parametrize("speed", SPEEDS)
def test_there_are_no_clicks(speed: float) -> None:
    for sound in (speech(2.0), vowel(2.0, RATE, 95.0)):
        out = stretched(sound, speed)
        assert np.abs(np.diff(out)).max() <= 1.1 * np.abs(np.diff(sound)).max()
        assert np.abs(np.diff(out, 2)).max() <= 1.2 * np.abs(np.diff(sound, 2)).max()
        assert np.abs(out).max() <= 1.05 * np.abs(sound).max()


@pytest.mark.parametrize("speed", SPEEDS)
def test_the_envelope_of_speech_is_preserved(speed: float) -> None:
    sound = speech(3.0)
    window = round(0.02 * RATE)

    def envelope(samples: Samples, points: int) -> Samples:
        middle = (np.linspace(0.03, 0.97, points) * len(samples)).astype(int)
        return np.array([np.sqrt(np.mean(samples[at - window // 2 : at + window // 2] ** 2)) for at in middle])

    before, after = envelope(sound, 400), envelope(stretched(sound, speed), 400)
    assert np.corrcoef(before, after)[0, 1] > (0.9 if speed <= 2 else 0.75)
    assert np.sqrt(np.mean(after**2)) == pytest.approx(np.sqrt(np.mean(before**2)), rel=0.08)


@pytest.mark.parametrize("speed", SPEEDS)
def test_silence_stays_silent_and_noise_stays_noise(speed: float) -> None:
    assert not stretched(np.zeros(RATE, np.float32), speed).any()
    noise = np.random.default_rng(1).normal(0, 0.1, RATE).astype(np.float32)
    assert 0.06 < np.std(stretched(noise, speed)) < 0.11  # cross-fades of uncorrelated noise lose up to 3 dB


def test_the_delay_is_bounded() -> None:
    for speed in SPEEDS:
        stretcher = TimeStretcher(speed, RATE)
        num_out = 0
        for turn in range(1, 51):
            num_out += len(stretcher.push(np.zeros(1920, np.float32)))
            assert 0.08 * turn - num_out * speed / RATE <= 0.06 + 0.02 * speed


def test_it_runs_at_fifty_times_real_time() -> None:
    sound = speech(4.0)
    began = time.process_time()
    out = stretched(sound, 1.25, sizes=[1920])
    assert len(out) / RATE / (time.process_time() - began) > 50


@pytest.mark.parametrize("speed", [0.0, 0.2, 4.1, -1.0, float("nan")])
def test_speeds_out_of_range_are_rejected(speed: float) -> None:
    with pytest.raises(InvalidRequest, match=r"between 0\.25 and 4"):
        TimeStretcher(speed, RATE)
