"""A pipeline of Pipecat's with one speech service in it and an ear behind."""

import asyncio
from collections.abc import Sequence

from pipecat.frames.frames import EndFrame, ErrorFrame, Frame, TTSAudioRawFrame, TTSStoppedFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.workers.runner import WorkerRunner

from conformance.hearing import RATE, Hearing
from conformance.serve import TIMEOUT


class Ear(FrameProcessor):  # type: ignore[misc]
    """Hands on what it hears; tells when the service has stopped speaking."""

    def __init__(self, hearing: Hearing) -> None:
        super().__init__()
        self._hearing = hearing
        self.begun, self.stopped = asyncio.Event(), asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            assert (frame.sample_rate, frame.num_channels) == (RATE, 1)
            self._hearing.hear(frame.audio)
            self.begun.set()
        elif isinstance(frame, TTSStoppedFrame):
            self.stopped.set()
        await self.push_frame(frame, direction)


async def speak(service: FrameProcessor, hearing: Hearing, frames: Sequence[Frame], then: Frame | None = None) -> None:
    """Sends the frames and hears the service until it stops; then: what is sent as soon as it is heard."""
    ear, errors = Ear(hearing), list[ErrorFrame]()
    worker = PipelineWorker(
        Pipeline([service, ear]),
        cancel_on_idle_timeout=False,
        enable_rtvi=False,
        params=PipelineParams(audio_out_sample_rate=RATE),
    )
    started = asyncio.Event()

    @worker.event_handler("on_pipeline_started")  # type: ignore[untyped-decorator]
    async def start(*_: object) -> None:
        started.set()

    @worker.event_handler("on_pipeline_error")  # type: ignore[untyped-decorator]
    async def fail(_: object, error: ErrorFrame) -> None:
        errors.append(error)
        ear.begun.set()
        ear.stopped.set()

    async def send() -> None:
        await started.wait()
        for frame in frames:
            await worker.queue_frame(frame)
        await ear.begun.wait()
        if then is not None:
            await worker.queue_frame(then)
        else:
            await ear.stopped.wait()
        await worker.queue_frame(EndFrame())

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(runner.run(), send())
    assert errors == []
