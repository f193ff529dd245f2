# SPDX-License-Identifier: Apache-2.0
"""Voice activity detection, with speech of the embedded voice and with scripted probabilities."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyvox.audio import voice_activity
from polyvox.audio.pcm import Pcm, from_pcm, to_pcm
from polyvox.audio.resample import resample
from polyvox.audio.voice_activity import (
    WINDOW,
    WINDOW_MS,
    SpeechEvent,
    SpeechStarted,
    SpeechStopped,
    VoiceActivityConfig,
    VoiceActivityDetector,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "embedded-heart-whole.npz"
RATE = 24_000
BEFORE_MS, AFTER_MS = 500, 1000


@pytest.fixture(scope="module")
def recording() -> tuple[Pcm, int, int]:
    """Speech between two silences with faint noise; where its sound starts and ends, in ms."""
    speech = np.load(GOLDEN)["float32.audio0"]
    rng = np.random.default_rng(0)
    parts = [np.zeros(RATE * BEFORE_MS // 1000), speech, np.zeros(RATE * AFTER_MS // 1000)]
    samples = np.concatenate(parts).astype(np.float32)
    loud = np.flatnonzero(np.abs(samples) > 0.02) * 1000 // RATE
    return to_pcm(samples + rng.normal(0, 0.001, len(samples)).astype(np.float32)), int(loud[0]), int(loud[-1])


def events_of(pcm: Pcm, rate: int, sizes: Sequence[int]) -> list[SpeechEvent]:
    detector = VoiceActivityDetector(rate)
    events: list[SpeechEvent] = []
    position = turn = 0
    while position < len(pcm):
        size = sizes[turn % len(sizes)]
        events += detector.push(pcm[position : position + size])
        position, turn = position + size, turn + 1
    return events


@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 48_000])
def test_speech_is_found_at_every_rate(recording: tuple[Pcm, int, int], rate: int) -> None:
    pcm, start, end = recording
    resampled = to_pcm(resample(from_pcm(pcm), RATE, rate))
    started, stopped = events_of(resampled, rate, [rate // 50])
    assert isinstance(started, SpeechStarted)
    assert isinstance(stopped, SpeechStopped)
    assert start - 300 - 100 <= started.start_ms <= start  # with the prefix padding
    assert end + 500 - 200 <= stopped.end_ms <= end + 500 + 200  # with the silence


@pytest.mark.parametrize("sizes", [[1], [7, 480, 1, 5000], [10**6]])
def test_events_do_not_depend_on_the_chunk_sizes(recording: tuple[Pcm, int, int], sizes: list[int]) -> None:
    pcm = recording[0][:RATE] if sizes == [1] else recording[0]
    assert events_of(pcm, RATE, sizes) == events_of(pcm, RATE, [480])


def test_noise_and_silence_are_not_speech() -> None:
    rng = np.random.default_rng(0)
    clicks = np.zeros(16_000 * 3)
    clicks[::4000] = 0.9
    for samples in (np.zeros(16_000), rng.normal(0, 0.1, 16_000 * 3), clicks):
        assert events_of(to_pcm(samples.astype(np.float32)), 16_000, [320]) == []


def test_speech_is_found_in_noise(recording: tuple[Pcm, int, int]) -> None:
    pcm, start, end = recording
    speech = from_pcm(pcm)
    level = float(np.sqrt(np.mean(speech[start * 24 : end * 24] ** 2)))
    noisy = speech + np.random.default_rng(1).normal(0, level / 1.8, len(speech)).astype(np.float32)  # 5 dB
    assert [type(event) for event in events_of(to_pcm(noisy), RATE, [480])] == [SpeechStarted, SpeechStopped]


def test_long_audio_is_processed_in_a_thread_with_the_same_events(recording: tuple[Pcm, int, int]) -> None:
    pcm = recording[0]

    async def detect() -> list[SpeechEvent]:
        return await VoiceActivityDetector(RATE).detect(pcm)

    assert asyncio.run(detect()) == events_of(pcm, RATE, [480])


class ScriptedNetwork:
    def __init__(self, probabilities: Sequence[float]) -> None:
        self._left = list(probabilities)

    def process_samples(self, samples: list[float]) -> float:
        assert len(samples) == WINDOW
        return self._left.pop(0)

    def reset(self) -> None:
        pass


def scripted(
    monkeypatch: pytest.MonkeyPatch, probabilities: Sequence[float], start_ms: int = 0, **config: float
) -> VoiceActivityDetector:
    monkeypatch.setattr(voice_activity, "_create_network", lambda: ScriptedNetwork(probabilities))
    return VoiceActivityDetector(16_000, VoiceActivityConfig(**config), start_ms)  # type: ignore[arg-type]


def push_windows(detector: VoiceActivityDetector, num_windows: int) -> list[SpeechEvent]:
    return detector.push(np.zeros(num_windows * WINDOW, np.int16))


def test_times_include_the_padding_and_the_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = scripted(monkeypatch, [0] * 20 + [0.9] * 5 + [0.1] * 20)
    started, stopped = push_windows(detector, 45)
    assert started == SpeechStarted(20 * WINDOW_MS - 300)
    assert stopped == SpeechStopped(25 * WINDOW_MS + 500)


def test_padding_does_not_reach_into_earlier_speech_or_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities = [0.9] * 3 + [0.0] * 4 + [0.9] * 3 + [0.0] * 4
    detector = scripted(monkeypatch, probabilities, 5000, prefix_padding_ms=10_000, silence_duration_ms=100)
    first, end, second, _ = push_windows(detector, 14)
    assert first == SpeechStarted(5000)
    assert end == SpeechStopped(5000 + 3 * WINDOW_MS + 100)
    assert second == SpeechStarted(5000 + 3 * WINDOW_MS + 100)


def test_one_loud_window_is_not_speech(monkeypatch: pytest.MonkeyPatch) -> None:
    assert push_windows(scripted(monkeypatch, [0, 0.9, 0, 0.9, 0, 0]), 6) == []


def test_a_probability_just_below_the_threshold_continues_speech_but_does_not_start_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert push_windows(scripted(monkeypatch, [0.4] * 20), 20) == []
    detector = scripted(monkeypatch, [0.6] * 2 + [0.4] * 40)
    assert push_windows(detector, 42) == [SpeechStarted(0)]
    assert detector.is_speech


def test_a_reset_forgets_speech_and_keeps_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = scripted(monkeypatch, [0.9] * 4)
    assert push_windows(detector, 2) == [SpeechStarted(0)]
    detector.reset()
    assert not detector.is_speech
    assert detector.time_ms == 2 * WINDOW_MS
    assert push_windows(detector, 2) == [SpeechStarted(2 * WINDOW_MS)]


def test_a_new_configuration_applies_to_the_next_window(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = scripted(monkeypatch, [0.6] * 6, threshold=0.9)
    assert push_windows(detector, 3) == []
    detector.config = VoiceActivityConfig(threshold=0.5, prefix_padding_ms=0)
    assert push_windows(detector, 3) == [SpeechStarted(3 * WINDOW_MS)]


@given(
    st.lists(st.floats(0, 1), max_size=60),
    st.floats(0, 1),
    st.integers(0, 1000),
    st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_speech_starts_and_stops_in_turn_and_in_order(
    probabilities: list[float], threshold: float, padding: int, silence: int
) -> None:
    config = VoiceActivityConfig(threshold, padding, silence)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(voice_activity, "_create_network", lambda: ScriptedNetwork(probabilities))
        detector = VoiceActivityDetector(16_000, config)
    events = push_windows(detector, len(probabilities))
    kinds = [type(event) for event in events]
    assert kinds == ([SpeechStarted, SpeechStopped] * len(events))[: len(events)]
    times = [event.start_ms if isinstance(event, SpeechStarted) else event.end_ms for event in events]
    assert times == sorted(times)
    assert all(0 <= time <= detector.time_ms for time in times)


def test_the_detector_uses_one_thread_and_leaves_the_environment_as_it_was() -> None:
    program = (
        "import os, sys\n"
        "import numpy as np\n"
        "from polyvox.audio.voice_activity import VoiceActivityDetector\n"
        "num_threads = lambda: len(os.listdir('/proc/self/task')) if sys.platform == 'linux' else 1\n"
        "before = num_threads()\n"
        "VoiceActivityDetector(16000).push(np.zeros(16000, np.int16))\n"
        "assert num_threads() == before, num_threads()\n"
        "assert 'OMP_THREAD_LIMIT' not in os.environ\n"
        "assert 'torch' not in sys.modules\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_THREAD_LIMIT"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=60)
