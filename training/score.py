"""Word errors of recordings that training.recordings made, here or on another machine.

    python -m training.score --asr FOLDER RECORDINGS [BASE] [--json FILE]

With two folders, also how they differ on the same sentences: RECORDINGS less BASE, with its own standard error.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from polyvox.bench.words import Errors, word_errors
from training.asr import Recogniser
from training.rates import Rate, difference, rate_of
from training.recordings import Recording, read


def errors_of(recogniser: Recogniser, recordings: list[Recording], rate: int, name: str) -> list[Errors]:
    """Word errors of each, and a line for those that have some."""
    found: list[Errors] = []
    for one in recordings:
        heard = recogniser(one.samples, rate)
        found.append(word_errors(one.text, heard))
        if found[-1].errors:
            tell(f"  {name}: {one.text} | {heard}")
    return found


def score(recogniser: Recogniser, folder: Path) -> dict[str, list[Errors]]:
    """By what the files are called, such as whole-heart."""
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise SystemExit(f"{folder}: no recordings here; training.recordings makes them")
    return {path.stem: errors_of(recogniser, *read(path), f"{folder.name} {path.stem}") for path in files}


def tell(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("base", type=Path, nargs="?")
    parser.add_argument("--asr", type=Path, required=True, help="folder of whisper-base as ONNX")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    recogniser = Recogniser(arguments.asr)
    found = score(recogniser, arguments.recordings)
    figures: dict[str, Rate] = {name: rate_of(errors) for name, errors in found.items()}
    if arguments.base:
        base = score(recogniser, arguments.base)
        if base.keys() != found.keys():
            raise SystemExit(f"{arguments.base} has {', '.join(base)}; {arguments.recordings} has {', '.join(found)}")
        figures |= {f"{name} of base": rate_of(errors) for name, errors in base.items()}
        figures |= {f"{name} less base": difference(found[name], base[name]) for name in found}
        every, other = ([one for name in found for one in kind[name]] for kind in (found, base))
        figures["all less base"] = difference(every, other)
    for name, figure in figures.items():
        tell(f"{name:32} {figure}")
    if arguments.json:
        arguments.json.write_text(json.dumps({name: asdict(rate) for name, rate in figures.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
