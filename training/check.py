"""Measures the voice: word errors by whisper-base, ends, pitch, how far apart the voices are, and speed.

    python -m training.check --asr FOLDER [--checkpoint FOLDER] [--json FILE]     (make voice-check)

Word errors are over the 100 test sentences, ends over 400 more, in both voices, with the checkpoint's own sampling and
fixed seeds, through the engine. training.recordings and training.score are its two halves, for two machines.
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
from polyvox.bench.prompts import prompts
from polyvox.bench.wer import WordErrors
from polyvox.tts import EMBEDDED_VOICE
from training.asr import Recogniser
from training.rates import rate_of
from training.recordings import ENGINE, LAYOUTS, Recording, speak
from training.score import errors_of, tell
from training.sentences import DEVELOPMENT, TEST
from training.voices import median_pitch, voice_distance

# Whether speech ends where it should is asked of 500 sentences.
MORE = [*DEVELOPMENT, *prompts()][: 500 - len(TEST)]
# Seconds of speech for a text of so many characters, fitted on the teacher's 20,000 utterances.
BASE_SECONDS, SECONDS_PER_CHARACTER = 0.13, 0.064
SHORTEST, LONGEST = 0.6, 1.7  # of what is expected; beyond, speech was cut off or ran away


def check(folder: Path, asr: Path, sentences: int) -> dict[str, Any]:
    recogniser = Recogniser(asr)
    found: dict[str, Any] = {"sentences": sentences, "spoken": 0, "off": []}
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
                heard = errors_of(recogniser, made, rate, name)
                voices.append(heard)
                tell_rate(found, name, heard)
                if layout == "whole":
                    samples[voice] = [one.samples for one in made[:40]]
            # A sentence that is hard in one voice is hard in the other: together they are one draw.
            pairs = [
                WordErrors(sum(e.errors for e in one), sum(e.words for e in one)) for one in zip(*voices, strict=True)
            ]
            tell_rate(found, layout, pairs)
    for voice, pieces in samples.items():
        found[f"pitch {voice}"] = median_pitch(pieces, rate)
    return found | voice_distance(list(samples.values()), rate)


def length_off(one: Recording, rate: int) -> str | None:
    """Whether a sentence ran away or was cut off, by its end and its length."""
    expected = BASE_SECONDS + SECONDS_PER_CHARACTER * len(one.text)
    seconds = len(one.samples) / rate
    if one.reason != "stop" or seconds > LONGEST * expected:
        return "runaway"
    return "cut off" if seconds < SHORTEST * expected else None


def tell_rate(found: dict[str, Any], name: str, errors: list[WordErrors]) -> None:
    rate = rate_of(errors)
    found[f"word errors {name}"] = asdict(rate)
    tell(f"{name}: {rate} of {sum(one.words for one in errors)} words")


def real_time_factor(folder: Path, texts: list[str]) -> float:
    """Seconds of work for a second of speech: one stream through the engine, after one to warm up."""
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
    tell(f"real-time factor, one stream: {speed:.2f}")
    found = check(arguments.checkpoint, arguments.asr, arguments.sentences) | {"real-time factor": speed}
    for name, value in found.items():
        tell(f"{name:28} {value:.3f}" if isinstance(value, float) else f"{name:28} {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
