# SPDX-License-Identifier: Apache-2.0
"""A Pipecat pipeline that speaks with Polyvox: pipecat_agent.py OUTPUT.wav [--url ws://127.0.0.1:8000]

Pipecat's ElevenLabs service streams text to Polyvox over a WebSocket. A scripted language model takes the position of a
real one; in an application the pipeline also has a transport, speech recognition and an LLM service.
"""

import argparse
import asyncio
import wave
from pathlib import Path

from pipecat.frames.frames import (
    EndFrame,
    Frame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.elevenlabs.tts import ElevenLabsTTSService
from pipecat.workers.runner import WorkerRunner

ANSWER = "The next train leaves at nine forty five. It stops at the harbour on its way to the coast."
SAMPLE_RATE = 24_000


class WavWriter(FrameProcessor):  # type: ignore[misc]
    """Writes the audio of the pipeline to a file, in the position of a transport."""

    def __init__(self, file: wave.Wave_write) -> None:
        super().__init__()
        self._file = file
        self.finished = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self._file.writeframes(frame.audio)
        elif isinstance(frame, TTSStoppedFrame):
            self.finished.set()
        await self.push_frame(frame, direction)


async def run(url: str, output: Path) -> None:
    with wave.open(str(output), "wb") as file:
        file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
        tts = ElevenLabsTTSService(api_key="none", url=url, settings=ElevenLabsTTSService.Settings(voice="heart"))
        writer = WavWriter(file)
        worker = PipelineWorker(
            Pipeline([tts, writer]), enable_rtvi=False, params=PipelineParams(audio_out_sample_rate=SAMPLE_RATE)
        )

        async def answer(*_: object) -> None:
            words = [LLMTextFrame(f"{word} ") for word in ANSWER.split(" ")]
            for frame in [LLMFullResponseStartFrame(), *words, LLMFullResponseEndFrame()]:
                await worker.queue_frame(frame)
            await writer.finished.wait()
            await worker.queue_frame(EndFrame())

        worker.add_event_handler("on_pipeline_started", answer)
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(worker)
        await runner.run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="WAV file to write")
    parser.add_argument("--url", default="ws://127.0.0.1:8000", help="the Polyvox server")
    arguments = parser.parse_args()
    asyncio.run(run(arguments.url, arguments.output))


if __name__ == "__main__":
    main()
