"""Measures the voice: word errors by whisper-base, ends, pitch, how far apart the voices are, and speed.

    python -m training.check --asr FOLDER [--checkpoint FOLDER] [--json FILE]     (make voice-check)

Every figure is over the sentences of sentences.py, in both voices and both text layouts, with the checkpoint's own
sampling and fixed seeds.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyvox.models.qwen3_tts.checkpoint import load_model
from polyvox.models.qwen3_tts.model import Qwen3TTS
from polyvox.models.qwen3_tts.tokenizer import TextTokenizer
from polyvox.models.request import Layout
from training.asr import Errors, Recogniser, rate_of, word_errors
from training.sentences import DEVELOPMENT, TEST
from training.speaking import Said, say_all
from training.voices import median_pitch, voice_distance

VOICE = Path(__file__).parents[1] / "src/polyvox/assets/voice"
LAYOUTS: tuple[Layout, ...] = ("whole", "streaming")
# Seconds of speech for a text of so many characters, fitted on the teacher's 20,000 utterances.
BASE_SECONDS, SECONDS_PER_CHARACTER = 0.13, 0.064
SHORTEST, LONGEST = 0.6, 1.7  # of what is expected; beyond, speech was cut off or ran away
BATCH = 50


def lengths_off(text: str, said: Said, rate: int) -> str | None:
    """Whether a sentence ran away or was cut off, by its length."""
    expected = BASE_SECONDS + SECONDS_PER_CHARACTER * len(text)
    seconds = len(said.samples) / rate
    if not said.ended or seconds > LONGEST * expected:
        return "runaway"
    return "cut off" if seconds < SHORTEST * expected else None


class Check:
    def __init__(self, folder: Path, asr: Path, sentences: int) -> None:
        self.model: Qwen3TTS = load_model(folder, torch.device("cpu"), torch.float32)
        self.tokenizer = TextTokenizer(folder, self.model.config)
        self.recogniser = Recogniser(asr)
        self.rate = self.model.config.codec.sample_rate
        self.test, self.more = TEST[:sentences], DEVELOPMENT[: max(1, sentences // 4)]
        self.samples: dict[str, list[np.ndarray]] = {}

    def run(self) -> dict[str, Any]:
        found: dict[str, Any] = {"sentences": len(self.test), "off": []}
        total = 0
        for layout in LAYOUTS:
            for voice in self.model.config.talker.speakers:
                said = self.say([*self.test, *self.more], voice, layout)
                total += len(said)
                for text, one in zip([*self.test, *self.more], said, strict=True):
                    problem = lengths_off(text, one, self.rate)
                    if problem:
                        found["off"].append([problem, voice, layout, text])
                found[f"wer {layout} {voice}"] = self.errors(f"{layout} {voice}", said[: len(self.test)])
                if layout == "whole":
                    self.samples[voice] = [one.samples for one in said[:40]]
                tell(f"{layout} {voice}: {100 * found[f'wer {layout} {voice}']:.1f} % word errors")
        found["spoken"] = total
        for voice, samples in self.samples.items():
            found[f"pitch {voice}"] = median_pitch(samples, self.rate)
        found |= voice_distance(list(self.samples.values()), self.rate)
        return found

    def say(self, texts: list[str], voice: str, layout: Layout) -> list[Said]:
        made: list[Said] = []
        for first in range(0, len(texts), BATCH):
            part = texts[first : first + BATCH]
            sampling = self.model.config.sampling
            made += say_all(self.model, self.tokenizer, part, [voice] * len(part), layout, sampling, seed=first)
        return made

    def errors(self, name: str, said: list[Said]) -> float:
        found: list[Errors] = []
        for text, one in zip(self.test, said, strict=True):
            heard = self.recogniser(one.samples, self.rate)
            found.append(word_errors(text, heard))
            if found[-1].errors:
                tell(f"  {name}: {text} | {heard}")
        return rate_of(found)


def real_time_factor(folder: Path, texts: list[str]) -> float:
    """Seconds of work for a second of speech: one stream through the engine, after one to warm up."""
    from polyvox import load

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


def tell(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asr", type=Path, required=True, help="folder of whisper-base as ONNX")
    parser.add_argument("--checkpoint", type=Path, default=VOICE)
    parser.add_argument("--sentences", type=int, default=len(TEST))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    speed = real_time_factor(arguments.checkpoint, TEST[:8])
    tell(f"real-time factor, one stream: {speed:.2f}")
    found = Check(arguments.checkpoint, arguments.asr, arguments.sentences).run() | {"real-time factor": speed}
    for name, value in found.items():
        tell(f"{name:28} {value:.3f}" if isinstance(value, float) else f"{name:28} {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
