# SPDX-License-Identifier: Apache-2.0
"""Runs requests on an engine and reads their streams."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyvox.audio.samples import Samples
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.pending import PendingAudio
from polyvox.engine.slots import SlotAllocation
from polyvox.engine.stream import LocalStream
from polyvox.engine.stream_arrays import Ints
from polyvox.models.protocol import PreparedRequest
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.models.request import Request

TIMEOUT = 60  # seconds; no test needs that long

Codes = list[list[int]]  # by frame


def read_all(stream: LocalStream) -> Samples:
    """All samples of a stream; its chunks are in order and the last one is final."""
    chunks = list(stream.chunks(TIMEOUT))
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    return np.concatenate([chunk.samples for chunk in chunks])


def solo_samples(speech: Qwen3TTSModel, request: Request) -> Samples:
    """The samples of a request that runs alone."""
    return run_alone(speech, request).samples


def assert_idle(engine: LocalEngine) -> None:
    """All slots and pages are free, at the latest a step after the last stream ended."""
    with engine.lock:
        assert engine._work.wait_for(lambda: not engine.streams, TIMEOUT)
    stats = engine.stats()
    assert stats["streams"] == stats["waiting"] == 0
    assert stats["slots_free"] == engine.config.max_streams
    assert stats["pages_free"] == engine.config.pages
    assert sorted(engine.ledger.free_slots) == list(range(engine.config.max_streams))
    assert sorted(engine.ledger.free_pages) == list(range(1, engine.config.pages + 1))


def request(text: str = "hello there", voice: str = "serena", seed: int = 1, frames: int = 20, **more: Any) -> Request:
    return Request(text, voice, "english", seed=seed, max_frames=frames, **more)


def wait_for_end(stream: LocalStream) -> None:
    with stream._engine.lock:
        assert stream._ready.wait_for(lambda: stream.result is not None, TIMEOUT)


@dataclass(frozen=True, slots=True, eq=False)
class SoloRun:
    """The codes, samples and finish reason of a request that runs alone."""

    codes: Codes
    samples: Samples
    reason: str


@cache
def run_alone(speech: Qwen3TTSModel, request: Request) -> SoloRun:
    engine, codes = _solo_engine(speech)
    stream = engine.submit(request)
    samples = read_all(stream)
    assert stream.result is not None
    return SoloRun(codes[stream], samples, stream.result.finish_reason)


@cache
def _solo_engine(speech: Qwen3TTSModel) -> tuple[LocalEngine, defaultdict[LocalStream, Codes]]:
    """An engine with one slot, for all solo runs: an engine takes longer to start than a short request to run."""
    engine = LocalEngine(speech, EngineConfig(max_streams=1, poison_freed=True))
    return engine, record_codes(engine)


def text_rows(speech: Qwen3TTSModel, ids: list[int], last: bool) -> NDArray[np.float32]:
    """The rows of the talker's width that another model would give for these tokens."""
    rows: NDArray[np.float32] = speech.generator.text_table.rows[speech.text_ids(ids, last)].float().numpy()
    return rows


def record_codes(engine: LocalEngine) -> defaultdict[LocalStream, Codes]:
    """Records the codes of each stream as the codec reads them, each frame once and in order."""
    runner = engine._runner
    ring = runner.generator.state.codes
    assign, decode = runner.assign, runner.decode
    found: defaultdict[LocalStream, Codes] = defaultdict(list)
    owners: dict[int, LocalStream] = {}  # by slot

    def assigned(allocation: SlotAllocation, prepared: PreparedRequest) -> int:
        streams = engine.streams
        owners[allocation.slot] = next(stream for stream in streams if stream.prepared is prepared)
        return assign(allocation, prepared)

    def decoded(
        slots: Ints, first: Ints, frames: Ints, after_frames: bool = False, streams_beside: int = 0
    ) -> PendingAudio:
        for slot, start, count in zip(slots.tolist(), first.tolist(), frames.tolist(), strict=True):
            codes = found[owners[slot]]
            assert len(codes) == start, "a frame is decoded once, in order"
            codes += ring[slot, torch.arange(start, start + count) % ring.shape[1]].tolist()
        return decode(slots, first, frames, after_frames, streams_beside)

    runner.assign, runner.decode = assigned, decoded  # type: ignore[method-assign]
    return found
