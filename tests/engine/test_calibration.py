# SPDX-License-Identifier: Apache-2.0
"""The first figures of the cost model, measured on a device whose times are known."""

from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest

from polyvox.engine.calibration import calibrate
from polyvox.engine.config import EngineConfig
from polyvox.engine.model_runner import ModelRunner

STEP, STREAM, CODEC, CODEC_FRAME, PREFILL_ROW = 0.004, 0.002, 0.006, 0.008, 0.0001
NUM_STREAMS = 8


class TimedDevice:
    """Calls take their time on a clock of its own; a decode beside frames ends later, as in another thread."""

    def __init__(self, overlaps: bool) -> None:
        self.now = self._decoded_at = 0.0
        self.config = EngineConfig(max_streams=NUM_STREAMS)
        self.max_prefill_rows = 512
        self.vocoder = SimpleNamespace(overlaps_frames=overlaps)
        self.model = SimpleNamespace(vocoder=SimpleNamespace(device=SimpleNamespace(type="cpu")))

    def frame(self, slots: Any, *_: Any) -> None:
        self.now += STEP + STREAM * len(slots)

    def decode(self, slots: Any, _: Any, frames: Any, streams_beside: int = 0) -> None:
        seconds = CODEC + CODEC_FRAME * int(np.sum(frames))
        if streams_beside:
            self._decoded_at = self.now + seconds
        else:
            self.now += seconds
        assert len(slots)

    def prefill(self, work: Any) -> None:
        self.now += PREFILL_ROW * sum(len(rows) for _, _, rows in work)

    def wait(self) -> None:
        self.now = max(self.now, self._decoded_at)


@pytest.mark.parametrize("overlaps", [False, True])
def test_the_cost_of_a_step_is_the_time_that_it_takes(overlaps: bool) -> None:
    device = TimedDevice(overlaps)
    with mock.patch("polyvox.engine.calibration.time.perf_counter", side_effect=lambda: device.now):
        cost = calibrate(cast(ModelRunner, device))
    frames = STEP + STREAM * NUM_STREAMS
    audio = CODEC + CODEC_FRAME * NUM_STREAMS
    expected = max(frames, audio) if overlaps else frames + audio
    assert cost.seconds(NUM_STREAMS, 0, NUM_STREAMS) == pytest.approx(expected)
    assert cost.seconds(1, 0, 1) <= STEP + STREAM + CODEC + CODEC_FRAME + 1e-9
    assert cost.prefill_row == pytest.approx(PREFILL_ROW)
