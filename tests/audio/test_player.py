# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from audio.signals import speech
from polyvox.audio.pcm import to_pcm
from polyvox.audio.player import Player, PlayerError
from polyvox.audio.samples import Samples


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    return tmp_path


def program(folder: Path, name: str, does: str) -> None:
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys\n{does}\n")
    path.chmod(0o755)


RECORDS = """
open(sys.argv[0] + ".received", "wb").write(sys.stdin.buffer.read())
open(sys.argv[0] + ".args", "w").write(" ".join(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("name", "header"), [("aplay", 0), ("paplay", 0), ("pw-play", 0), ("ffplay", 44), ("play", 44)]
)
def test_the_player_receives_the_pushed_samples(folder: Path, name: str, header: int) -> None:
    program(folder, name, RECORDS)
    sound = speech(0.5)
    with Player(24_000) as player:
        for part in np.array_split(sound, 7):
            player.push(part)
    received = (folder / f"{name}.received").read_bytes()
    assert np.array_equal(np.frombuffer(received[header:], "<i2"), to_pcm(sound))
    has_rate = (
        received[24:28] == (24_000).to_bytes(4, "little")
        if header
        else "24000" in (folder / f"{name}.args").read_text()
    )
    assert has_rate


def test_without_a_player_the_error_says_what_to_install(folder: Path) -> None:
    assert folder.is_dir()
    with pytest.raises(PlayerError, match="pip install sounddevice, or install one of paplay, aplay"):
        Player(24_000)


def play_long(sound: Samples) -> None:
    with Player(24_000) as player:
        for _ in range(100):
            player.push(sound)


def test_a_failing_player_raises_an_error(folder: Path) -> None:
    program(folder, "aplay", "sys.exit(3)")
    with pytest.raises(PlayerError, match="aplay exited with status 3"):
        play_long(speech(0.5))


def test_a_player_that_fails_at_the_end_raises_an_error(folder: Path) -> None:
    program(folder, "aplay", "sys.stdin.buffer.read(); sys.exit(4)")
    with pytest.raises(PlayerError, match="aplay exited with status 4"):
        play_long(speech(0.01))


def test_an_exception_stops_playback_at_once(folder: Path) -> None:
    program(folder, "aplay", "import time; time.sleep(600)")
    player = Player(24_000)
    player.push(speech(0.1))
    player.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert player._process is not None
    assert player._process.returncode is not None
    assert player._process.returncode < 0


class Device:
    """A fake `sounddevice.RawOutputStream`."""

    received = b""
    state = "made"

    def __init__(self, rate: int, channels: int, dtype: str) -> None:
        assert (rate, channels, dtype) == (24_000, 1, "int16")

    def start(self) -> None:
        self.state = "started"

    def write(self, data: bytes) -> None:
        assert self.state == "started"
        self.received += data

    def stop(self) -> None:
        self.state = "stopped"

    def abort(self) -> None:
        self.state = "aborted"

    def close(self) -> None:
        self.state += ", closed"


def test_sounddevice_is_preferred_to_programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder.is_dir()
    monkeypatch.setitem(sys.modules, "sounddevice", SimpleNamespace(RawOutputStream=Device, PortAudioError=OSError))
    sound = speech(0.1)
    with Player(24_000) as player:
        player.push(sound)
    assert player._device.received == to_pcm(sound).tobytes()
    assert player._device.state == "stopped, closed"
    player = Player(24_000)
    player.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert player._device.state == "aborted, closed"
