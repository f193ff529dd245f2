# SPDX-License-Identifier: Apache-2.0
"""A model on a simulated device: its calls take the time that a table gives them, and compute almost nothing.

A tiny Base checkpoint prepares requests and clones voices. Codes and samples are a function of seed, sentence and
frame, so equal requests must give equal audio.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from benchmarks.closed_loop import GPU, SimulatedPending
from torch import Tensor

from polyvox.audio.samples import Samples
from polyvox.engine import generator_runner, model_runner, vocoder_runner
from polyvox.engine.engine import LocalEngine
from polyvox.engine.interface import InProcessEngine
from polyvox.kernels.flags import FRAME_ENDED
from polyvox.models.info import ModelInfo
from polyvox.models.paged_kv import KVShape
from polyvox.models.protocol import PreparedRequest, SpeechModel, StreamingTokenizer, VocoderContext
from polyvox.models.registry import LoadOptions, load_model
from polyvox.models.request import ClonedVoice, Request
from polyvox.models.talker_generator import SamplingPayload, frame_limits
from polyvox.server.settings import Settings

MODEL_NAME = "simulated"
SAMPLE_RATE, SAMPLES_PER_FRAME = 24_000, 1920
# Seconds of a call, and of each stream or row in it: about 30 streams run in real time.
STEP, STEP_STREAM = 0.006, 0.0015
CODEC, CODEC_FRAME = 0.0015, 0.0004
PREFILL, PREFILL_ROW = 0.001, 0.00001
MIN_STREAMS_TO_PIPELINE = 8
FRAMES_AFTER_TEXT = 6  # a text has one frame for each token, and these
HASH = 2654435761  # Knuth's multiplicative hash
MAX_CODE = 2**31


class SimulatedGeneratorState:
    """Codes by seed, sentence and frame; see protocol.py."""

    def __init__(self, num_slots: int, ring_frames: int) -> None:
        self.codes = torch.zeros(num_slots, ring_frames, 1, dtype=torch.int64)
        self._key, self._frame, self._end = (torch.zeros(num_slots, dtype=torch.int64) for _ in range(3))

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + 3 * self._key.nbytes

    def assign(self, slot: int, prepared: PreparedRequest) -> None:
        payload = prepared.generator_payload
        assert isinstance(payload, SamplingPayload)
        self._key[slot] = (payload.seed * 1009 + payload.segment) % MAX_CODE
        self._frame[slot] = 0
        self._end[slot] = max(prepared.tokens, len(prepared.text)) + FRAMES_AFTER_TEXT

    def write_text(self, slot: int, start: int, ids: Sequence[int], rows: Tensor | None) -> None:  # noqa: ARG002
        self._end[slot] = max(int(self._end[slot]), start + len(ids) + FRAMES_AFTER_TEXT)

    def close_text(self, slot: int, num_bytes: int) -> int:  # noqa: ARG002
        return frame_limits(num_bytes)[1]

    def upload(self) -> None:
        pass  # the methods above have written to the tensors

    def prefill(self, ids: Tensor, *_: object) -> None:
        GPU.launch(PREFILL + PREFILL_ROW * ids.shape[1])

    def frame(self, slots: Tensor, *_: object) -> Tensor:
        GPU.launch(STEP + STEP_STREAM * len(slots))
        frame = self._frame[slots]
        codes = (self._key[slots] + 31 * frame) * HASH % MAX_CODE
        self.codes[slots, frame % self.codes.shape[1], 0] = codes
        self._frame[slots] = frame + 1
        return (frame >= self._end[slots]).to(torch.int64) * FRAME_ENDED

    def reset_scratch(self, slot: int) -> None:
        self._frame[slot] = 0

    def poison(self, slot: int) -> None:
        self.codes[slot] = -1


class SimulatedGenerator:
    device, dtype = torch.device("cpu"), torch.float32
    weight_dtype = kv_dtype = torch.float32
    kv_shape = KVShape(1, 1, 4)
    max_positions, default_context, num_codebooks, nbytes, text_table_nbytes = 4096, 1024, 1, 0, 0
    given_rows = 16

    def __init__(self, hidden_size: int) -> None:
        self.hidden_size = hidden_size

    def parameters(self) -> Iterable[Tensor]:
        return ()

    def quantize(self, dtype: torch.dtype) -> None:
        raise NotImplementedError("the simulated model has no weights")

    def new_state(self, num_slots: int, text_ids: int, ring_frames: int) -> SimulatedGeneratorState:  # noqa: ARG002
        return SimulatedGeneratorState(num_slots, ring_frames)


class SimulatedVocoderState:
    """A square wave whose amplitude is the code's and whose frequency follows the position in the stream."""

    def __init__(self, num_slots: int) -> None:
        self._position = torch.zeros(num_slots, dtype=torch.int64)
        periods = torch.tensor([96, 80, 64, 60])  # in samples; the frame's position in the stream chooses one
        samples = torch.arange(SAMPLES_PER_FRAME)
        self._waves = 1.0 - 2.0 * (samples % periods[:, None] >= periods[:, None] // 2).float()

    @property
    def nbytes(self) -> int:
        return self._position.nbytes

    def assign(self, slot: int, context: VocoderContext | None) -> None:  # noqa: ARG002
        self._position[slot] = 0

    def upload(self) -> None:
        pass

    def decode(self, slots: Tensor, codes: Tensor) -> Tensor:
        num_frames = codes.shape[1]
        GPU.launch(CODEC + CODEC_FRAME * num_frames * len(slots))
        positions = self._position[slots][:, None] + torch.arange(num_frames)
        self._position[slots] += num_frames
        amplitudes = 0.1 + 0.4 * codes[:, :, 0] / MAX_CODE
        return (amplitudes[:, :, None] * self._waves[positions % len(self._waves)]).flatten(1)

    def flush(self, slots: Tensor) -> Tensor:
        return torch.zeros(len(slots), 0)

    def reset_scratch(self, slot: int) -> None:
        self._position[slot] = 0

    def poison(self, slot: int) -> None:
        self._position[slot] = -1


class SimulatedVocoder:
    device, dtype = torch.device("cpu"), torch.float32
    sample_rate, samples_per_frame = SAMPLE_RATE, SAMPLES_PER_FRAME
    delay_samples = tail_samples = nbytes = 0

    def parameters(self) -> Iterable[Tensor]:
        return ()

    def new_state(self, num_slots: int) -> SimulatedVocoderState:
        return SimulatedVocoderState(num_slots)


class SimulatedModel:
    """A checkpoint that prepares requests and clones voices itself, with a simulated generator and vocoder."""

    def __init__(self, model: SpeechModel) -> None:
        self._model = model
        self.generator, self.vocoder = SimulatedGenerator(model.generator.hidden_size), SimulatedVocoder()

    def info(self) -> ModelInfo:
        info = self._model.info()
        identity = replace(info.identity, name=MODEL_NAME)
        return replace(info, identity=identity, frame_seconds=SAMPLES_PER_FRAME / SAMPLE_RATE)

    def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:
        return self._model.clone(samples, transcript)

    def prepare(self, request: Request, ids: list[int] | None = None) -> PreparedRequest:
        return self._model.prepare(request, ids)

    def streaming_tokenizer(self, request: Request) -> StreamingTokenizer:
        return self._model.streaming_tokenizer(request)

    def text_ids(self, ids: list[int], last: bool) -> list[int]:
        return self._model.text_ids(ids, last)


def build_engine(settings: Settings) -> InProcessEngine:
    """An engine on the simulated device; runs in the engine's process."""
    assert settings.model is not None
    torch.set_num_threads(1)
    generator_runner.Pending = vocoder_runner.Pending = SimulatedPending  # type: ignore[attr-defined]
    model_runner.SMALL_MODEL = 0  # type: ignore[attr-defined] # a GPU's calls do not run in threads
    model_runner.ModelRunner.wait = lambda _: GPU.wait()  # type: ignore[method-assign, assignment]
    model = load_model(settings.model, LoadOptions(torch.device("cpu"), torch.float32))
    config = replace(settings.engine_config(), min_streams_to_pipeline=MIN_STREAMS_TO_PIPELINE)
    return LocalEngine(SimulatedModel(model), config)
