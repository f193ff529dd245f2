"""Compares ways of drawing codes on the development sentences, each sentence with the same seed in all of them.

    python -m training.sampling --asr FOLDER --out rows.jsonl [--sentences 100] [--ways own '0.3 / 0.6' …]

Voices and layouts take turns over the sentences. The table gives, for each way, what the true text costs the judge in
nats a word and how many words it gets wrong; and both less the checkpoint's own, with the standard error of the
difference. Goes on where it was stopped.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from polyvox import load
from polyvox.bench.wer import word_errors
from polyvox.models.request import Request
from polyvox.tts import TTS
from training.judge import Judge
from training.rates import ratio
from training.recordings import ENGINE, LAYOUTS, spoken
from training.sentences import DEVELOPMENT

Row = dict[str, Any]
OWN = "own"
# Code 0 / the others: what differs from the checkpoint's own sampling.
WAYS: dict[str, dict[str, float]] = {
    OWN: {},
    "0 / 0": {"temperature": 0, "predictor_temperature": 0},
    "0.15 / 0": {"temperature": 0.15, "predictor_temperature": 0},
    "0.3 / 0": {"temperature": 0.3, "predictor_temperature": 0},
    "0.6 / 0": {"temperature": 0.6, "predictor_temperature": 0},
    "0.6 top-p 0.8 / 0": {"temperature": 0.6, "top_p": 0.8, "predictor_temperature": 0},
    "0.3 / 0.3": {"temperature": 0.3, "predictor_temperature": 0.3},
    "0.3 / 0.6": {"temperature": 0.3, "predictor_temperature": 0.6},
    "0.3 / 0.9": {"temperature": 0.3, "predictor_temperature": 0.9},
    "0.3 / 1 top-k 5": {"temperature": 0.3, "predictor_temperature": 1, "predictor_top_k": 5},
}


def rows_of(tts: TTS, judge: Judge, way: str, count: int) -> list[Row]:
    """One row for each sentence."""
    sampling, voices = replace(tts.speech.info().sampling, **WAYS[way]), tts.voices  # type: ignore[arg-type]
    requests = [
        Request(text, voices[i % 2], seed=i, layout=LAYOUTS[i // 2 % 2], sampling=sampling, whole_file=True)
        for i, text in enumerate(DEVELOPMENT[:count])
    ]
    rows = []
    for place, one in enumerate(spoken(tts, requests)):
        cost, heard = judge(one.samples, tts.sample_rate, one.text)
        errors = word_errors(one.text, heard)
        row = {"way": way, "sentence": place, "cost": cost, "errors": errors.errors, "words": errors.words}
        rows.append(row | {"text": one.text, "heard": heard, "reason": one.reason})
    return rows


def table(rows: Sequence[Row]) -> list[str]:
    """One line a way; differences are over the sentences that both have."""
    by_way: dict[str, dict[int, Row]] = {}
    for row in rows:
        by_way.setdefault(row["way"], {})[row["sentence"]] = row
    own = by_way.get(OWN, {})
    lines = []
    for way, found in by_way.items():
        both = [place for place in found if place in own]
        parts = [f"{way:20} {len(found):4}"]
        for name, unit, form in (("cost", 1, ".3f"), ("errors", 100, ".1f")):
            here = ratio([row[name] for row in found.values()], [row["words"] for row in found.values()])
            parts.append(f"{name} {unit * here.value:{form}} ± {unit * here.error:{form}}")
            if both and way != OWN:
                more = [found[place][name] - own[place][name] for place in both]
                less = ratio(more, [found[place]["words"] for place in both])
                parts.append(f"({unit * less.value:+{form}} ± {unit * less.error:{form}})")
        lines.append(" ".join(parts))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asr", type=Path, required=True, help="folder of whisper-base as ONNX")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=len(DEVELOPMENT))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    rows = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    judge = Judge(arguments.asr)
    with load(device="cpu", config=ENGINE) as tts:
        for way in arguments.ways:
            if not any(row["way"] == way for row in rows):
                made = rows_of(tts, judge, way, arguments.sentences)
                rows += made
                with arguments.out.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in made)
    print("\n".join(table(rows)))  # noqa: T201


if __name__ == "__main__":
    main()
