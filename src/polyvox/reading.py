"""A long text, read sentence by sentence: one voice, one loudness, natural pauses, times exact to the sample."""

import hashlib
import io
import json
import shutil
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from polyvox.audio.clip import FinishReason, Samples
from polyvox.audio.loudness import levelled
from polyvox.audio.pcm import Pcm, from_pcm, to_pcm
from polyvox.audio.silence import trimmed
from polyvox.engine.interface import Engine, Stream
from polyvox.errors import EngineDown, Overloaded
from polyvox.models.request import Request

RETRY_SECONDS = 0.2  # while others have all places
FADE_SECONDS = 0.005  # at both ends of a sentence, so that no seam clicks


@dataclass(frozen=True, slots=True)
class Line:
    """What is said in one go, and the silence after it."""

    text: str
    pause: float = 0.0  # seconds


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """One line as it is heard, and where it stands in the whole, in samples."""

    index: int
    line: Line
    samples: Samples  # without the pause after it
    start: int
    finish_reason: FinishReason

    @property
    def end(self) -> int:
        return self.start + len(self.samples)


class Job:
    """One line that is being spoken; the engine's thread fills it, so that no buffer is ever full."""

    def __init__(self, engine: Engine, request: Request) -> None:
        self._engine, self._request = engine, request
        self._submit()

    def samples(self) -> tuple[Samples, FinishReason]:
        """Waits for the whole; raises what ended it early, but comes again where others had all places."""
        while True:
            self._done.wait()
            try:
                if self._stream is None:
                    raise Overloaded("all places are taken", RETRY_SECONDS)
                assert self._stream.result is not None
                self._stream.result.check()
                return np.concatenate([*self._chunks, np.zeros(0, np.float32)]), self._stream.result.finish_reason
            except EngineDown:
                raise
            except Overloaded:
                time.sleep(RETRY_SECONDS)
                self._submit()

    def cancel(self) -> None:
        if self._stream is not None:
            self._stream.cancel()

    def _submit(self) -> None:
        self._chunks: list[Samples] = []
        self._done = threading.Event()
        self._stream: Stream | None = None
        try:
            self._stream = self._engine.submit(self._request, self._ready)
        except EngineDown:
            raise
        except Overloaded:
            self._done.set()

    def _ready(self, stream: Stream) -> None:
        for chunk in stream.take(1 << 30):
            self._chunks.append(chunk.samples)
            if chunk.final:
                self._done.set()


def read(
    engine: Engine, lines: list[Line], request: Request, at_once: int, shelf: "Shelf | None" = None
) -> Iterator[Spoken]:
    """Speaks the lines in order, so many at once; `request` says how, and its seed holds for all of them.

    What is on the shelf is not spoken again, and what is spoken is put there.
    """
    jobs: deque[Job | None] = deque()  # of the lines from the next one on; None for those on the shelf
    sent = start = 0
    try:
        for index, line in enumerate(lines):
            while sent < len(lines) and len(jobs) < at_once:
                one = replace(request, text=lines[sent].text, segment=sent, whole_file=True)
                jobs.append(None if shelf is not None and sent in shelf else Job(engine, one))
                sent += 1
            job = jobs.popleft()
            if job is None:
                assert shelf is not None
                pcm, reason = shelf.take(index)
            else:
                samples, reason = job.samples()
                pcm = to_pcm(_finished(samples, engine.sample_rate))
                if shelf is not None:
                    shelf.put(index, pcm, reason)
            spoken = Spoken(index, line, from_pcm(pcm), start, reason)
            start = spoken.end + round(line.pause * engine.sample_rate)
            yield spoken
    finally:
        for job in jobs:
            if job is not None:
                job.cancel()


def _finished(samples: Samples, sample_rate: int) -> Samples:
    """A line as it goes into the whole: no silence around it, the loudness of all others, soft ends."""
    samples = levelled(trimmed(samples, sample_rate), sample_rate)
    fade = min(int(FADE_SECONDS * sample_rate), len(samples) // 2)
    if fade:
        ramp = np.linspace(0.0, 1.0, fade, dtype=np.float32)
        samples[:fade] *= ramp
        samples[-fade:] *= ramp[::-1]
    return samples


class Shelf:
    """Lines that were spoken already, in a folder: a reading that was interrupted goes on where it was.

    It belongs to one reading: another text, voice, seed or model finds it empty.
    """

    def __init__(self, folder: Path, settings: dict[str, object]) -> None:
        self._folder = folder
        key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        label = folder / "reading.json"
        if not label.is_file() or json.loads(label.read_text()).get("key") != key:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            _write(label, json.dumps({"key": key}).encode())
        self._kept = {int(file.stem): file for file in folder.glob("*.npz")}

    def __contains__(self, index: int) -> bool:
        return index in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, index: int) -> tuple[Pcm, FinishReason]:
        with np.load(self._kept[index]) as file:
            return file["pcm"], str(file["reason"])  # type: ignore[return-value]

    def put(self, index: int, pcm: Pcm, reason: FinishReason) -> None:
        data = io.BytesIO()
        np.savez(data, pcm=pcm, reason=np.array(reason))
        self._kept[index] = self._folder / f"{index:06}.npz"
        _write(self._kept[index], data.getvalue())

    def clear(self) -> None:
        """The reading is finished."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _write(path: Path, data: bytes) -> None:
    """The file is whole or not there."""
    partial = path.with_suffix(".partial")
    partial.write_bytes(data)
    partial.replace(path)


def subtitles(cues: list[tuple[int, int, str]], sample_rate: int, kind: Literal["srt", "vtt"]) -> str:
    """(first sample, last sample, text) of each line as a subtitle file."""
    mark = "," if kind == "srt" else "."

    def clock(sample: int) -> str:
        milliseconds = round(sample * 1000 / sample_rate)
        seconds, milliseconds = divmod(milliseconds, 1000)
        return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{mark}{milliseconds:03}"

    blocks = [f"{clock(start)} --> {clock(end)}\n{text}\n" for start, end, text in cues]
    if kind == "srt":
        return "\n".join(f"{number}\n{block}" for number, block in enumerate(blocks, 1))
    return "\n".join(["WEBVTT\n", *blocks])
