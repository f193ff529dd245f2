# SPDX-License-Identifier: Apache-2.0
"""Build the corpus: texts and phonemes, then phoneme durations and audio from the teacher.

    python -m training.corpus texts --wordnet DIR --out DIR        # CPU
    python -m training.corpus durations --work DIR --minutes M     # GPU; durations only, much cheaper
    python -m training.corpus speech --work DIR --minutes M        # GPU; durations and audio

Each command resumes where it was stopped: a worker appends to its own files.
"""

import argparse
import json
import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.symbols import to_ids, to_phonemes
from training.teacher import Teacher
from training.units import (
    FRAME,
    SAMPLE_RATE,
    UNITS_PER_FRAME,
    Span,
    cut,
    first_unit,
    speech_span,
    timed_span,
    without_tones,
)

VOICES = ("af_heart", "am_michael")
STYLES, TIMBRE = 256, 128  # size of a style, and of its first part, which only the synthesis reads
TIMBRE_LENGTH = 100  # phoneme count whose timbre all texts have
MAX_PHONEMES = 200
PROGRESS = 15.0  # seconds
BLOCK, TIMED_BLOCK, TIMED_BATCH = 4096, 16_384, 128
BYTES = 2  # of a sample


@dataclass(frozen=True, slots=True)
class TimedUtterance:
    """One utterance: text index, duration of each phoneme in units, the kept span and, with audio, its pitch."""

    index: int
    durations: np.ndarray
    span: Span
    advance: np.ndarray | None = None  # phase steps of each frame


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
            self._ids, counts, self.voices = arrays["ids"], arrays["counts"], arrays["voices"]
        self._ends = np.cumsum(counts, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> np.ndarray:
        return self._ids[self._ends[index - 1] if index else 0 : self._ends[index]]

    def text(self, index: int) -> str:
        """The phoneme string of a text, which is the talker's input."""
        return to_phonemes(self[index])


def frames_of(advance: np.ndarray, span: Span) -> np.ndarray:
    """The phase steps of the frames of a span, of which the last may be after the end of the audio."""
    return np.pad(advance, (0, span.frames), mode="edge")[: span.frames]


def read_timed(folder: Path, kind: str) -> Iterator[tuple[TimedUtterance, Path]]:
    """All utterances of one kind ("durations" or "speech") and, for speech, the file with the audio."""
    for path in sorted(folder.glob(f"{kind}-*.jsonl")):
        for line in path.read_text().splitlines():
            index, start, units, durations, advance = json.loads(line)
            yield (
                TimedUtterance(index, np.array(durations), Span(start, units), _array(advance)),
                path.with_suffix(".i16"),
            )


def speak(arguments: argparse.Namespace) -> None:
    """Run the workers until all texts are done or the time is over."""
    deadline = time.time() + 60 * arguments.minutes
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_work, args=(arguments, number, deadline)) for number in range(arguments.workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    failed = [number for number, worker in enumerate(workers) if worker.exitcode]
    for number in failed:
        recover(arguments.work / f"{arguments.command}-{number:02}.jsonl")
    if failed:
        _print(f"workers failed: {failed} of {len(workers)}; their finished utterances are kept")
    if len(failed) == len(workers):
        raise SystemExit("all workers failed")
    found = [timed for timed, _ in read_timed(arguments.work, arguments.command)]
    hours = sum(timed.span.units for timed in found) / UNITS_PER_FRAME * FRAME / SAMPLE_RATE / 3600
    _print(f"{len(found)} utterances, {hours:.1f} h")


def _work(arguments: argparse.Namespace, number: int, deadline: float) -> None:
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    worker = Worker(arguments.work, arguments.teacher, arguments.command == "speech", arguments.batch)
    lines = arguments.work / f"{arguments.command}-{number:02}.jsonl"
    texts = range(min(len(worker.phonemes), arguments.limit))[number :: arguments.workers]
    logged, seconds, began = time.time(), 0.0, time.time()
    done = recover(lines)
    with lines.open("a") as log, lines.with_suffix(".i16").open("ab") as audio:
        for block in blocks([index for index in texts if index not in done], BLOCK if worker.sound else TIMED_BLOCK):
            for timed, samples in worker.utterances(block, deadline):
                if samples is not None:
                    audio.write(samples.tobytes())
                advance = None if timed.advance is None else timed.advance.tolist()
                row = [timed.index, timed.span.start, timed.span.units, timed.durations.tolist(), advance]
                log.write(json.dumps(row) + "\n")
                seconds += timed.span.frames * FRAME / SAMPLE_RATE
                if time.time() - logged > PROGRESS:
                    logged = time.time()
                    audio.flush()
                    log.flush()
                    if number == 0:
                        _print(f"worker 0: {seconds:.0f} s of speech, {seconds / (logged - began):.0f} × real time")
            if time.time() > deadline:
                break


def recover(lines: Path) -> set[int]:
    """Indices of finished texts; the incomplete output of a killed worker is truncated."""
    audio = lines.with_suffix(".i16")
    if not lines.exists():
        return set()
    sound = lines.name.startswith("speech")
    there = audio.stat().st_size if audio.exists() else 0
    done, kept, size = set(), [], 0
    for line in lines.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        index, _, units, *_ = json.loads(line)
        length = units // UNITS_PER_FRAME * FRAME * BYTES if sound else 0
        if size + length > there:
            break
        size += length
        kept.append(line)
        done.add(index)
    lines.write_text("".join(kept))
    if sound:
        os.truncate(audio, size)
    return done


def blocks(texts: list[int], size: int) -> Iterator[list[int]]:
    """Blocks of `size` texts; larger blocks have more texts of equal length."""
    for first in range(0, len(texts), size):
        yield texts[first : first + size]


class Worker:
    """The teacher and its voices. Texts with equal phoneme counts are timed together, equal unit counts synthesised."""

    def __init__(self, work: Path, teacher: Path, sound: bool, batch: int) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.phonemes = Phonemes(work)
        self.sound, self.batch = sound, batch
        self.teacher = Teacher(teacher, self.device, sound)
        files = [np.fromfile(teacher / f"{name}.bin", np.float32).reshape(-1, STYLES) for name in VOICES]
        self.styles = torch.from_numpy(np.stack(files)).to(self.device)

    def utterances(self, block: list[int], deadline: float) -> Iterator[tuple[TimedUtterance, np.ndarray | None]]:
        durations: dict[int, np.ndarray] = {}
        known: dict[int, tuple[Tensor, ...]] = {}
        lengths = {index: len(self.phonemes[index]) for index in block}
        for group in alike(block, lengths, TIMED_BATCH):
            if time.time() > deadline:
                return
            ids = torch.from_numpy(np.stack([self.phonemes[index] for index in group]).astype(np.int64))
            made = self.teacher.time(ids, self._style(group))
            times = made.durations.cpu().numpy()
            for row, index in enumerate(group):
                durations[index] = times[row]
                known[index] = tuple(part[row] for part in made.known)
                if not self.sound:
                    yield (
                        TimedUtterance(index, times[row], timed_span(times[row], int(self.phonemes.voices[index]))),
                        None,
                    )
        if not self.sound:
            return
        units = {index: int(times.sum()) for index, times in durations.items()}
        for group in alike(block, units, self.batch):
            if time.time() > deadline:
                return
            spread = [torch.from_numpy(durations[index]).to(self.device) for index in group]
            starts = torch.tensor([first_unit(durations[index]) for index in group])
            voices = torch.from_numpy(self.phonemes.voices[group].astype(np.int64))
            features = [known.pop(index) for index in group]
            sounds, pitch = self.teacher.sound(spread, features, self._style(group), starts, voices)
            for index, samples, advance in zip(group, sounds, pitch.cpu().numpy(), strict=True):
                span = speech_span(durations[index], samples)
                kept = (without_tones(cut(samples, span)).clamp(-1, 1) * 32767).round().to(torch.int16)
                yield TimedUtterance(index, durations[index], span, frames_of(advance, span)), kept.cpu().numpy()

    def _style(self, group: list[int]) -> Tensor:
        voices = torch.from_numpy(self.phonemes.voices[group].astype(np.int64))
        lengths = torch.tensor([len(self.phonemes[index]) for index in group])
        styles = self.styles[voices.to(self.device), lengths.to(self.device)].clone()
        styles[:, :TIMBRE] = self.styles[voices.to(self.device), TIMBRE_LENGTH, :TIMBRE]
        return styles


def alike(texts: list[int], sizes: dict[int, int], batch: int) -> Iterator[list[int]]:
    """Batches of texts of equal size in random order, so that an interrupted run has all sizes."""
    by_size: dict[int, list[int]] = {}
    for index in texts:
        by_size.setdefault(sizes[index], []).append(index)
    batches = [group[at : at + batch] for group in by_size.values() for at in range(0, len(group), batch)]
    random.Random(len(texts)).shuffle(batches)
    yield from batches


def _array(values: list[int] | None) -> np.ndarray | None:
    return None if values is None else np.array(values)


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
