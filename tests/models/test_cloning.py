# SPDX-License-Identifier: Apache-2.0
"""Recordings are cloned once, in the calling thread; invalid ones are rejected with a reason."""

import threading
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Loaded, LoadedTTS
from polyvox.audio.samples import Samples
from polyvox.errors import InvalidRequest
from polyvox.models.content_cache import ContentCache
from polyvox.models.qwen3_tts.cloning import MAX_CACHED_RECORDINGS, PAUSE_SECONDS, Cloner
from reference.signals import signal

pytestmark = pytest.mark.slow

RATE = 24_000
WINDOW = 480  # samples of the 20 ms in which silence is measured


@pytest.fixture
def tts(loaded: Loaded) -> LoadedTTS:
    return loaded("base", "float32")


def test_two_recordings_give_two_voices_and_one_recording_the_same_voice(tts: LoadedTTS) -> None:
    first, again, other = (tts.clone(signal(kind, 36_000), "hello") for kind in ("noise", "noise", "chirp"))
    assert first.codes is not None
    assert first.codes is again.codes
    assert first.vector is again.vector
    assert other.codes is not None
    assert not np.array_equal(first.codes, other.codes)
    assert not np.allclose(first.vector, other.vector, atol=1e-2)


def test_results_are_cached_by_recording_and_not_by_transcript(tts: LoadedTTS) -> None:
    samples = signal("tones", 30_000)
    said, otherwise, alone = tts.clone(samples, "hello"), tts.clone(samples.copy(), "there"), tts.clone(samples)
    assert (said.transcript, otherwise.transcript, alone.transcript) == ("hello", "there", None)
    assert said.codes is otherwise.codes
    assert alone.codes is None
    assert said.vector is alone.vector


def test_cached_results_are_read_only_and_equal_computed_ones(tts: LoadedTTS) -> None:
    samples = signal("vowels", 36_000)
    voice = tts.clone(samples, "hello")
    assert voice.codes is not None
    for array in (voice.vector, voice.codes):
        assert not array.flags.writeable
    fresh = Cloner(tts.model.cloner.encoders, RATE).clone(samples, "hello")
    assert fresh.codes is not None
    np.testing.assert_array_equal(fresh.codes, voice.codes)
    np.testing.assert_array_equal(fresh.vector, voice.vector)


def test_only_the_most_recent_recordings_are_cached() -> None:
    kept: ContentCache[int] = ContentCache(3)
    made = []

    def get(value: int) -> int:
        return kept.get(np.array([value]), lambda: made.append(value) or value)  # type: ignore[func-returns-value]

    assert [get(value) for value in (1, 2, 3, 1, 4, 1, 2)] == [1, 2, 3, 1, 4, 1, 2]
    assert made == [1, 2, 3, 4, 2]
    assert len(kept) == 3
    assert MAX_CACHED_RECORDINGS < 1000


def test_many_threads_get_one_voice() -> None:
    kept: ContentCache[list[int]] = ContentCache(2)
    gate = threading.Barrier(4)
    got: list[list[int]] = []

    def ask() -> None:
        got.append(kept.get(np.zeros(3), lambda: [gate.wait()]))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(value is got[0] for value in got)


def test_silence_is_trimmed_and_a_pause_is_added(tts: LoadedTTS) -> None:
    samples, quiet = signal("noise", 36_000), np.zeros(50 * WINDOW, np.float32)
    bare, padded = (tts.clone(part, "hello") for part in (samples, np.concatenate([quiet, samples, quiet])))
    assert bare.codes is not None
    assert padded.codes is not None
    pause = PAUSE_SECONDS * RATE / 48
    assert len(bare.codes) == 36_000 / 48 + pause
    # A window of silence stays at either end.
    assert len(padded.codes) == len(bare.codes) + 2 * WINDOW / 48
    asis = tts.model.cloner.codes(samples)
    np.testing.assert_array_equal(bare.codes[: len(asis)], asis)


def test_a_quiet_recording_is_not_silence(tts: LoadedTTS) -> None:
    quiet = 0.004 * signal("noise", 36_000)
    assert np.isfinite(tts.clone(quiet).vector).all()


def test_the_encoders_run_in_the_calling_thread(tts: LoadedTTS, monkeypatch: pytest.MonkeyPatch) -> None:
    encoders, threads = tts.model.cloner.encoders, set()
    for part in (encoders.codec, encoders.speaker):
        inner = part.forward

        def record(samples: Any, inner: Any = inner) -> Any:
            threads.add(threading.get_ident())
            return inner(samples)

        monkeypatch.setattr(part, "forward", record)
    voice = tts.clone(signal("chirp", 31_415), "hello")
    assert threads == {threading.get_ident()}
    threads.clear()
    assert len(tts.say("hello there", voice, seed=1, max_frames=9).samples) % 48 == 0
    assert not threads


def test_two_voices_speak_differently_and_one_speaks_the_same_again(tts: LoadedTTS) -> None:
    def speech(kind: str, transcript: str | None) -> Samples:
        voice = tts.clone(signal(kind, 36_000), transcript)
        return tts.say("hello there", voice, seed=1, max_frames=9).samples

    for transcript in (None, "hello"):
        first, again, other = (speech(kind, transcript) for kind in ("noise", "noise", "chirp"))
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)
    assert not np.array_equal(speech("noise", None), speech("noise", "hello"))


def write_wav(path: Path, samples: Samples, rate: int) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32768).astype("<i2").tobytes())
    return path


def test_a_file_is_read_at_the_models_rate(tts: LoadedTTS, tmp_path: Path) -> None:
    samples = signal("chirp", 36_000)
    same = tts.clone(str(write_wav(tmp_path / "same.wav", samples, RATE)), "hello")
    fast = tts.clone(write_wav(tmp_path / "fast.wav", np.repeat(samples, 2), 2 * RATE), "hello")
    assert same.codes is not None
    assert fast.codes is not None
    assert same.codes is tts.clone(samples, "hello").codes
    assert fast.codes.shape == same.codes.shape


def test_an_invalid_recording_is_rejected(tts: LoadedTTS, tmp_path: Path) -> None:
    (tmp_path / "me.wav").write_text("not a recording")
    for path in (tmp_path / "me.wav", tmp_path / "nowhere.wav", tmp_path):
        with pytest.raises(InvalidRequest, match="audio"):
            tts.clone(path)


def test_a_long_recording_is_cut_with_a_notice_and_without_its_transcript(
    tts: LoadedTTS, caplog: pytest.LogCaptureFixture
) -> None:
    voice = tts.clone(signal("noise", 31 * RATE), "hello")
    assert voice.codes is None
    assert "its best 30.0 s are used" in caplog.text


def silence_then(count: int) -> Samples:
    return np.concatenate([np.zeros(10 * RATE, np.float32), signal("noise", count)])


def spoiled(value: float) -> Samples:
    samples = signal("noise", 36_000)
    samples[5_000] = value
    return samples


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (signal("noise", 20_000), ("0.83 s", "between 1 and 30 s", "longer recording")),
        (silence_then(12_000), ("0.5", "between 1 and 30 s")),
        (np.zeros(3600 * RATE, np.float32), ("silence", "must have speech")),
        (np.full(5 * RATE, 1e-5, np.float32), ("silence",)),
        (np.zeros(0, np.float32), ("silence",)),
        (spoiled(np.nan), ("NaN or infinite",)),
        (spoiled(-np.inf), ("NaN or infinite",)),
        (32_767 * signal("noise", 36_000), ("between -1 and 1",)),
        (np.zeros((2, 36_000), np.float32), ("[2, 36000]", "mono")),
        (np.zeros(36_000, np.int16), ("int16", "float")),
    ],
)
@pytest.mark.parametrize("transcript", [None, "hello"])
def test_a_recording_that_cannot_be_cloned_is_rejected(
    samples: Samples, expected: tuple[str, ...], transcript: str | None, tts: LoadedTTS
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tts.clone(samples, transcript)
    assert caught.value.field == "recording"
    for part in expected:
        assert part in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("transcript", ["", " \n", 5, "a\udfff", "long " * 10_000])
def test_an_invalid_transcript_is_rejected(transcript: Any, tts: LoadedTTS) -> None:
    with pytest.raises(InvalidRequest, match="transcript"):
        tts.clone(signal("noise", 36_000), transcript)


@pytest.mark.parametrize("kind", ["custom_voice", "voice_design"])
def test_a_model_that_cannot_clone_names_one_that_can(kind: str, loaded: Loaded) -> None:
    """Before the file is opened."""
    with pytest.raises(
        InvalidRequest, match=rf"'recording': is not supported by {kind}. Use Qwen/Qwen3-TTS-12Hz-1.7B-Base"
    ):
        loaded(kind, "float32").clone("nowhere.wav")
