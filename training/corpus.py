"""The corpus: texts and phonemes, then the teacher's timing of all of them and its sound of many.

    python -m training.corpus texts --wordnet DIR --out DIR        # CPU; needs kokoro-onnx for phonemes
    python -m training.corpus durations --work DIR --minutes M     # GPU; timing alone, a hundred times cheaper
    python -m training.corpus speech --work DIR --minutes M        # GPU; sound, from the other end of the list

Each command goes on where it was stopped: a worker appends to its own files.
"""

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from training.teacher import Teacher
from training.units import FRAME, SAMPLE_RATE, UNITS_PER_FRAME, Span, cut, spoken_span, timed_span

VOICES = ("af_heart", "am_michael")
STYLES = 256
LONGEST_PHONEMES = 200
PROGRESS = 15.0  # seconds


@dataclass(frozen=True, slots=True)
class Timed:
    """One utterance: which text, when each phoneme is said, what is kept of it, and where its sound begins."""

    index: int
    durations: np.ndarray
    span: Span


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    texts = commands.add_parser("texts")
    texts.add_argument("--wordnet", type=Path, required=True, help="folder with data.noun, cntlist.rev …")
    texts.add_argument("--out", type=Path, required=True)
    texts.add_argument("--count", type=int, default=130_000)
    for name in ("durations", "speech"):
        command = commands.add_parser(name)
        command.add_argument("--work", type=Path, required=True, help="corpus folder, with phonemes.npz in it")
        command.add_argument("--teacher", type=Path, required=True, help="the packed teacher")
        command.add_argument("--minutes", type=float, default=9.0)
        command.add_argument("--workers", type=int, default=14)
        command.add_argument("--limit", type=int, default=10**9, help="at most so many utterances a worker")
    arguments = parser.parse_args()
    if arguments.command == "texts":
        write_texts(arguments.wordnet, arguments.out, arguments.count)
    else:
        speak(arguments)


def write_texts(wordnet: Path, out: Path, count: int) -> None:
    """texts.txt, one a line, and phonemes.npz: the same in the teacher's ids, with a voice each."""
    from kokoro_onnx.tokenizer import Tokenizer

    from training.texts import sentences

    tokenizer = Tokenizer()
    pick = np.random.default_rng(1)
    kept, phonemes = [], []
    for text in sentences(wordnet, count):
        ids = tokenizer.tokenize(tokenizer.phonemize(text, "en-us"))
        if 2 <= len(ids) <= LONGEST_PHONEMES:
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
    """What the teacher is given, by index."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / "phonemes.npz") as arrays:
            self._ids, counts, self.voices = arrays["ids"], arrays["counts"], arrays["voices"]
        self._ends = np.cumsum(counts, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> np.ndarray:
        return self._ids[self._ends[index - 1] if index else 0 : self._ends[index]]


def read_timed(folder: Path, kind: str) -> Iterator[tuple[Timed, Path]]:
    """All utterances of one kind ("durations" or "speech") and, for speech, the file that holds the sound."""
    for path in sorted(folder.glob(f"{kind}-*.jsonl")):
        for line in path.read_text().splitlines():
            index, start, units, durations = json.loads(line)
            yield Timed(index, np.array(durations), Span(start, units)), path.with_suffix(".i16")


def speak(arguments: argparse.Namespace) -> None:
    """Runs the workers until their list or the time is at its end."""
    deadline = time.time() + 60 * arguments.minutes
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_work, args=(arguments, number, deadline)) for number in range(arguments.workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit(f"workers failed: {[worker.exitcode for worker in workers]}")
    found = [timed for timed, _ in read_timed(arguments.work, arguments.command)]
    hours = sum(timed.span.units for timed in found) / UNITS_PER_FRAME * FRAME / SAMPLE_RATE / 3600
    _say(f"{len(found)} utterances, {hours:.1f} h")


def _work(arguments: argparse.Namespace, number: int, deadline: float) -> None:
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sound = arguments.command == "speech"
    phonemes = Phonemes(arguments.work)
    teacher = Teacher(arguments.teacher, device, sound)
    voices = [
        torch.from_numpy(np.fromfile(arguments.teacher / f"{name}.bin", np.float32).reshape(-1, STYLES)).to(device)
        for name in VOICES
    ]
    lines = arguments.work / f"{arguments.command}-{number:02}.jsonl"
    done = len(lines.read_text().splitlines()) if lines.exists() else 0
    # Sound takes the list from its beginning, timing alone from its end.
    order = range(len(phonemes)) if sound else range(len(phonemes) - 1, -1, -1)
    told, seconds, began = time.time(), 0.0, time.time()
    with lines.open("a") as log, lines.with_suffix(".i16").open("ab") as audio:
        for index in order[number :: arguments.workers][done : arguments.limit]:
            if time.time() > deadline:
                break
            ids = phonemes[index]
            made = teacher(ids.tolist(), voices[phonemes.voices[index]])
            durations = made[0].cpu().numpy().ravel()
            span = spoken_span(durations, made[1].ravel()) if sound else timed_span(durations)
            if sound:
                samples = (cut(made[1].ravel(), span).clamp(-1, 1) * 32767).round().to(torch.int16)
                audio.write(samples.cpu().numpy().tobytes())
            log.write(json.dumps([index, span.start, span.units, durations.tolist()]) + "\n")
            seconds += span.frames * FRAME / SAMPLE_RATE
            if number == 0 and time.time() - told > PROGRESS:
                told = time.time()
                log.flush()
                _say(f"worker 0: {seconds:.0f} s of speech, {seconds / (told - began):.0f} × real time")


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
