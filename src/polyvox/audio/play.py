"""Sound out of this machine, while it is made."""

import shutil
import subprocess
from contextlib import suppress
from typing import Any, Self

from polyvox.audio.clip import Samples
from polyvox.audio.pcm import to_pcm
from polyvox.audio.uncompressed import pcm_bytes, wav_header
from polyvox.errors import PolyvoxError

# In the order of trust; each reads stdin. Those that are not told the rate get a WAV header.
PLAYERS = {
    "paplay": ["--raw", "--rate={rate}", "--channels=1", "--format=s16le"],
    "aplay": ["-q", "-t", "raw", "-f", "S16_LE", "-c", "1", "-r", "{rate}", "-"],
    "pw-play": ["--raw", "--rate={rate}", "--channels=1", "--format=s16", "-"],
    "ffplay": ["-nodisp", "-autoexit", "-loglevel", "error", "-i", "-"],
    "mpv": ["--no-video", "--really-quiet", "-"],
    "play": ["-q", "-t", "wav", "-"],
}


class NoPlayer(PolyvoxError):
    """Nothing here plays sound, or what should have played it ended early."""

    code = "no_player"


class Player:
    """Plays samples as they are pushed, through `sounddevice` where it is installed, else through a program."""

    def __init__(self, sample_rate: int) -> None:
        self._device: Any = _device(sample_rate)
        self._program: subprocess.Popen[bytes] | None = None
        if self._device is not None:
            return
        name = next((name for name in PLAYERS if shutil.which(name)), None)
        if name is None:
            raise NoPlayer(
                f"Nothing here plays sound: pip install sounddevice, or install one of {', '.join(PLAYERS)}."
            )
        self._name = name
        command = [name, *(part.format(rate=sample_rate) for part in PLAYERS[name])]
        self._program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        if "{rate}" not in " ".join(PLAYERS[name]):
            self._write(wav_header(sample_rate, None))

    def push(self, samples: Samples) -> None:
        """Returns as soon as the player has taken them, which may be when it needs them."""
        self._write(pcm_bytes(to_pcm(samples)))

    def finish(self) -> None:
        """Waits until all of it was heard."""
        if self._device is not None:
            self._device.stop()
            self._device.close()
        elif self._program is not None and self._program.stdin is not None:
            with suppress(BrokenPipeError):  # its exit status tells
                self._program.stdin.close()
            if self._program.wait():
                raise NoPlayer(f"{self._name} ended with status {self._program.returncode} before all was played.")

    def close(self) -> None:
        """Silence, at once."""
        if self._device is not None:
            self._device.abort()
            self._device.close()
        elif self._program is not None and self._program.poll() is None:
            self._program.kill()
            self._program.communicate()

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
        elif self._program is not None and self._program.stdin is not None:
            try:
                self._program.stdin.write(data)
                self._program.stdin.flush()
            except BrokenPipeError:
                self.finish()
                raise NoPlayer(f"{self._name} ended before all was played.") from None


def _device(sample_rate: int) -> Any:
    """An open output of `sounddevice`; None where it is not installed or finds no output."""
    try:
        import sounddevice
    except (ImportError, OSError):  # the second: without its PortAudio
        return None
    try:
        device = sounddevice.RawOutputStream(sample_rate, channels=1, dtype="int16")
        device.start()
    except sounddevice.PortAudioError:
        return None
    return device
