"""What a recogniser understands of what was spoken: any program that reads names of WAV files and writes texts."""

import os
import selectors
import shlex
import shutil
import subprocess
import tempfile
import time
import wave
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from polyvox.bench.metrics import Trace
from polyvox.bench.words import word_errors
from polyvox.errors import InvalidRequest, PolyvoxError

ANSWER_SECONDS = 300.0  # for one text, the time to load a model included
STOP_SECONDS = 5.0


class Recogniser:
    """A command: the name of a WAV file in a line of its input, what it heard in a line of its output."""

    def __init__(self, command: str, patience: float = ANSWER_SECONDS) -> None:
        check_command(command)
        self.command, self._patience, self._held = command, patience, b""
        self._process = subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS if kind is None else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def heard(self, path: Path) -> str:
        """What was said in this file."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{path}\n".encode())
        except BrokenPipeError:
            raise self._ended() from None
        return self._line().decode(errors="replace").strip()

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        until = time.monotonic() + self._patience
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._held:
                if not ready.select(max(0.0, until - time.monotonic())):
                    raise PolyvoxError(f"No line from the recogniser in {self._patience:g} s: {self.command}")
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    raise self._ended()
                self._held += data
        line, self._held = self._held.split(b"\n", 1)
        return line

    def _ended(self) -> PolyvoxError:
        status = self._process.wait()
        return PolyvoxError(f"The recogniser ended with status {status} before it had heard all: {self.command}")


def check_command(command: str) -> None:
    """Refuses what could not be started after an hour of measuring."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    if not words or shutil.which(words[0]) is None:
        raise InvalidRequest("wer", command, "must be a command on the PATH, such as 'python hear.py'")


def hear(
    command: str, traces: Sequence[Trace], texts: Sequence[str], tell: Callable[[int], None] = lambda _: None
) -> None:
    """Notes in each trace whose sound was kept what was heard of it, and how many words of its text were not."""
    kept = [trace for trace in traces if trace.sound and trace.succeeded]
    if not kept:
        return
    with tempfile.TemporaryDirectory(prefix="polyvox-bench-") as folder, Recogniser(command) as recogniser:
        path = Path(folder) / "speech.wav"
        for number, trace in enumerate(kept):
            _write(path, trace)
            trace.heard = recogniser.heard(path)
            found = word_errors(texts[trace.prompt], trace.heard)
            trace.misheard = (found.errors, found.words)
            tell(number + 1)


def _write(path: Path, trace: Trace) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(trace.sample_rate)
        file.writeframes(bytes(trace.sound or b""))
