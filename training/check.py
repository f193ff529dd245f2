# SPDX-License-Identifier: Apache-2.0
"""Measure the voice: word errors, lost ends, length, MOS, pitch, loudness, distance of voices and real-time factor.

    python -m training.check --asr FOLDER [--checkpoint FOLDER] [--sentences N] [--json FILE]     (make voice-check)

Word errors and lost ends are counted on the 100 test sentences, whole and live, and on four paragraphs of prose; wrong
lengths on 400 more sentences; MOS on 20 sentences, where the package distillmos can be loaded. Both voices speak with
the checkpoint's own sampling and fixed seeds. --sentences takes the first N test sentences and reduces the rest in
proportion. training.recordings and training.score do the same in two steps, on two machines.
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyvox import load
from polyvox.audio.loudness import integrated_loudness
from polyvox.bench.prompts import prompts
from polyvox.bench.wer import WordErrors
from polyvox.text import split_sentences
from polyvox.tts import EMBEDDED_VOICE
from training.asr import Recogniser
from training.quality import load_mos_predictor
from training.rates import error_rate
from training.recordings import ENGINE, LAYOUTS, Recording, speak
from training.score import report, transcripts
from training.sentences import DEVELOPMENT, PROSE, TEST
from training.voices import median_pitch, voice_distance

# Long texts are spoken sentence by sentence.
PROSE_SENTENCES = [sentence for paragraph in PROSE for sentence in split_sentences(paragraph)]
# Speech length is checked on 500 sentences.
MORE = [*DEVELOPMENT, *prompts()][: 500 - len(TEST)]
# Expected seconds for a text, fitted on 20,000 utterances of the teacher.
BASE_SECONDS, SECONDS_PER_CHARACTER = 0.13, 0.064
MOS_SENTENCES = 20
MIN_LENGTH, MAX_LENGTH = 0.6, 1.7  # relative to the expected length: cut off below, runaway above


def check(folder: Path, asr: Path, sentences: int) -> dict[str, Any]:
    recogniser = Recogniser(asr)
    found: dict[str, Any] = {"sentences": sentences, "spoken": 0, "off": [], "lost ends": []}
    samples: dict[str, list[np.ndarray]] = {}
    with load(folder, "cpu", config=ENGINE) as tts:
        rate = tts.sample_rate
        for layout in LAYOUTS:
            voices: list[list[WordErrors]] = []
            for voice in tts.voices:
                name = f"{layout} {voice}"
                made = speak(tts, TEST[:sentences], voice, layout)
                more = speak(tts, MORE[: 4 * sentences], voice, layout) if layout == "whole" else []
                found["spoken"] += len(made) + len(more)
                found["off"] += [(off, name, one.text) for one in (*made, *more) if (off := length_off(one, rate))]
                recognised = transcripts(recogniser, made, rate, name)
                found["lost ends"] += [(name, one.text, one.recognised) for one in recognised if not one.has_end]
                voices.append([one.errors for one in recognised])
                add_rate(found, name, voices[-1])
                if layout == "whole":
                    samples[voice] = [one.samples for one in made[:40]]
                    prose = speak(
                        tts, PROSE_SENTENCES[: max(1, len(PROSE_SENTENCES) * sentences // len(TEST))], voice, layout
                    )
                    recognised = transcripts(recogniser, prose, rate, f"prose {voice}")
                    found["lost ends"] += [("prose", one.text, one.recognised) for one in recognised if not one.has_end]
                    add_rate(found, f"prose {voice}", [one.errors for one in recognised])
            # Errors of the two voices on one sentence are correlated: a pair is one sample.
            pairs = [
                WordErrors(sum(e.errors for e in one), sum(e.words for e in one)) for one in zip(*voices, strict=True)
            ]
            add_rate(found, layout, pairs)
    predict = load_mos_predictor()
    for voice, pieces in samples.items():
        found[f"pitch {voice}"] = median_pitch(pieces, rate)
        found[f"loudness {voice}"] = integrated_loudness(np.concatenate(pieces), rate)
        if predict:
            found[f"mos {voice}"] = float(np.mean([predict(one, rate) for one in pieces[:MOS_SENTENCES]]))
    return found | voice_distance(list(samples.values()), rate)


def length_off(one: Recording, rate: int) -> str | None:
    """ "runaway" or "cut off" by finish reason and length, else None."""
    expected = BASE_SECONDS + SECONDS_PER_CHARACTER * len(one.text)
    seconds = len(one.samples) / rate
    if one.reason != "stop" or seconds > MAX_LENGTH * expected:
        return "runaway"
    return "cut off" if seconds < MIN_LENGTH * expected else None


def add_rate(found: dict[str, Any], name: str, errors: list[WordErrors]) -> None:
    rate = error_rate(errors)
    found[f"word errors {name}"] = asdict(rate)
    report(f"{name}: {rate.percent} of {sum(one.words for one in errors)} words")


def real_time_factor(folder: Path, texts: list[str]) -> float:
    """Real-time factor of one stream through the engine, after a warm-up."""
    torch.set_num_threads(2)
    with load(folder) as speech:
        speech.say(texts[0], seed=0)
        spent = made = 0.0
        for seed, text in enumerate(texts):
            began = time.perf_counter()
            audio = speech.say(text, seed=seed)
            spent += time.perf_counter() - began
            made += len(audio.samples) / speech.sample_rate
    return spent / made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asr", type=Path, required=True, help="folder of whisper-base as ONNX")
    parser.add_argument("--checkpoint", type=Path, default=EMBEDDED_VOICE)
    parser.add_argument("--sentences", type=int, default=len(TEST))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    speed = real_time_factor(arguments.checkpoint, TEST[:8])
    report(f"real-time factor, one stream: {speed:.2f}")
    found = check(arguments.checkpoint, arguments.asr, arguments.sentences) | {"real-time factor": speed}
    for name, value in found.items():
        report(f"{name:28} {value:.3f}" if isinstance(value, float) else f"{name:28} {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
