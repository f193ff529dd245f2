# SPDX-License-Identifier: Apache-2.0
"""Playback on this machine while audio is generated."""

import shutil
import subprocess
from contextlib import suppress
from typing import Any, Self

from polyvox.audio.pcm import pcm_bytes, to_pcm
from polyvox.audio.samples import Samples
from polyvox.audio.wav import wav_header
from polyvox.errors import PolyvoxError

# In order of preference. Each reads stdin; programs without a rate option get a WAV header.
PLAYERS = {
    "paplay": ["--raw", "--rate={rate}", "--channels=1", "--format=s16le"],
    "aplay": ["-q", "-t", "raw", "-f", "S16_LE", "-c", "1", "-r", "{rate}", "-"],
    "pw-play": ["--raw", "--rate={rate}", "--channels=1", "--format=s16", "-"],
    "ffplay": ["-nodisp", "-autoexit", "-loglevel", "error", "-i", "-"],
    "mpv": ["--no-video", "--really-quiet", "-"],
    "play": ["-q", "-t", "wav", "-"],
}


class PlayerError(PolyvoxError):
    """No player was found, or the player exited early."""

    code = "no_player"


class Player:
    """Plays samples as they are pushed, with `sounddevice` if it is installed and otherwise with a program."""

    def __init__(self, sample_rate: int) -> None:
        self._device: Any = _open_device(sample_rate)
        self._process: subprocess.Popen[bytes] | None = None
        if self._device is not None:
            return
        name = next((name for name in PLAYERS if shutil.which(name)), None)
        if name is None:
            raise PlayerError(
                f"No audio player found. Run: pip install sounddevice, or install one of {', '.join(PLAYERS)}."
            )
        self._name = name
        command = [name, *(part.format(rate=sample_rate) for part in PLAYERS[name])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        if "{rate}" not in " ".join(PLAYERS[name]):
            self._write(wav_header(sample_rate, None))

    def push(self, samples: Samples) -> None:
        """Blocks until the player has buffered the samples."""
        self._write(pcm_bytes(to_pcm(samples)))

    def finish(self) -> None:
        """Wait until everything was played."""
        if self._device is not None:
            self._device.stop()
            self._device.close()
        elif self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):  # the exit status is checked below
                self._process.stdin.close()
            if self._process.wait():
                raise PlayerError(f"{self._name} exited with status {self._process.returncode} during playback.")

    def close(self) -> None:
        """Stop playback at once."""
        if self._device is not None:
            self._device.abort()
            self._device.close()
        elif self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.close()

    def _write(self, data: bytes) -> None:
        if self._device is not None:
            self._device.write(data)
        elif self._process is not None and self._process.stdin is not None:
            try:
                self._process.stdin.write(data)
                self._process.stdin.flush()
            except BrokenPipeError:
                self.finish()
                raise PlayerError(f"{self._name} exited during playback.") from None


def _open_device(sample_rate: int) -> Any:
    """An open `sounddevice` output; None if the package or an output device is missing."""
    try:
        import sounddevice
    except (ImportError, OSError):  # OSError: PortAudio is missing
        return None
    try:
        device = sounddevice.RawOutputStream(sample_rate, channels=1, dtype="int16")
        device.start()
    except sounddevice.PortAudioError:
        return None
    return device
