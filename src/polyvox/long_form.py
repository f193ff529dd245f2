# SPDX-License-Identifier: Apache-2.0
"""Long-form synthesis: a text of any length, sentence by sentence, with one loudness and sample-exact times."""

import hashlib
import io
import json
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from polyvox.alignment import SpeechTimeline, WordTime
from polyvox.audio.clip import FinishReason
from polyvox.audio.loudness import normalize_loudness
from polyvox.audio.pcm import Pcm, from_pcm, to_pcm
from polyvox.audio.samples import Samples
from polyvox.audio.silence import trim_silence
from polyvox.audio.time_stretch import MAX_SPEED, MIN_SPEED, TimeStretcher
from polyvox.engine.interface import Engine, Stream
from polyvox.errors import NO_TEXT, EngineDown, InvalidRequest, Overloaded
from polyvox.files import PARTIAL_FILE, write_atomically
from polyvox.models.request import Request
from polyvox.text import Note, Pause, Rate, TextNormalizer, TextRules, merge_parts, split_sentences
from polyvox.text.phonemes import unmark_phonemes
from polyvox.text.segment_text import SegmentLocator, SegmentText

# Seconds of silence, if the text requests no pause. A clause is a segment where the speaking rate changes.
DEFAULT_PAUSES = CLAUSE_PAUSE, SENTENCE_PAUSE, PARAGRAPH_PAUSE = 0.1, 0.25, 0.6
SENTENCE_ENDS = ".!?…。！？｡\"'”’)]」』"
RETRY_INTERVAL = 0.2  # seconds between attempts while the engine has no capacity
RETRY_TIMEOUT = 120.0  # seconds after which a sentence that was never admitted fails
FADE_SECONDS = 0.005  # at both ends of a sentence, to avoid clicks
MANIFEST = "reading.json"  # of a ResumeStore
_SENTENCE_FILE = re.compile(r"\d{6,}\.npz")  # of a ResumeStore, named by the number of the sentence
_PARAGRAPH_BREAK = re.compile(r"\n\s*\n")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One request of a long text, and the pause after it. An empty text is a pause only."""

    text: str
    pause: float = 0.0  # seconds
    rate: float = 1.0  # of speaking, relative to the speed of the whole
    source: SegmentText | None = field(default=None, repr=False, compare=False)  # with the positions in the whole text


@dataclass(frozen=True, slots=True, eq=False)
class SpokenSentence:
    """The audio of a sentence and its position in the whole, in samples."""

    index: int
    sentence: Sentence
    samples: Samples  # without the pause
    start: int
    pause: int
    finish_reason: FinishReason
    words: tuple[WordTime, ...] = ()  # with estimated times in seconds of the whole, if they were requested

    @property
    def text(self) -> str:
        """The text without phonemes."""
        return unmark_phonemes(self.sentence.text)

    @property
    def end(self) -> int:
        return self.start + len(self.samples)


def split_text(text: str, rules: TextRules) -> tuple[list[Sentence], TextNormalizer]:
    """Split a text into sentences. The normaliser has notes of what was left out or changed, and the languages.

    Raises InvalidRequest if there is nothing to say.
    """
    normalizer = TextNormalizer(rules, track_positions=True)
    locator = SegmentLocator(normalizer)
    locator.append_written(text)
    found: list[Sentence] = []
    default_pause = True  # the pause after the last sentence is ours and not from the text
    rate = 1.0
    for part in merge_parts([*normalizer.append(text), *normalizer.finish()]):
        if isinstance(part, Pause):
            last = found.pop() if found else Sentence("")
            found.append(replace(last, pause=part.seconds + (0.0 if default_pause else last.pause)))
            default_pause = False
            continue
        if isinstance(part, Rate):
            rate = part.value
            if found and default_pause and found[-1].text[-1:] not in SENTENCE_ENDS:
                found[-1] = replace(found[-1], pause=CLAUSE_PAUSE)
            continue
        default_pause = True
        locator.append_words(part.text)
        for paragraph in _PARAGRAPH_BREAK.split(part.text):
            for sentence in split_sentences(paragraph):
                source = locator.begin()
                locator.extend(source, sentence, complete=True)
                found.append(Sentence(sentence, SENTENCE_PAUSE, rate, source))
            if found and paragraph.strip():
                found[-1] = replace(found[-1], pause=PARAGRAPH_PAUSE)
    if not any(sentence.text for sentence in found):
        raise InvalidRequest("text", text, "has only pauses" if found else NO_TEXT)
    if default_pause:
        found[-1] = replace(found[-1], pause=0.0)
    return found, normalizer


class SentenceJob:
    """A sentence in the engine. The engine's thread collects its chunks, so that its buffer is never full."""

    def __init__(self, engine: Engine, request: Request) -> None:
        self._engine, self._request = engine, request
        self._submit()

    def result(self) -> tuple[Samples, FinishReason]:
        """Wait for the whole sentence. A rejected request is retried for RETRY_TIMEOUT seconds, then Overloaded is
        raised; other errors are raised at once."""
        deadline = time.monotonic() + RETRY_TIMEOUT
        while True:
            self._done.wait()
            try:
                return self._completed()
            except EngineDown:
                raise
            except Overloaded:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(RETRY_INTERVAL)
                self._submit()

    def cancel(self) -> None:
        if self._stream is not None:
            self._stream.cancel()

    def _submit(self) -> None:
        self._chunks: list[Samples] = []
        self._done = threading.Event()
        self._stream: Stream | None = None
        self._rejection: Overloaded | None = None
        try:
            self._stream = self._engine.submit(self._request, self._on_chunk)
        except EngineDown:
            raise
        except Overloaded as error:
            self._rejection = error
            self._done.set()

    def _completed(self) -> tuple[Samples, FinishReason]:
        if self._rejection is not None:
            raise self._rejection
        assert self._stream is not None
        assert self._stream.result is not None
        self._stream.result.check()
        return np.concatenate([*self._chunks, np.zeros(0, np.float32)]), self._stream.result.finish_reason

    def _on_chunk(self, streams: Sequence[Stream]) -> None:
        for stream in streams:  # one: each sentence has its own callback
            for chunk in stream.take(1 << 30):
                self._chunks.append(chunk.samples)
                if chunk.final:
                    self._done.set()


@dataclass(frozen=True, slots=True, eq=False)
class LongFormReader:
    """Iterate over it for the sentences of a text as audio, in order; up to `max_concurrent` are generated at once.

    `request` has the options and the seed of all sentences. Sentences in `store` are not generated again, and new ones
    are added to it.
    """

    engine: Engine
    sentences: list[Sentence]
    request: Request
    max_concurrent: int
    store: "ResumeStore | None" = None
    speed: float = 1.0
    notes: list[Note] = field(default_factory=list)  # what was left out of the text
    word_times: bool = False  # estimate the times of words
    owner: object = None  # of the engine, which closes it when nothing refers to it

    @property
    def seed(self) -> int:
        assert self.request.seed is not None, "a long text has a seed"
        return self.request.seed

    def __iter__(self) -> Iterator[SpokenSentence]:
        jobs: deque[SentenceJob | None] = deque()  # from the next sentence on; None if there is nothing to generate
        num_started = start = 0
        try:
            for index, sentence in enumerate(self.sentences):
                while num_started < len(self.sentences) and len(jobs) < self.max_concurrent:
                    jobs.append(self._start(num_started))
                    num_started += 1
                pcm, reason = self._finish(index, jobs.popleft())
                samples = from_pcm(pcm)
                words = self._words(sentence, samples, start) if self.word_times else ()
                pause = self._samples(sentence.pause)
                spoken = SpokenSentence(index, sentence, samples, start, pause, reason, words)
                start = spoken.end + spoken.pause
                yield spoken
        finally:
            for job in jobs:
                if job is not None:
                    job.cancel()

    def _words(self, sentence: Sentence, samples: Samples, start: int) -> tuple[WordTime, ...]:
        if sentence.source is None:
            return ()
        speed = min(max(self.speed * sentence.rate, MIN_SPEED), MAX_SPEED)
        timeline = SpeechTimeline(self.engine.sample_rate, streaming=False, sample_speed=speed)
        timeline.silence(start)
        timeline.begin(sentence.source)
        return tuple(timeline.push(samples, final=True).words)

    def _start(self, index: int) -> SentenceJob | None:
        text = self.sentences[index].text
        if not text or (self.store is not None and index in self.store):
            return None
        return SentenceJob(self.engine, replace(self.request, text=text, segment=index, whole_file=True))

    def _finish(self, index: int, job: SentenceJob | None) -> tuple[Pcm, FinishReason]:
        if job is None:
            if self.store is not None and index in self.store:
                return self.store.load(index)
            return np.zeros(0, np.int16), "stop"
        try:
            samples, reason = job.result()
        except BaseException:
            job.cancel()
            raise
        speed = min(max(self.speed * self.sentences[index].rate, MIN_SPEED), MAX_SPEED)
        pcm = to_pcm(_postprocess(samples, self.engine.sample_rate, speed))
        if self.store is not None:
            self.store.save(index, pcm, reason)
        return pcm, reason

    def _samples(self, seconds: float) -> int:
        return round(seconds / self.speed * self.engine.sample_rate)


def _postprocess(samples: Samples, sample_rate: int, speed: float) -> Samples:
    """Trim silence, change the speed, normalise the loudness and fade both ends."""
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
    """A folder with the generated sentences of one text, so that an interrupted run can resume.

    Another text, voice, seed or model clears it. Without a seed, the seed of the first run is used. Only files of the
    store are deleted. Raises InvalidRequest for a folder that has files but no manifest of a store.
    """

    def __init__(self, folder: str | Path, settings: object, seed: int | None = None) -> None:
        self._folder = Path(folder)
        key = hashlib.sha256(repr((settings, seed)).encode()).hexdigest()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            saved = self._read_manifest()
        except OSError as error:
            raise InvalidRequest("keep", str(folder), f"cannot be used: {error.strerror}") from None
        if saved is None or saved.key != key:
            self._delete_files()
            saved = _Manifest(key, secrets.randbelow(2**32) if seed is None else seed)
            write_atomically(self._folder / MANIFEST, json.dumps(asdict(saved)).encode())
        self.seed = saved.seed
        self._files = {int(file.stem): file for file in self._folder.iterdir() if _SENTENCE_FILE.fullmatch(file.name)}

    def __contains__(self, index: int) -> bool:
        return index in self._files

    def __len__(self) -> int:
        return len(self._files)

    def load(self, index: int) -> tuple[Pcm, FinishReason]:
        with np.load(self._files[index]) as file:
            return file["pcm"], str(file["reason"])  # type: ignore[return-value]

    def save(self, index: int, pcm: Pcm, reason: FinishReason) -> None:
        data = io.BytesIO()
        np.savez(data, pcm=pcm, reason=np.array(reason))
        self._files[index] = self._folder / f"{index:06}.npz"
        write_atomically(self._files[index], data.getvalue())

    def clear(self) -> None:
        """Delete the files of the store, and the folder if it is empty then."""
        with suppress(OSError):
            self._delete_files()
            self._folder.rmdir()

    def _read_manifest(self) -> "_Manifest | None":
        """None for a folder without files. Raises InvalidRequest if the files are not those of a store."""
        manifest = self._folder / MANIFEST
        try:
            return _Manifest(**json.loads(manifest.read_bytes()))
        except FileNotFoundError:
            if all(PARTIAL_FILE.fullmatch(file.name) for file in self._folder.iterdir()):
                return None
        except (ValueError, TypeError):  # not JSON, or not of a store
            pass
        raise InvalidRequest("keep", str(self._folder), "must be a new or empty folder, or one of an earlier run")

    def _delete_files(self) -> None:
        """The manifest is deleted last: until then the folder is known as one of a store."""
        for file in list(self._folder.iterdir()):
            if _SENTENCE_FILE.fullmatch(file.name) or PARTIAL_FILE.fullmatch(file.name):
                file.unlink()
        (self._folder / MANIFEST).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Manifest:
    key: str  # identifies the text and the settings
    seed: int
