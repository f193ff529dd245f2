"""What a client hears of one utterance: it must begin early, and in the end be what one request gives."""

from types import TracebackType

import numpy as np

from audio.signals import decoded
from conformance.serve import Served
from ipc.engine_processes import eventually
from polyvox.audio.clip import Samples
from polyvox.audio.resample import resample

# About nine seconds of speech, which no machine makes before its first tenth of a second has reached a client.
TEXT = (
    "The ferry left the harbour a little after six. Nobody said a word about the weather. "
    "Two gulls followed us as far as the lighthouse, and then they turned back."
)
RATE = 24_000
LAG = 0.15  # seconds that an encoder and its decoder may put in front, or lose there


class Hearing:
    """Between its begin and end one client hears one utterance; `seed` is the one that the server drew or was given.

    early: the client hands over what it has while the rest is made. end: how the utterance is to end.
    """

    def __init__(self, server: Served, early: bool = True, end: str = "stop") -> None:
        self.server, self.parts = server, list[bytes]()
        self._needed, self._end = early, end
        self.seed = -1
        self._early = False
        self._before = 0

    def __enter__(self) -> "Hearing":
        eventually(lambda: self.server.under_way() == 0)
        self._before = len(self.server.said())
        return self

    def hear(self, data: bytes) -> None:
        """A piece of sound, when the client hands it over. At the first the utterance must be under way."""
        if data and not self.parts:
            self._early = self.server.under_way() == 1 and len(self.server.said()) == self._before
        self.parts.append(data)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            return
        eventually(lambda: len(self.server.said()) > self._before)
        told = self.server.said()[self._before :]
        assert len(told) == 1, f"{len(told)} utterances instead of one"
        assert told[0]["finish_reason"] == self._end
        self.seed = told[0]["seed"]
        assert self.parts, "nothing was heard"
        assert self._early or not self._needed, "the first sound came when the utterance was finished"

    @property
    def sound(self) -> bytes:
        return b"".join(self.parts)

    def check(
        self,
        text: str = TEXT,
        format: str = "pcm",
        lossy: bool | None = None,
        sample_rate: int = RATE,
        dropped: float = 0.0,
        padding: float = 0.0,
        **fields: object,
    ) -> None:
        """Is what one request with the same seed gives, sample by sample unless a lossy codec was on the way.

        format: what was heard; lossy: by default as the format says; dropped: seconds that the client loses at the
        beginning; padding: seconds of silence that it may put at the end.
        """
        wanted = self.server.one_shot(text, self.seed, sample_rate=sample_rate, **fields)
        assert len(wanted) > 5 * sample_rate
        wanted = wanted[round(dropped * sample_rate) :]
        heard, rate = decoded(self.sound, format, sample_rate)
        padded = heard[len(wanted) :]
        if len(padded) <= padding * rate and not padded.any():
            heard = heard[: len(wanted)]
        if not (format not in ("flac", "wav", "pcm") if lossy is None else lossy):
            same_samples(heard, wanted)
        else:
            same_sound(resample(heard, rate, sample_rate), wanted, sample_rate)


def same_samples(heard: Samples, wanted: Samples) -> None:
    """In float32 the size of a codec chunk may move a sample by the last of its 16 bits."""
    assert len(heard) == len(wanted)
    assert np.abs(heard - wanted).max() * 32768 <= 1.01


def same_sound(heard: Samples, wanted: Samples, rate: int) -> None:
    """The same speech after a lossy codec: as long, and alike at the lag that fits best."""
    assert abs(len(heard) - len(wanted)) <= LAG * rate, f"{len(heard) / rate} s instead of {len(wanted) / rate} s"
    size = 1 << (len(heard) + len(wanted)).bit_length()
    alike = np.fft.irfft(np.fft.rfft(heard, size) * np.conj(np.fft.rfft(wanted, size)))
    near = round(LAG * rate)
    at = max(range(-near, near), key=lambda lag: float(alike[lag]))
    correlation = alike[at] / (np.linalg.norm(heard) * np.linalg.norm(wanted))
    assert correlation > 0.95, f"alike by {correlation:.3f} at {at / rate:.3f} s"
