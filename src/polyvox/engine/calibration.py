# SPDX-License-Identifier: Apache-2.0
"""Calibration: the cost model's first figures, measured at start before any stream runs."""

import itertools
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from polyvox import progress
from polyvox.engine.config import PAGE
from polyvox.engine.cost_model import CostModel
from polyvox.engine.model_runner import ModelRunner
from polyvox.engine.stream_state import CHUNK_SIZES
from polyvox.models.protocol import NO_ID, PromptRows

NUM_CALLS, MAX_SECONDS = 6, 0.5  # of each measurement
MIN_SLOPE = 1e-3  # of the one-stream time, per stream: a measured slope of 0 would promise unlimited capacity
MIN_SHARE = 0.5  # of the time of frames and chunks one after the other: one of them takes at least half of it

Call = Callable[[int], object]  # runs one call of the model with this many streams


def calibrate(runner: ModelRunner) -> CostModel:
    """Times prefill, frame step and codec call with one stream and with the most; every slot must be free."""
    config = runner.config
    num_streams, num_rows = config.max_batch, PAGE - 1
    # A CPU that is busy decodes frame by frame.
    on_cpu = runner.model.vocoder.device.type == "cpu"
    chunk = CHUNK_SIZES[0 if config.deterministic or on_cpu else 2]
    max_chunks, max_prompts = max(1, num_streams // chunk), min(num_streams, runner.max_prefill_rows // num_rows)
    prompt = PromptRows(np.full((2, num_rows), NO_ID))
    positions = itertools.count(PAGE + 1)

    def frame(streams: int) -> None:
        runner.frame(np.arange(streams), np.ones(streams, np.int64), np.full(streams, next(positions)))

    def decode(streams: int, beside: int = 0) -> None:
        first = np.zeros(streams, np.int64)
        runner.decode(np.arange(streams), first, np.full(streams, chunk), streams_beside=beside)

    def prefill(streams: int) -> None:
        runner.prefill([(slot, 0, prompt) for slot in range(streams)])

    progress.report("calibrate", 0, 3)
    step, stream = _fit_line(runner, frame, num_streams)
    progress.report("calibrate", 1, 3)
    codec, codec_chunk = _fit_line(runner, decode, max_chunks)
    progress.report("calibrate", 2, 3)
    prefill_seconds = _time(runner, prefill, max_prompts)
    progress.report("calibrate", 3, 3)
    cost = CostModel(step, stream, prefill_seconds / (max_prompts * num_rows), codec, codec_chunk / chunk)
    if runner.vocoder.overlaps_frames and max_chunks > 1:

        def both(streams: int) -> None:
            decode(streams, beside=streams)
            frame(streams)

        # Of several streams, frames and chunks are computed beside each other: the sum of both is their common time.
        growing = _time(runner, both, max_chunks) - (cost.step + cost.codec)
        share = max(growing / (max_chunks * (cost.stream + chunk * cost.codec_frame)), MIN_SHARE)
        cost.stream, cost.codec_frame = share * cost.stream, share * cost.codec_frame
    return cost


def _fit_line(runner: ModelRunner, call: Call, max_streams: int) -> tuple[float, float]:
    """Seconds of any call, and of each stream in it: the line through one stream and `max_streams`."""
    one = _time(runner, call, 1)
    each = max(_time(runner, call, max_streams) - one, MIN_SLOPE * one) / max(max_streams - 1, 1)
    return max(one - each, 0.0), each


def _time(runner: ModelRunner, call: Call, streams: int) -> float:
    """The median of a few calls; the first one only warms up."""
    times: list[float] = []
    while len(times) < 2 or (len(times) < NUM_CALLS and sum(times) < MAX_SECONDS):
        started_at = time.perf_counter()
        call(streams)
        runner.wait()
        times.append(time.perf_counter() - started_at)
    return median(times[1:])
