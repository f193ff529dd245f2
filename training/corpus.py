# SPDX-License-Identifier: Apache-2.0
"""Build the corpus: texts and phonemes, then phoneme durations, prosody and audio from the teacher.

    python -m training.corpus texts --wordnet DIR --out DIR        # CPU
    python -m training.corpus durations --work DIR --minutes M     # GPU; durations and prosody, much cheaper than audio
    python -m training.corpus speech --work DIR --minutes M        # GPU; audio of timed texts

Each command resumes where it was stopped: a worker appends to its own files. Utterances are records of 32-bit integers
in KIND-*.i32; audio has 16-bit samples in speech-*.i16.
"""

import argparse
import multiprocessing
import os
import random
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.symbols import to_ids, to_phonemes
from training.teacher import Teacher
from training.units import FRAME, SAMPLE_RATE, UNITS_PER_FRAME, cut, first_unit, num_frames, without_tones

VOICES = ("af_heart", "am_michael")
LEVELS = (-1.05, 1.05)  # dB by which the voices are changed: then both have the same loudness (ITU-R BS.1770)
STYLES, TIMBRE = 256, 128  # size of a style, and of its first part, which only the synthesis reads
TIMBRE_LENGTH = 100  # phoneme count whose timbre all texts have
MAX_PHONEMES = 200
PROGRESS = 15.0  # seconds
BLOCK, TIMED_BLOCK, TIMED_BATCH = 4096, 16_384, 128
HEADER = 3  # values of a record before durations and phase steps
BYTES = 2  # of a sample


@dataclass(frozen=True, slots=True)
class TimedUtterance:
    text: int
    durations: np.ndarray  # of start, phonemes and end, in units
    advance: np.ndarray  # phase steps of each frame
    loudness: np.ndarray  # of each unit of the frames

    def record(self) -> bytes:
        header = [self.text, len(self.durations), len(self.advance)]
        return np.concatenate([header, self.durations, self.advance, self.loudness]).astype(np.int32).tobytes()


@dataclass(frozen=True, slots=True)
class Timings:
    """Timed utterances in flat arrays, one after another."""

    texts: np.ndarray  # [U]
    counts: np.ndarray  # [U]: number of durations
    frames: np.ndarray  # [U]
    durations: np.ndarray  # [sum of counts]
    advance: np.ndarray  # [sum of frames]
    loudness: np.ndarray  # [units of all frames]

    @staticmethod
    def single(one: TimedUtterance) -> "Timings":
        text, count, frames = np.array([[one.text], [len(one.durations)], [len(one.advance)]])
        return Timings(text, count, frames, one.durations, one.advance, one.loudness)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, part: slice) -> "Timings":
        durations, advance = (np.concatenate([[0], np.cumsum(sizes)]) for sizes in (self.counts, self.frames))
        first, last, _ = part.indices(len(self))
        return Timings(
            self.texts[part],
            self.counts[part],
            self.frames[part],
            self.durations[durations[first] : durations[last]],
            self.advance[advance[first] : advance[last]],
            self.loudness[advance[first] * UNITS_PER_FRAME : advance[last] * UNITS_PER_FRAME],
        )

    def utterances(self, texts: Collection[int]) -> dict[int, TimedUtterance]:
        """Utterances by text."""
        counts, frames = (np.concatenate([[0], np.cumsum(sizes)]) for sizes in (self.counts, self.frames))
        found = {}
        for number in np.nonzero(np.isin(self.texts, list(texts)))[0]:
            first, last = frames[number : number + 2]
            found[int(self.texts[number])] = TimedUtterance(
                int(self.texts[number]),
                self.durations[counts[number] : counts[number + 1]],
                self.advance[first:last],
                self.loudness[first * UNITS_PER_FRAME : last * UNITS_PER_FRAME],
            )
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    texts = commands.add_parser("texts")
    texts.add_argument("--wordnet", type=Path, required=True, help="folder with data.noun, cntlist.rev …")
    texts.add_argument("--out", type=Path, required=True)
    texts.add_argument("--count", type=int, default=150_000, help="sentences; more are added for frequent words")
    for name in ("durations", "speech"):
        command = commands.add_parser(name)
        command.add_argument("--work", type=Path, required=True, help="corpus folder, with phonemes.npz in it")
        command.add_argument("--teacher", type=Path, required=True, help="the packed teacher")
        command.add_argument("--minutes", type=float, default=9.0)
        command.add_argument("--workers", type=int, default=6)
        command.add_argument("--batch", type=int, default=16, help="maximum texts per audio batch")
        command.add_argument("--limit", type=int, default=10**9, help="use only the first LIMIT texts")
    arguments = parser.parse_args()
    if arguments.command == "texts":
        write_texts(arguments.wordnet, arguments.out, arguments.count)
    else:
        speak(arguments)


def write_texts(wordnet: Path, out: Path, count: int) -> None:
    """Write texts.txt, one per line, and phonemes.npz: phoneme ids and a voice for each text."""
    from polyvox.text import format_parts, normalize_text
    from polyvox.text.phonemes import phonemize
    from training.texts import sentences

    pick = np.random.default_rng(1)
    kept, phonemes = [], []
    for text in sentences(wordnet, count):
        ids = to_ids(phonemize(format_parts(normalize_text(text))))
        if 2 <= len(ids) <= MAX_PHONEMES:
            kept.append(text)
            phonemes.append(ids)
    out.mkdir(parents=True, exist_ok=True)
    (out / "texts.txt").write_text("\n".join(kept) + "\n")
    np.savez_compressed(
        out / "phonemes.npz",
        ids=np.concatenate(phonemes).astype(np.uint8),
        counts=np.array([len(ids) for ids in phonemes], np.int16),
        voices=pick.integers(0, len(VOICES), len(kept)).astype(np.uint8),
    )


class Phonemes:
    """Phoneme ids of each text."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / "phonemes.npz") as arrays:
            self.ids, counts, self.voices = arrays["ids"], arrays["counts"], arrays["voices"]
        self.ends = np.cumsum(counts, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.ids[self.ends[index - 1] if index else 0 : self.ends[index]]

    def of(self, texts: np.ndarray) -> np.ndarray:
        """The ids of these texts, concatenated."""
        counts = np.diff(self.ends, prepend=0)[texts]
        return self.ids[spans(self.ends[texts] - counts, counts)]

    def text(self, index: int) -> str:
        """The phoneme string of a text, which is the talker's input."""
        return to_phonemes(self[index])


def spans(firsts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Indices first … first + count - 1 of each span, concatenated."""
    return np.arange(int(counts.sum())) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)


def read_timings(folder: Path, kind: str) -> Timings:
    """All utterances of one kind ("durations" or "speech")."""
    return _timings(np.concatenate([np.zeros(0, np.int32), *map(_values, sorted(folder.glob(f"{kind}-*.i32")))]))


def read_audio(folder: Path) -> np.ndarray:
    """The samples of all utterances with audio, int16, in the order of read_timings."""
    return np.concatenate([np.fromfile(path, np.int16) for path in sorted(folder.glob("speech-*.i16"))])


def _values(path: Path) -> np.ndarray:
    return np.fromfile(path, np.int32)


def _timings(values: np.ndarray) -> Timings:
    """The complete records."""
    heads, at = [], 0
    while at + HEADER <= len(values):
        size = HEADER + int(values[at + 1]) + (1 + UNITS_PER_FRAME) * int(values[at + 2])
        if at + size > len(values):
            break
        heads.append(at)
        at += size
    head = np.array(heads, np.int64)
    texts, counts, frames = (values[head + part].astype(np.int64) for part in range(HEADER))
    parts = (head + HEADER, counts), (head + HEADER + counts, frames)
    last = head + HEADER + counts + frames, frames * UNITS_PER_FRAME
    return Timings(texts, counts, frames, *(values[spans(*part)] for part in (*parts, last)))


def speak(arguments: argparse.Namespace) -> None:
    """Run the workers until all texts are done or the time is over."""
    if arguments.command == "speech" and not any(arguments.work.glob("durations-*.i32")):
        raise SystemExit("there are no timed texts: run `corpus durations` first")
    deadline = time.time() + 60 * arguments.minutes
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_work, args=(arguments, number, deadline)) for number in range(arguments.workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    failed = [number for number, worker in enumerate(workers) if worker.exitcode]
    for number in failed:
        recover(arguments.work / f"{arguments.command}-{number:02}.i32")
    if failed:
        _print(f"workers failed: {failed} of {len(workers)}; their finished utterances are kept")
    if len(failed) == len(workers):
        raise SystemExit("all workers failed")
    frames = read_timings(arguments.work, arguments.command).frames
    _print(f"{len(frames)} utterances, {frames.sum() * FRAME / SAMPLE_RATE / 3600:.1f} h")


def _work(arguments: argparse.Namespace, number: int, deadline: float) -> None:
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    sound = arguments.command == "speech"
    worker = Worker(arguments.work, arguments.teacher, sound, arguments.batch)
    path = arguments.work / f"{arguments.command}-{number:02}.i32"
    done = recover(path)
    share = worker.texts[number :: arguments.workers]
    texts = [index for index in share if index < arguments.limit and index not in done]
    logged, seconds, began = time.time(), 0.0, time.time()
    with path.open("ab") as records, path.with_suffix(".i16").open("ab") as audio:
        for block in blocks(texts, BLOCK if sound else TIMED_BLOCK):
            for utterance, samples in worker.utterances(block, deadline):
                if samples is not None:
                    audio.write(samples.tobytes())
                records.write(utterance.record())
                seconds += len(utterance.advance) * FRAME / SAMPLE_RATE
                if time.time() - logged > PROGRESS:
                    logged = time.time()
                    audio.flush()
                    records.flush()
                    if number == 0:
                        _print(f"worker 0: {seconds:.0f} s of speech, {seconds / (logged - began):.0f} × real time")
            if time.time() > deadline:
                break


def recover(path: Path) -> set[int]:
    """Indices of finished texts; the incomplete output of a killed worker is truncated."""
    if not path.exists():
        return set()
    timings, audio = _timings(_values(path)), path.with_suffix(".i16")
    if path.name.startswith("speech"):
        there = audio.stat().st_size if audio.exists() else 0
        sizes = np.cumsum(timings.frames) * FRAME * BYTES
        timings = timings[: int((sizes <= there).sum())]
        if len(timings):
            os.truncate(audio, int(sizes[len(timings) - 1]))
        else:
            audio.unlink(missing_ok=True)
    values = HEADER * len(timings) + sum(map(len, (timings.durations, timings.advance, timings.loudness)))
    os.truncate(path, values * np.dtype(np.int32).itemsize)
    return set(timings.texts.tolist())


def blocks(texts: list[int], size: int) -> Iterator[list[int]]:
    """Blocks of `size` texts; larger blocks have more texts of equal length."""
    for first in range(0, len(texts), size):
        yield texts[first : first + size]


class Worker:
    """The teacher and its voices. Texts with equal phoneme counts are timed in one batch.

    Prosody and audio are computed in batches of texts with equal unit counts. Audio has the durations and the pitch of
    the timed texts, so that codes and audio agree.
    """

    def __init__(self, work: Path, teacher: Path, sound: bool, batch: int) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.phonemes = Phonemes(work)
        self.batch = batch if sound else TIMED_BATCH
        self.teacher = Teacher(teacher, self.device, sound)
        self.styles = read_styles(teacher).to(self.device)
        self.timings = read_timings(work, "durations") if sound else None
        self.texts = sorted(range(len(self.phonemes)) if self.timings is None else self.timings.texts.tolist())

    def utterances(self, block: list[int], deadline: float) -> Iterator[tuple[TimedUtterance, np.ndarray | None]]:
        """Timed utterances, with audio if there are timings."""
        durations, states, rows = {}, [], {}
        count = 0
        for group in alike(block, {index: len(self.phonemes[index]) for index in block}, TIMED_BATCH):
            if time.time() > deadline:
                return
            ids = torch.from_numpy(np.stack([self.phonemes[index] for index in group]).astype(np.int64))
            made = self.teacher.time(ids, self._style(group))
            states.append([part.transpose(1, 2).flatten(0, 1) for part in made.known])
            for index, times in zip(group, made.durations.cpu().numpy(), strict=True):
                durations[index] = times
                rows[index] = np.arange(count, count := count + len(times))
        known = [torch.cat(parts) for parts in zip(*states, strict=True)]
        states.clear()
        stored = {} if self.timings is None else self.timings.utterances(block)
        durations |= {index: utterance.durations for index, utterance in stored.items()}
        for group in alike(block, {index: int(times.sum()) for index, times in durations.items()}, self.batch):
            if time.time() > deadline:
                return
            units = torch.from_numpy(np.stack([np.repeat(rows[index], durations[index]) for index in group]))
            starts = torch.from_numpy(first_unit(np.array([durations[index][0] for index in group])))
            voices = torch.from_numpy(self.phonemes.voices[group].astype(np.int64))
            given = known, units, self._style(group), starts, voices
            if self.timings is None:
                prosody = (part.cpu().numpy() for part in self.teacher.prosody(*given))
                for index, advance, loudness in zip(group, *prosody, strict=True):
                    yield timed(index, durations[index], advance, loudness), None
            else:
                utterances = [stored[index] for index in group]
                frames = max(len(utterance.advance) for utterance in utterances)
                steps = np.stack([_resized(utterance.advance, frames) for utterance in utterances])
                sounds = self.teacher.sound(*given, torch.from_numpy(steps.astype(np.int64)))
                for utterance, start, samples in zip(utterances, starts, sounds, strict=True):
                    kept = cut(samples, int(start), len(utterance.advance))
                    yield utterance, to_int16(kept, int(self.phonemes.voices[utterance.text])).cpu().numpy()

    def _style(self, group: list[int]) -> Tensor:
        voices = torch.from_numpy(self.phonemes.voices[group].astype(np.int64))
        lengths = torch.tensor([len(self.phonemes[index]) for index in group])
        return self.styles[voices.to(self.device), lengths.to(self.device)]


def read_styles(teacher: Path) -> Tensor:
    """Styles by voice and phoneme count; all texts of a voice have the same timbre."""
    files = [np.fromfile(teacher / f"{name}.bin", np.float32).reshape(-1, STYLES) for name in VOICES]
    styles = torch.from_numpy(np.stack(files))
    styles[..., :TIMBRE] = styles[:, TIMBRE_LENGTH : TIMBRE_LENGTH + 1, :TIMBRE].clone()
    return styles


def to_int16(samples: Tensor, voice: int) -> Tensor:
    """Samples as they are stored: without the teacher's tones, and as loud as those of the other voice."""
    level = 10 ** (LEVELS[voice] / 20)
    return ((level * without_tones(samples)).clamp(-1, 1) * 32767).round().to(torch.int16)


def timed(text: int, durations: np.ndarray, advance: np.ndarray, loudness: np.ndarray) -> TimedUtterance:
    """The utterance with the prosody of its frames; loudness has a value for each unit of the teacher's audio."""
    frames = num_frames(durations)
    units = _resized(loudness[first_unit(durations[0]) :], frames * UNITS_PER_FRAME)
    return TimedUtterance(text, durations, _resized(advance, frames), units)


def _resized(values: np.ndarray, size: int) -> np.ndarray:
    """The first values; those after the end of the audio equal the last one."""
    return np.pad(values, (0, size), mode="edge")[:size]


def alike(texts: list[int], sizes: dict[int, int], batch: int) -> Iterator[list[int]]:
    """Batches of texts of equal size in random order, so that an interrupted run has all sizes."""
    by_size: dict[int, list[int]] = {}
    for index in texts:
        by_size.setdefault(sizes[index], []).append(index)
    batches = [group[at : at + batch] for group in by_size.values() for at in range(0, len(group), batch)]
    random.Random(len(texts)).shuffle(batches)
    yield from batches


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
