# SPDX-License-Identifier: Apache-2.0
"""Transcribes recorded audio with an external recogniser: a command that reads WAV paths and writes text lines."""

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

from polyvox.bench.metrics import RequestTrace
from polyvox.bench.wer import word_errors
from polyvox.errors import InvalidRequest, PolyvoxError

TRANSCRIPT_TIMEOUT = 300.0  # seconds for one file, including model loading
SHUTDOWN_TIMEOUT = 5.0


class Recogniser:
    """A running recogniser: one WAV path per input line, one transcript per output line."""

    def __init__(self, command: str, timeout: float = TRANSCRIPT_TIMEOUT) -> None:
        check_command(command)
        self.command, self._timeout, self._buffer = command, timeout, b""
        self._process = subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(SHUTDOWN_TIMEOUT if kind is None else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def transcribe(self, path: Path) -> str:
        """The transcript of one WAV file."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{path}\n".encode())
        except BrokenPipeError:
            raise self._exited() from None
        return self._read_line().decode(errors="replace").strip()

    def _read_line(self) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + self._timeout
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not ready.select(max(0.0, deadline - time.monotonic())):
                    raise PolyvoxError(f"Recogniser timed out after {self._timeout:g} s: {self.command}")
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    raise self._exited()
                self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _exited(self) -> PolyvoxError:
        status = self._process.wait()
        return PolyvoxError(f"Recogniser exited with status {status} before the last transcript: {self.command}")


def check_command(command: str) -> None:
    """Raises InvalidRequest for a command that cannot be started, before anything is measured."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    if not words or shutil.which(words[0]) is None:
        raise InvalidRequest("wer", command, "must be a command on the PATH, such as 'python transcribe.py'")


def transcribe(
    command: str,
    traces: Sequence[RequestTrace],
    texts: Sequence[str],
    on_progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Adds the transcript and the word errors to each trace whose audio was recorded."""
    recorded = [trace for trace in traces if trace.pcm and trace.succeeded]
    if not recorded:
        return
    with tempfile.TemporaryDirectory(prefix="polyvox-bench-") as folder, Recogniser(command) as recogniser:
        path = Path(folder) / "speech.wav"
        for done, trace in enumerate(recorded, 1):
            _write_wav(path, trace)
            trace.transcript = recogniser.transcribe(path)
            found = word_errors(texts[trace.prompt], trace.transcript)
            trace.word_errors = (found.errors, found.words)
            on_progress(done)


def _write_wav(path: Path, trace: RequestTrace) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(trace.sample_rate)
        file.writeframes(bytes(trace.pcm or b""))
