# SPDX-License-Identifier: Apache-2.0
"""Pipecat's ElevenLabs service with streamed text, in versions before and after 1.0."""

import asyncio
import sys

from measurement import Measurement, words
from pipecat.frames.frames import (
    EndFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.elevenlabs.tts import ElevenLabsTTSService

RACHEL = "21m00Tcm4TlvDq8ikWAM"
URL = sys.argv[1].replace("http", "ws")


class Sink(FrameProcessor):
    def __init__(self, measurement):
        super().__init__()
        self.measurement, self.stopped, self.words = measurement, asyncio.Event(), []

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.measurement.add(frame.audio)
        elif isinstance(frame, TTSTextFrame):
            self.words.append(frame.text)
        elif isinstance(frame, TTSStoppedFrame):
            self.stopped.set()
        await self.push_frame(frame, direction)


async def main():
    sink = Sink(Measurement())
    try:  # 1.x
        from pipecat.pipeline.worker import PipelineParams, PipelineWorker
        from pipecat.workers.runner import WorkerRunner

        settings = ElevenLabsTTSService.Settings(voice=RACHEL)
        service = ElevenLabsTTSService(api_key="none", url=URL, settings=settings)
        parameters = PipelineParams(audio_out_sample_rate=24_000)
        task = PipelineWorker(Pipeline([service, sink]), enable_rtvi=False, params=parameters)
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(task)
        running = asyncio.create_task(runner.run())
    except ImportError:
        from pipecat.pipeline.runner import PipelineRunner
        from pipecat.pipeline.task import PipelineParams, PipelineTask

        service = ElevenLabsTTSService(api_key="none", url=URL, voice_id=RACHEL)
        task = PipelineTask(
            Pipeline([service, sink]),
            params=PipelineParams(audio_out_sample_rate=24_000),
            idle_timeout_secs=None,
        )
        running = asyncio.create_task(PipelineRunner(handle_sigint=False).run(task))
    started = asyncio.Event()

    @task.event_handler("on_pipeline_started")
    async def on_started(*_):
        started.set()

    async with asyncio.timeout(100):
        await started.wait()
        frames = [LLMFullResponseStartFrame(), *map(LLMTextFrame, words()), LLMFullResponseEndFrame()]
        for frame in frames:
            await task.queue_frame(frame)
        await sink.stopped.wait()
        await task.queue_frame(EndFrame())
        await running
    sink.measurement.report("pipecat-ai", f"{len(sink.words)} text frames" if sink.words else "")


asyncio.run(main())
