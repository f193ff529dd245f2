# SPDX-License-Identifier: Apache-2.0
"""Compare sampling settings on the development sentences, each sentence with the same seed in all of them.

    python -m training.sampling --asr FOLDER --out rows.jsonl [--sentences 100] [--settings own '0.3 / 0.6' …]

Voices and layouts alternate over the sentences. The table gives, for each setting, the negative log-likelihood in nats
per word and the word error rate; and both minus the checkpoint's own setting, with the standard error of the
difference. An interrupted run resumes.
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
from training.rates import ratio
from training.recordings import ENGINE, LAYOUTS, spoken
from training.scorer import TextScorer
from training.sentences import DEVELOPMENT

Row = dict[str, Any]
OWN = "own"
# Code 0 / codes 1 and up: differences to the checkpoint's own sampling.
SETTINGS: dict[str, dict[str, float]] = {
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


def rows_of(tts: TTS, scorer: TextScorer, setting: str, count: int) -> list[Row]:
    """One row for each sentence."""
    sampling, voices = replace(tts.model.info().sampling, **SETTINGS[setting]), tts.voices  # type: ignore[arg-type]
    requests = [
        Request(text, voices[i % 2], seed=i, layout=LAYOUTS[i // 2 % 2], sampling=sampling, whole_file=True)
        for i, text in enumerate(DEVELOPMENT[:count])
    ]
    rows = []
    for sentence, one in enumerate(spoken(tts, requests)):
        cost, transcript = scorer(one.samples, tts.sample_rate, one.text)
        errors = word_errors(one.text, transcript)
        row = {"setting": setting, "sentence": sentence, "cost": cost, "errors": errors.errors, "words": errors.words}
        rows.append(row | {"text": one.text, "transcript": transcript, "reason": one.reason})
    return rows


def table(rows: Sequence[Row]) -> list[str]:
    """One line per setting; differences are over the sentences that both have."""
    by_setting: dict[str, dict[int, Row]] = {}
    for row in rows:
        by_setting.setdefault(row["setting"], {})[row["sentence"]] = row
    own = by_setting.get(OWN, {})
    lines = []
    for setting, found in by_setting.items():
        both = [sentence for sentence in found if sentence in own]
        parts = [f"{setting:20} {len(found):4}"]
        for name, unit, form in (("cost", 1, ".3f"), ("errors", 100, ".1f")):
            here = ratio([row[name] for row in found.values()], [row["words"] for row in found.values()])
            parts.append(f"{name} {unit * here.value:{form}} ± {unit * here.error:{form}}")
            if both and setting != OWN:
                more = [found[sentence][name] - own[sentence][name] for sentence in both]
                less = ratio(more, [found[sentence]["words"] for sentence in both])
                parts.append(f"({unit * less.value:+{form}} ± {unit * less.error:{form}})")
        lines.append(" ".join(parts))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asr", type=Path, required=True, help="folder of whisper-base as ONNX")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=len(DEVELOPMENT))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    rows = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    scorer = TextScorer(arguments.asr)
    with load(device="cpu", config=ENGINE) as tts:
        for setting in arguments.settings:
            if not any(row["setting"] == setting for row in rows):
                made = rows_of(tts, scorer, setting, arguments.sentences)
                rows += made
                with arguments.out.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in made)
    print("\n".join(table(rows)))  # noqa: T201


if __name__ == "__main__":
    main()
