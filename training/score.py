# SPDX-License-Identifier: Apache-2.0
"""Word error rate of recordings by training.recordings, made here or on another machine.

    python -m training.score --asr FOLDER RECORDINGS [BASE] [--json FILE]

With two folders, also their difference on the same sentences, RECORDINGS minus BASE, with its standard error.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from polyvox.bench.wer import WordErrors, normalise, word_errors
from training.asr import Recogniser
from training.rates import Estimate, difference, error_rate
from training.recordings import Recording, load_recordings

END_WORDS = 3


@dataclass(frozen=True, slots=True)
class Transcript:
    """A recorded text, what the recogniser hears, and the word errors."""

    text: str
    recognised: str
    errors: WordErrors

    @property
    def has_end(self) -> bool:
        """Whether the last three words are recognised at the end; one of them may be recognised wrongly."""
        expected, found = normalise(self.text)[-END_WORDS:], normalise(self.recognised)[-END_WORDS - 2 :]
        return sum(word in found for word in expected) >= max(1, len(expected) - 1)


def transcripts(recogniser: Recogniser, recordings: list[Recording], rate: int, name: str) -> list[Transcript]:
    """Transcripts of all recordings; sentences with errors are printed."""
    found: list[Transcript] = []
    for one in recordings:
        recognised = recogniser(one.samples, rate)
        found.append(Transcript(one.text, recognised, word_errors(one.text, recognised)))
        if found[-1].errors.errors:
            report(f"  {name}: {one.text} | {recognised}")
    return found


def errors_of(recogniser: Recogniser, recordings: list[Recording], rate: int, name: str) -> list[WordErrors]:
    return [one.errors for one in transcripts(recogniser, recordings, rate, name)]


def recordings_in(folder: Path) -> dict[str, tuple[list[Recording], int]]:
    """Recordings by file name, such as whole-heart."""
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise SystemExit(f"{folder}: no recordings found; create them with training.recordings")
    return {path.stem: load_recordings(path) for path in files}


def report(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("base", type=Path, nargs="?")
    parser.add_argument("--asr", type=Path, required=True, help="folder of whisper-base as ONNX")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folders = [folder for folder in (arguments.recordings, arguments.base) if folder]
    given = [recordings_in(folder) for folder in folders]
    texts = [{name: [one.text for one in said] for name, (said, _) in kind.items()} for kind in given]
    if texts[0] != texts[-1]:
        raise SystemExit(f"{folders[0]} and {folders[-1]} must have the same files with the same sentences")
    recogniser = Recogniser(arguments.asr)
    found, *base = (
        {name: errors_of(recogniser, *said, f"{folder.name} {name}") for name, said in kind.items()}
        for folder, kind in zip(folders, given, strict=True)
    )
    figures: dict[str, Estimate] = {name: error_rate(errors) for name, errors in found.items()}
    for other in base:
        figures |= {f"{name} of base": error_rate(errors) for name, errors in other.items()}
        figures |= {f"{name} less base": difference(found[name], other[name]) for name in found}
        every, all_base = ([one for name in found for one in kind[name]] for kind in (found, other))
        figures["all less base"] = difference(every, all_base)
    for name, figure in figures.items():
        report(f"{name:32} {figure.percent}")
    if arguments.json:
        arguments.json.write_text(json.dumps({name: asdict(rate) for name, rate in figures.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
