"""A long text, read sentence by sentence: one voice, one loudness, natural pauses, times exact to the sample."""

import hashlib
import io
import json
import re
import secrets
import shutil
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from polyvox.audio.clip import FinishReason, Samples
from polyvox.audio.loudness import normalize_loudness
from polyvox.audio.pcm import Pcm, from_pcm, to_pcm
from polyvox.audio.silence import trim_silence
from polyvox.audio.time_stretch import TimeStretcher
from polyvox.engine.interface import Engine, Stream
from polyvox.errors import EngineDown, InvalidRequest, Overloaded
from polyvox.files import write_atomically
from polyvox.models.request import Request
from polyvox.text import Note, Pause, SpokenText, TextRules, merged, sentences

_PARAGRAPHS = re.compile(r"\n\s*\n")
SENTENCE_SECONDS, PARAGRAPH_SECONDS = 0.25, 0.6  # of silence, where the text asks for no other
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
    pause: int
    finish_reason: FinishReason

    @property
    def end(self) -> int:
        return self.start + len(self.samples)


def lines_of(text: str, rules: TextRules) -> tuple[list[Line], list[Note]]:
    """A text as the lines to read, sentence by sentence, and what was left out or could not be made speakable."""
    words = SpokenText(rules)
    lines: list[Line] = []
    natural = True  # the last line's pause is ours, not one that the text asks for
    for part in merged([*words.append(text), *words.finish()]):
        if isinstance(part, Pause):
            last = lines.pop() if lines else Line("")
            lines.append(Line(last.text, part.seconds + (0.0 if natural else last.pause)))
            natural = False
            continue
        natural = True
        for paragraph in _PARAGRAPHS.split(part.text):
            lines += [Line(sentence, SENTENCE_SECONDS) for sentence in sentences(paragraph)]
            if lines and paragraph.strip():
                lines[-1] = replace(lines[-1], pause=PARAGRAPH_SECONDS)
    if not any(line.text for line in lines):
        raise InvalidRequest("text", text, "must have something to say")
    if natural:
        lines[-1] = replace(lines[-1], pause=0.0)
    return lines, words.notes


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


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Lines on their way to speech: iterate over it for what is spoken, in order, so many lines at once.

    `request` says how; its text is each line's in turn, its seed holds for all of them. What is on the shelf is not
    spoken again, and what is spoken is put there.
    """

    engine: Engine
    lines: list[Line]
    request: Request
    at_once: int
    shelf: "ResumeStore | None" = None
    speed: float = 1.0
    notes: list[Note] = field(default_factory=list)  # what was left out of the text

    @property
    def seed(self) -> int:
        assert self.request.seed is not None, "a reading has a seed"
        return self.request.seed

    def __iter__(self) -> Iterator[Spoken]:
        jobs: deque[Job | None] = deque()  # of the lines from the next one on; None where there is nothing to speak
        sent = start = 0
        try:
            for index, line in enumerate(self.lines):
                while sent < len(self.lines) and len(jobs) < self.at_once:
                    jobs.append(self._begin(sent))
                    sent += 1
                pcm, reason = self._finish(index, jobs.popleft())
                spoken = Spoken(index, line, from_pcm(pcm), start, self._samples(line.pause), reason)
                start = spoken.end + spoken.pause
                yield spoken
        finally:
            for job in jobs:
                if job is not None:
                    job.cancel()

    def _begin(self, index: int) -> Job | None:
        text = self.lines[index].text
        if not text or (self.shelf is not None and index in self.shelf):
            return None
        return Job(self.engine, replace(self.request, text=text, segment=index, whole_file=True))

    def _finish(self, index: int, job: Job | None) -> tuple[Pcm, FinishReason]:
        if job is None:
            if self.shelf is not None and index in self.shelf:
                return self.shelf.take(index)
            return np.zeros(0, np.int16), "stop"
        try:
            samples, reason = job.samples()
        except BaseException:
            job.cancel()
            raise
        pcm = to_pcm(_finished(samples, self.engine.sample_rate, self.speed))
        if self.shelf is not None:
            self.shelf.put(index, pcm, reason)
        return pcm, reason

    def _samples(self, seconds: float) -> int:
        return round(seconds / self.speed * self.engine.sample_rate)


def _finished(samples: Samples, sample_rate: int, speed: float) -> Samples:
    """A line as it goes into the whole: no silence around it, the loudness of all others, soft ends."""
    stretcher = TimeStretcher(speed, sample_rate)
    samples = np.concatenate([stretcher.push(trim_silence(samples, sample_rate)), stretcher.finish()])
    samples = normalize_loudness(samples, sample_rate)
    fade = min(int(FADE_SECONDS * sample_rate), len(samples) // 2)
    if fade:
        ramp = np.linspace(0.0, 1.0, fade, dtype=np.float32)
        samples[:fade] *= ramp
        samples[-fade:] *= ramp[::-1]
    return samples


class ResumeStore:
    """Lines that were spoken already, in a folder: a reading that was interrupted goes on where it was.

    It belongs to one reading: another text, voice, seed or model finds it empty. Where no seed is asked for, the
    one that the reading began with holds.
    """

    def __init__(self, folder: Path, settings: object, seed: int | None = None) -> None:
        self._folder = folder
        key = hashlib.sha256(repr((settings, seed)).encode()).hexdigest()
        label = folder / "reading.json"
        told = json.loads(label.read_text()) if label.is_file() else {}
        if told.get("key") != key:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            told = {"key": key, "seed": secrets.randbelow(2**32) if seed is None else seed}
            write_atomically(label, json.dumps(told).encode())
        self.seed: int = told["seed"]
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
        write_atomically(self._kept[index], data.getvalue())

    def clear(self) -> None:
        """The reading is finished."""
        shutil.rmtree(self._folder, ignore_errors=True)


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
