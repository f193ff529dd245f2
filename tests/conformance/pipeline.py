# SPDX-License-Identifier: Apache-2.0
"""A Pipecat pipeline of one speech service and an audio sink."""

import asyncio
from collections.abc import Sequence

from pipecat.frames.frames import EndFrame, ErrorFrame, Frame, TTSAudioRawFrame, TTSStoppedFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.workers.runner import WorkerRunner

from conformance.capture import SAMPLE_RATE, StreamCapture
from conformance.server_process import TIMEOUT


class AudioSink(FrameProcessor):  # type: ignore[misc]
    """Captures the audio and signals its begin and end."""

    def __init__(self, capture: StreamCapture) -> None:
        super().__init__()
        self._capture = capture
        self.started, self.stopped = asyncio.Event(), asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            assert (frame.sample_rate, frame.num_channels) == (SAMPLE_RATE, 1)
            self._capture.add(frame.audio)
            self.started.set()
        elif isinstance(frame, TTSStoppedFrame):
            self.stopped.set()
        await self.push_frame(frame, direction)


async def run_pipeline(
    service: FrameProcessor, capture: StreamCapture, frames: Sequence[Frame], on_audio: Frame | None = None
) -> None:
    """Send the frames and capture until the service stops; on_audio: a frame to send at the first audio."""
    sink, errors = AudioSink(capture), list[ErrorFrame]()
    worker = PipelineWorker(
        Pipeline([service, sink]),
        cancel_on_idle_timeout=False,
        enable_rtvi=False,
        params=PipelineParams(audio_out_sample_rate=SAMPLE_RATE),
    )
    started = asyncio.Event()

    @worker.event_handler("on_pipeline_started")  # type: ignore[untyped-decorator]
    async def on_started(*_: object) -> None:
        started.set()

    @worker.event_handler("on_pipeline_error")  # type: ignore[untyped-decorator]
    async def on_error(_: object, error: ErrorFrame) -> None:
        errors.append(error)
        sink.started.set()
        sink.stopped.set()

    async def send() -> None:
        await started.wait()
        for frame in frames:
            await worker.queue_frame(frame)
        await sink.started.wait()
        if on_audio is not None:
            await worker.queue_frame(on_audio)
        else:
            await sink.stopped.wait()
        await worker.queue_frame(EndFrame())

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(runner.run(), send())
    assert errors == []
