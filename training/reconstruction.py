"""Measures the codec alone: the teacher says the test sentences, they go through codes and back, whisper writes them.

python -m training.reconstruction --onnx kokoro-fp32.onnx --voices DIR --codec DIR --asr DIR [--samples DIR]
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from polyvox.bench.words import Errors, word_errors
from training.asr import Recogniser
from training.corpus import STYLES, VOICES, Timed
from training.encoder import MARGIN, SpeechEncoder
from training.export import load_decoder
from training.layout import BOOKS, CODE_DIM, FIRST_CODES, REST_CODES
from training.rates import rate_of
from training.sentences import TEST
from training.sound import windows
from training.teacher import DURATIONS
from training.units import FRAME, SAMPLE_RATE, cut, spoken_span


class OnnxTeacher:
    """The teacher as it was published, on the CPU, with its timing as a second output."""

    def __init__(self, onnx_file: Path, voices: Path) -> None:
        import onnx
        import onnxruntime
        from kokoro_onnx.tokenizer import Tokenizer

        graph = onnx.load(onnx_file)
        graph.graph.output.append(onnx.helper.make_tensor_value_info(DURATIONS, onnx.TensorProto.INT64, None))
        timed = onnx_file.with_name("timed.onnx")
        onnx.save(graph, timed)
        self._session: Any = onnxruntime.InferenceSession(timed)
        self._tokenizer = Tokenizer()
        self._voices = [np.fromfile(voices / f"{name}.bin", np.float32).reshape(-1, STYLES) for name in VOICES]

    def __call__(self, text: str, voice: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Phonemes, durations, samples."""
        ids = self._tokenizer.tokenize(self._tokenizer.phonemize(text, "en-us"))
        given = {"input_ids": np.array([[0, *ids, 0]]), "style": self._voices[voice][len(ids)][None]}
        samples, durations = self._session.run(None, given | {"speed": np.ones(1, np.float32)})
        return np.array(ids), durations.ravel(), samples.ravel()


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("onnx", "voices", "codec", "asr"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--samples", type=Path, help="keep the teacher's and the codec's sound here")
    parser.add_argument("--sentences", type=int, default=len(TEST))
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    teacher, recogniser = OnnxTeacher(arguments.onnx, arguments.voices), Recogniser(arguments.asr)
    encoder = SpeechEncoder(BOOKS, FIRST_CODES, REST_CODES, CODE_DIM).eval()
    weights = load_file(arguments.codec / "encoder.safetensors")
    encoder.load_state_dict({name: value.float() for name, value in weights.items()})
    decoder = load_decoder(arguments.codec / "decoder.safetensors").eval()
    found: dict[str, list[Errors]] = {}
    for number, text in enumerate(TEST[: arguments.sentences]):
        voice = number % 2
        phonemes, durations, samples = teacher(text, voice)
        wave = torch.from_numpy(samples)
        span = spoken_span(durations, wave)
        kept = cut(wave, span)
        padded = torch.nn.functional.pad(kept, (MARGIN * FRAME, MARGIN * FRAME))[None]
        units = torch.from_numpy(windows(phonemes, Timed(number, durations, span)))[None]
        codes = encoder(units, padded).codes
        made = decoder(codes, decoder.initial_state(1))[0][0]
        for name, sound in (("teacher", kept), ("codec", made)):
            heard = recogniser(sound.numpy(), SAMPLE_RATE)
            found.setdefault(f"{name} {VOICES[voice]}", []).append(word_errors(text, heard))
            if found[f"{name} {VOICES[voice]}"][-1].errors:
                print(f"  {name} {VOICES[voice]}: {text} | {heard}", flush=True)  # noqa: T201
            if arguments.samples:
                arguments.samples.mkdir(parents=True, exist_ok=True)
                np.save(arguments.samples / f"{name}-{number:03}.npy", sound.numpy())
    for name, errors in found.items():
        print(f"{name:20} {rate_of(errors)} of {sum(e.words for e in errors)} words", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
