# SPDX-License-Identifier: Apache-2.0
"""Captures the audio that a client receives: it must begin before the utterance ends, and equal a one-shot request."""

from types import TracebackType

import numpy as np

from audio.signals import decoded
from conformance.server_process import ServerProcess
from ipc.engine_processes import eventually
from polyvox.audio.resample import resample
from polyvox.audio.samples import Samples

# About nine seconds of speech, which no machine makes before its first tenth of a second has reached a client.
TEXT = (
    "The ferry left the harbour a little after six. Nobody said a word about the weather. "
    "Two gulls followed us as far as the lighthouse, and then they turned back."
)
SAMPLE_RATE = 24_000
MAX_LAG = 0.15  # seconds that an encoder and its decoder may add or lose at the beginning


class StreamCapture:
    """Captures one utterance between enter and exit. `seed` is the seed of the utterance, given or drawn.

    early: the client must deliver audio while the rest is being generated. finish_reason: how the utterance must end.
    """

    def __init__(self, server: ServerProcess, early: bool = True, finish_reason: str = "stop") -> None:
        self.server, self.chunks = server, list[bytes]()
        self._early_required, self._finish_reason = early, finish_reason
        self.seed = -1
        self._early = False
        self._finished_before = 0

    def __enter__(self) -> "StreamCapture":
        eventually(lambda: self.server.active_streams() == 0)
        self._finished_before = len(self.server.finished_requests())
        return self

    def add(self, data: bytes) -> None:
        """A chunk, at the moment the client delivers it. At the first one the utterance must still be running."""
        if data and not self.chunks:
            finished = len(self.server.finished_requests()) - self._finished_before
            self._early = self.server.active_streams() == 1 and finished == 0
        self.chunks.append(data)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            return
        eventually(lambda: len(self.server.finished_requests()) > self._finished_before)
        finished = self.server.finished_requests()[self._finished_before :]
        assert len(finished) == 1, f"{len(finished)} utterances instead of one"
        assert finished[0]["finish_reason"] == self._finish_reason
        self.seed = finished[0]["seed"]
        assert self.chunks, "no audio was received"
        assert self._early or not self._early_required, "the first audio arrived after the utterance was finished"

    @property
    def data(self) -> bytes:
        return b"".join(self.chunks)

    def check(
        self,
        text: str = TEXT,
        format: str = "pcm",
        lossy: bool | None = None,
        sample_rate: int = SAMPLE_RATE,
        dropped: float = 0.0,
        padding: float = 0.0,
        **fields: object,
    ) -> None:
        """Compare with a one-shot request of the same seed, sample by sample unless a lossy codec is involved.

        format: of the received audio; lossy: by default as the format says; dropped: seconds that the client loses at
        the beginning; padding: seconds of silence that it may add at the end.
        """
        expected = self.server.one_shot(text, self.seed, sample_rate=sample_rate, **fields)
        assert len(expected) > 5 * sample_rate
        expected = expected[round(dropped * sample_rate) :]
        received, rate = decoded(self.data, format, sample_rate)
        padded = received[len(expected) :]
        if len(padded) <= padding * rate and not padded.any():
            received = received[: len(expected)]
        if not (format not in ("flac", "wav", "pcm") if lossy is None else lossy):
            assert_same_samples(received, expected)
        else:
            assert_same_speech(resample(received, rate, sample_rate), expected, sample_rate)


def assert_same_samples(received: Samples, expected: Samples) -> None:
    """In float32 the size of a codec chunk may change a sample by its least significant bit."""
    assert len(received) == len(expected)
    assert np.abs(received - expected).max() * 32768 <= 1.01


def assert_same_speech(received: Samples, expected: Samples, rate: int) -> None:
    """The same speech after a lossy codec: equal length, and correlated at the best lag."""
    assert abs(len(received) - len(expected)) <= MAX_LAG * rate, (
        f"{len(received) / rate} s instead of {len(expected) / rate} s"
    )
    size = 1 << (len(received) + len(expected)).bit_length()
    products = np.fft.irfft(np.fft.rfft(received, size) * np.conj(np.fft.rfft(expected, size)))
    max_lag = round(MAX_LAG * rate)
    lag = max(range(-max_lag, max_lag), key=lambda lag: float(products[lag]))
    correlation = products[lag] / (np.linalg.norm(received) * np.linalg.norm(expected))
    assert correlation > 0.95, f"correlation {correlation:.3f} at {lag / rate:.3f} s"
