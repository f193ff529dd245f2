"""A quick judge, to compare ways of speaking: what the true text costs whisper-base, and what it writes.

It looks at 10 s instead of 30, a third of the work. The cost of the true text says what word errors say, but finer:
fewer sentences tell two ways apart. The voice's own figures come from asr.py, which looks at all there is.
"""

from pathlib import Path
from typing import Any

import numpy as np

from training.asr import ASR_RATE, QUIET

SECONDS = 10
FEATURES = 100 * SECONDS  # one each 10 ms; the encoder halves them
START = ("<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")


class Judge:
    """For speech of less than 9.6 s. Reaches into onnx-asr, whose version is pinned."""

    def __init__(self, folder: Path, threads: int = 1) -> None:
        import onnx_asr
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        model: Any = onnx_asr.load_model("whisper", folder, quantization="quantized", sess_options=options)
        self._asr = model.asr
        self._as_value: Any = onnxruntime.OrtValue.ortvalue_from_numpy
        self._encoder = onnxruntime.InferenceSession(_shortened(folder / "onnx/encoder_model_quantized.onnx"), options)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._start = [self._tokenizer.token_to_id(name) for name in START]
        self._end = self._tokenizer.token_to_id("<|endoftext|>")

    def __call__(self, samples: np.ndarray, rate: int, text: str) -> tuple[float, str]:
        """Nats that the text costs, and what was heard instead."""
        import soxr

        heard = np.pad(soxr.resample(samples.astype(np.float32), rate, ASR_RATE), QUIET)
        features, _ = self._asr._preprocessor(heard[None], np.array([len(heard)]))
        found = self._as_value(self._encoder.run(None, {"input_features": features[..., :FEATURES]})[0])
        tokens = self._asr._decoding(found, np.array([self._start]))
        return self._cost(found, text), str(self._asr._decode_tokens(tokens[0]).text)

    def _cost(self, found: Any, text: str) -> float:
        ids = [*self._tokenizer.encode(f" {text}", add_special_tokens=False).ids, self._end]
        tokens = np.array([[*self._start, *ids[:-1]]])
        scores, _ = self._asr._decode(tokens, self._asr._create_state(), found)
        scores = scores[0, len(self._start) - 1 :].astype(np.float64)
        scores -= scores.max(-1, keepdims=True)
        return float((np.log(np.exp(scores).sum(-1)) - scores[np.arange(len(ids)), ids]).sum())


def _shortened(encoder: Path) -> bytes:
    """The encoder with fewer positions."""
    import onnx

    model = onnx.load(encoder)
    (table,) = (one for one in model.graph.initializer if one.name == "embed_positions.weight")
    kept = onnx.numpy_helper.to_array(table)[: FEATURES // 2]
    table.CopyFrom(onnx.numpy_helper.from_array(kept.copy(), table.name))
    del model.graph.value_info[:]  # shapes of the whole one
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return bytes(model.SerializeToString())
