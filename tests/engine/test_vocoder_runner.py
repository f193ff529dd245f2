# SPDX-License-Identifier: Apache-2.0
"""The vocoder's side of a step: codes are moved to its device, and its delay and tail are handled."""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import Loaded
from engine.synthesis import TIMEOUT, assert_idle, read_all, request, solo_samples
from polyvox.audio.pcm import Audio, to_pcm
from polyvox.audio.samples import Samples
from polyvox.engine import engine as engine_module
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.model_runner import ModelRunner
from polyvox.engine.pending import PendingAudio
from polyvox.engine.stream_state import CHUNK_SIZES, RING_FRAMES
from polyvox.engine.vocoder_runner import VocoderRunner
from polyvox.errors import StreamFailed
from polyvox.models.protocol import SpeechModel, VocoderContext
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.models.request import Sampling

CPU = torch.device("cpu")
SAMPLES_PER_FRAME, DELAY, TAIL = 240, 555, 31


class EchoVocoder:
    """Delays a frame's samples: it returns silence first and the rest when flushed.

    Sample i of frame f is code 0 of the frame plus i / 1000, so that each output names its source.
    """

    device, dtype, nbytes = CPU, torch.float64, 0
    sample_rate, samples_per_frame = 24_000, SAMPLES_PER_FRAME
    delay_samples, tail_samples = DELAY, TAIL

    def parameters(self) -> Iterable[Tensor]:
        return []

    def new_state(self, num_slots: int) -> "EchoVocoderState":
        return EchoVocoderState([torch.zeros(DELAY, dtype=torch.float64) for _ in range(num_slots)])

    @staticmethod
    def waveform(codes: Tensor) -> Tensor:
        """Frames [..., T, codebooks] to all of their samples."""
        steps = torch.arange(SAMPLES_PER_FRAME, dtype=torch.float64) / 1000
        return (codes[..., :1].double() + steps).flatten(-2)


@dataclass
class EchoVocoderState:
    """The samples of each slot that were computed and not returned."""

    delayed: list[Tensor]
    scratch_resets: list[int] = field(default_factory=list)
    nbytes: int = 0

    def assign(self, slot: int, context: VocoderContext | None) -> None:
        assert context is None
        self.delayed[slot] = torch.zeros(DELAY, dtype=torch.float64)

    def upload(self) -> None:
        pass

    def decode(self, slots: Tensor, codes: Tensor) -> Tensor:
        rows = []
        for slot, frames in zip(slots.tolist(), codes, strict=True):
            samples = torch.cat([self.delayed[slot], EchoVocoder.waveform(frames)])
            size = len(samples) - DELAY
            rows.append(samples[:size])
            self.delayed[slot] = samples[size:]
        return torch.stack(rows)

    def flush(self, slots: Tensor) -> Tensor:
        return torch.stack([self.delayed[slot][:TAIL] for slot in slots.tolist()])

    def reset_scratch(self, slot: int) -> None:
        self.scratch_resets.append(slot)

    def poison(self, slot: int) -> None:
        self.delayed[slot] = torch.full((DELAY,), torch.nan, dtype=torch.float64)


def expected_samples(codes: Tensor) -> Samples:
    """The one-shot output: the first DELAY samples are dropped, and TAIL samples follow the last frame."""
    delayed = torch.cat([torch.zeros(DELAY, dtype=torch.float64), EchoVocoder.waveform(codes)])
    return delayed[DELAY : max(DELAY, len(codes) * SAMPLES_PER_FRAME + TAIL)].numpy()


@settings(max_examples=40, deadline=None)
@given(
    chunks=st.lists(st.lists(st.sampled_from(CHUNK_SIZES), min_size=1, max_size=6), min_size=1, max_size=3),
    copies=st.booleans(),
    fixed_sizes=st.booleans(),
    pcm=st.booleans(),
)
def test_delay_and_tail_are_exact_in_any_chunking(
    chunks: list[list[int]], copies: bool, fixed_sizes: bool, pcm: bool
) -> None:
    """Several streams whose codes are written to the ring chunk by chunk, as an engine does."""
    max_streams = 3 * CHUNK_SIZES[-1]  # also the maximum number of frames in a decode step
    ring = torch.zeros(max_streams + 1, RING_FRAMES, 2, dtype=torch.int64)
    runner = VocoderRunner(EchoVocoder(), ring, max_streams, False, fixed_sizes, copies_codes=copies, pcm=pcm)
    codes = [
        torch.randint(-1, 1 if pcm else 100, (sum(sizes), 2), generator=torch.Generator().manual_seed(i))
        for i, sizes in enumerate(chunks)
    ]
    found: list[list[Audio]] = [[] for _ in chunks]
    done = [0] * len(chunks)
    for slot in range(len(chunks)):
        runner.assign(slot, None)
    while any(done[i] < len(codes[i]) for i in range(len(chunks))):
        work = []
        for slot, sizes in enumerate(chunks):
            if sizes:
                size = sizes.pop(0)
                for frame in range(done[slot], done[slot] + size):
                    ring[slot, frame % RING_FRAMES] = codes[slot][frame]
                work.append((slot, done[slot], size))
                done[slot] += size
        for (slot, _, _), samples in zip(work, runner.decode(*np.array(work).T).get(), strict=True):
            assert samples is not None
            found[slot].append(samples)
    for slot, parts in enumerate(found):
        tail, expected = runner.flush(slot, len(codes[slot])), expected_samples(codes[slot])
        assert tail is not None
        samples = np.concatenate([*parts, tail])
        assert len(samples) == max(0, len(codes[slot]) * SAMPLES_PER_FRAME - DELAY + TAIL)
        if pcm:
            assert samples.dtype == np.int16
            np.testing.assert_array_equal(samples, to_pcm(expected.astype(np.float32)))
        else:
            np.testing.assert_allclose(samples, expected, rtol=1e-6)


@dataclass(frozen=True)
class EchoModel:
    """A model whose codes become samples by EchoVocoder."""

    model: Qwen3TTSModel
    vocoder: EchoVocoder = field(default_factory=EchoVocoder)

    def __getattr__(self, name: str) -> object:
        return getattr(self.model, name)


def test_a_stream_of_n_frames_has_n_frames_of_samples_less_the_delay_plus_the_tail(loaded: Loaded) -> None:
    model = EchoModel(loaded("custom_voice", "float64").model)
    engine = LocalEngine(model, EngineConfig(max_streams=4))  # type: ignore[arg-type]
    try:
        streams = [
            engine.submit(request(seed=seed, frames=20 + seed, sampling=Sampling(min_frames=seed)))
            for seed in (0, 3, 9, 20)
        ]
        for stream in streams:
            samples = read_all(stream)
            assert stream.result is not None
            assert len(samples) == max(0, stream.result.frames * SAMPLES_PER_FRAME - DELAY + TAIL)
    finally:
        engine.close()


def test_nothing_is_delivered_before_the_delay_has_passed(loaded: Loaded) -> None:
    """The delay is longer than two frames: the first chunks of one frame are empty."""
    model = EchoModel(loaded("custom_voice", "float64").model)
    engine = LocalEngine(model, EngineConfig(max_streams=1))  # type: ignore[arg-type]
    try:
        stream = engine.submit(request(frames=12, first_chunk=1, sampling=Sampling(min_frames=12)))
        assert all(len(chunk.samples) for chunk in stream.chunks(TIMEOUT))
        short = engine.submit(request(frames=1, first_chunk=1))
        assert len(read_all(short)) == 0
        assert short.result is not None
        assert short.result.first_audio is None
    finally:
        engine.close()


def test_a_tail_that_cannot_be_decoded_ends_its_stream_only(loaded: Loaded) -> None:
    model = EchoModel(loaded("custom_voice", "float64").model)
    engine = LocalEngine(model, EngineConfig(max_streams=2))  # type: ignore[arg-type]
    try:
        with mock.patch.object(engine._runner, "flush", side_effect=RuntimeError("no tail")):
            failed = engine.submit(request(frames=4))
            with pytest.raises(StreamFailed, match="no tail"):
                read_all(failed)
        assert len(read_all(engine.submit(request(frames=4, sampling=Sampling(min_frames=4)))))
        assert_idle(engine)
    finally:
        engine.close()


def test_a_vocoder_that_blocks_decodes_beside_the_frame_step(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CPU beside a GPU, which would be idle if the decode came first."""
    speech = loaded("custom_voice", "float64").model
    asked = request(frames=24, sampling=Sampling(min_frames=24))
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    calls: list[str] = []

    def record(owner: object, name: str, call: Callable[..., Any]) -> None:
        def recorded(*work: Any, **options: Any) -> Any:
            calls.append(name)
            return call(*work, **options)

        monkeypatch.setattr(owner, name, recorded)

    try:
        monkeypatch.setattr(engine._runner, "decode_blocks", True)
        record(engine._pipeline, "_launch", engine._pipeline._launch)
        for name in ("frame", "decode"):
            record(engine._runner, name, getattr(engine._runner, name))
        samples = read_all(engine.submit(asked))
    finally:
        engine.close()
    np.testing.assert_allclose(samples, solo_samples(speech, asked), atol=1e-6)
    steps = " ".join(calls)
    assert "frame decode" in steps
    assert "decode frame" not in steps


@pytest.mark.parametrize(
    ("config", "num_frames"),
    [(EngineConfig(max_streams=4), 24), (EngineConfig(max_streams=4, cuda_graphs=True, context=256), 10)],
    ids=["plain", "graphs"],
)
def test_a_vocoder_with_copied_codes_gives_the_same_samples(
    config: EngineConfig, num_frames: int, loaded: Loaded
) -> None:
    """As if generator and vocoder were on two devices."""
    compare_copied_codes(loaded("custom_voice", "float64").model, config, num_streams=6, num_frames=num_frames)


def compare_copied_codes(speech: Qwen3TTSModel, config: EngineConfig, num_streams: int, num_frames: int) -> None:
    requests = [request(seed=seed, frames=num_frames) for seed in range(num_streams)]

    def synthesise() -> list[Samples]:
        engine = LocalEngine(speech, replace(config, max_queue_seconds=100.0))
        try:
            return [read_all(stream) for stream in [engine.submit(asked) for asked in requests]]
        finally:
            engine.close()

    def copying(model: SpeechModel, config: EngineConfig) -> ModelRunner:
        return ModelRunner(model, config, copies_codes=True)

    expected = synthesise()
    with mock.patch.object(engine_module, "ModelRunner", copying):
        found = synthesise()
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


class GatedState(EchoVocoderState):
    """Decodes in the thread in which it is called, once the test allows it."""

    def __init__(self, num_slots: int) -> None:
        super().__init__([torch.zeros(DELAY, dtype=torch.float64) for _ in range(num_slots)])
        self.gate = threading.Event()
        self.threads: list[str] = []
        self.error: Exception | None = None

    def decode(self, slots: Tensor, codes: Tensor) -> Tensor:
        self.threads.append(threading.current_thread().name)
        assert self.gate.wait(TIMEOUT)
        if self.error is not None:
            raise self.error
        return super().decode(slots, codes)


@pytest.fixture
def gated() -> Iterator[tuple[VocoderRunner, GatedState]]:
    """A runner beside a small generator on a CPU, with random codes of two slots."""
    ring = torch.randint(0, 100, (3, RING_FRAMES, 2), generator=torch.Generator().manual_seed(1))
    runner = VocoderRunner(EchoVocoder(), ring, max_streams=2, small_model=True, fixed_sizes=False)
    runner.state = state = GatedState(2)
    yield runner, state
    state.gate.set()
    runner.close()


def decode_frame(runner: VocoderRunner, frame: int, streams_beside: int) -> PendingAudio:
    return runner.decode(np.arange(2), np.full(2, frame), np.ones(2, np.int64), streams_beside=streams_beside)


def test_a_decode_beside_frames_of_several_streams_does_not_block_and_is_before_later_ones(
    gated: tuple[VocoderRunner, GatedState],
) -> None:
    runner, state = gated
    codes = runner._ring.clone()
    pending = [decode_frame(runner, frame, streams_beside=2) for frame in range(3)]
    assert not any(each.ready for each in pending)
    runner._ring.fill_(-1)  # the generator goes on; the codes of these calls were read
    state.gate.set()
    pending.append(decode_frame(runner, 3, streams_beside=0))
    assert all(each.ready for each in pending)  # the last one has waited for the others
    assert ["polyvox-vocoder" in name for name in state.threads] == [True, True, True, False]
    for slot in range(2):
        found = np.concatenate([cast(Samples, each.get()[slot]) for each in pending])
        np.testing.assert_allclose(found[: 3 * SAMPLES_PER_FRAME - DELAY], expected_samples(codes[slot, :3])[:-TAIL])


def test_frames_of_one_stream_are_too_short_to_decode_beside_them(gated: tuple[VocoderRunner, GatedState]) -> None:
    runner, state = gated
    state.gate.set()
    assert decode_frame(runner, 0, streams_beside=1).ready
    assert state.threads == [threading.current_thread().name]


def test_the_error_of_a_decode_beside_frames_is_raised_with_its_audio(gated: tuple[VocoderRunner, GatedState]) -> None:
    runner, state = gated
    state.error = RuntimeError("no audio")
    pending = decode_frame(runner, 0, streams_beside=2)
    state.gate.set()
    runner.wait()
    assert pending.ready
    with pytest.raises(RuntimeError, match="no audio"):
        pending.get()


def test_an_engine_ends_the_thread_of_its_vocoder(loaded: Loaded) -> None:
    def vocoder_threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if "polyvox-vocoder" in thread.name]

    before = len(vocoder_threads())
    engine = LocalEngine(loaded("custom_voice", "float32").model, EngineConfig(max_streams=2))
    try:
        streams = [engine.submit(request(seed=seed, frames=12)) for seed in range(2)]
        assert all(len(read_all(stream)) for stream in streams)
        assert len(vocoder_threads()) == before + 1
    finally:
        engine.close()
    assert len(vocoder_threads()) == before


def test_the_scratch_slot_of_the_vocoder_keeps_its_position_at_the_start(loaded: Loaded) -> None:
    """Kernels read positions as int32, so a counter that every padded call advances must not grow."""
    speech = loaded("custom_voice", "float32").model
    runner = ModelRunner(speech, EngineConfig(max_streams=3, cuda_graphs=True))
    state = speech.vocoder.new_state(4)
    runner.vocoder.state = state
    assert runner.vocoder.graphs is not None
    runner.vocoder.graphs._state = state
    with torch.inference_mode():
        for first in range(0, 40, 4):
            runner.decode(np.arange(3), np.full(3, first), np.full(3, 4))  # padded to four
    assert state.layers["position"].tolist() == [40, 40, 40, 4]


def test_the_kv_cache_has_the_kv_dtype_of_the_generator(loaded: Loaded) -> None:
    speech = loaded("custom_voice", "float64").model
    narrow = mock.Mock(wraps=speech, generator=speech.generator, vocoder=speech.vocoder)
    default = ModelRunner(speech, EngineConfig(max_streams=2))
    with mock.patch.object(speech.generator, "kv_dtype", torch.float32):
        engine = LocalEngine(narrow, EngineConfig(max_streams=2))
        try:
            cache = engine._runner.generator.cache
            assert cache.keys.dtype == torch.float32
            assert 2 * cache.keys.nbytes == default.generator.cache.keys.nbytes
            assert len(read_all(engine.submit(request())))
        finally:
            engine.close()
