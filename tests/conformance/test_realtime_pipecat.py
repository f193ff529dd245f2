# SPDX-License-Identifier: Apache-2.0
"""Pipecat's OpenAI realtime service: a context, speech, a tool and an interruption in a pipeline."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.workers.runner import WorkerRunner

from conformance.realtime_server import (
    ANSWER,
    LONG_ANSWER,
    QUESTION,
    SAMPLE_RATE,
    TOOL_NAME,
    TOOL_RESULT,
    RealtimeServer,
)
from conformance.server_process import TIMEOUT
from server.scripted_llm import Script


class Recorder(FrameProcessor):  # type: ignore[misc]
    """Keeps the frames that pass, and signals the first one that a condition finds."""

    def __init__(self, until: Callable[[list[Frame]], bool]) -> None:
        super().__init__()
        self._until = until
        self.frames: list[Frame] = []
        self.found = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self.frames.append(frame)
        if self._until(self.frames):
            self.found.set()
        await self.push_frame(frame, direction)


def audio_bytes(frames: Sequence[Frame]) -> int:
    return sum(len(frame.audio) for frame in frames if isinstance(frame, TTSAudioRawFrame))


def spoken_text(frames: Sequence[Frame]) -> str:
    return "".join(frame.text for frame in frames if isinstance(frame, TTSTextFrame))


def is_answered(frames: Sequence[Frame]) -> bool:
    return isinstance(frames[-1], LLMFullResponseEndFrame) and audio_bytes(frames) > 0


def run(
    realtime: RealtimeServer,
    frames: Sequence[Frame],
    until: Callable[[list[Frame]], bool] = is_answered,
    then: Sequence[Frame] = (),
    settle: Callable[[], bool] = lambda: True,
    turn_detection: bool = True,
) -> tuple[list[Frame], list[Frame]]:
    """Sends frames until the output satisfies a condition, then others; the output, and what went upstream.

    turn_detection: the server finds the turns of the user, else the pipeline.
    """

    async def main() -> tuple[list[Frame], list[Frame]]:
        transcription = events.InputAudioTranscription(model="whisper-1")
        audio = events.AudioConfiguration(
            input=events.AudioInput(
                transcription=transcription, turn_detection=events.TurnDetection() if turn_detection else False
            ),
            output=events.AudioOutput(voice="alloy"),
        )
        properties = events.SessionProperties(audio=audio)
        settings = OpenAIRealtimeLLMService.Settings(session_properties=properties, system_instruction="Be short.")
        url = f"{realtime.websocket_url}/realtime"
        service = OpenAIRealtimeLLMService(api_key="none", base_url=url, settings=settings)

        async def get_time(call: Any) -> None:
            assert call.arguments == {"city": "Berlin"}
            await call.result_callback(TOOL_RESULT)

        service.register_function(TOOL_NAME, get_time)
        source, sink = Recorder(lambda _: False), Recorder(until)
        pipeline = Pipeline([source, service, sink])
        worker = PipelineWorker(
            pipeline,
            cancel_on_idle_timeout=False,
            enable_rtvi=False,
            params=PipelineParams(audio_in_sample_rate=SAMPLE_RATE, audio_out_sample_rate=SAMPLE_RATE),
        )
        started, errors = asyncio.Event(), list[ErrorFrame]()

        @worker.event_handler("on_pipeline_started")  # type: ignore[untyped-decorator]
        async def on_started(*_: object) -> None:
            started.set()

        @worker.event_handler("on_pipeline_error")  # type: ignore[untyped-decorator]
        async def on_error(_: object, error: ErrorFrame) -> None:
            errors.append(error)
            sink.found.set()

        async def send() -> None:
            await started.wait()
            while not service._api_session_ready:  # frames of audio are dropped before
                await asyncio.sleep(0.05)
            for frame in frames:
                await worker.queue_frame(frame)
            await sink.found.wait()
            for frame in then:
                await worker.queue_frame(frame)
            while not await asyncio.to_thread(settle):  # a request to the server must not block the pipeline
                await asyncio.sleep(0.05)
            await worker.queue_frame(EndFrame())

        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(worker)
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(runner.run(), send())
        assert errors == []
        return sink.frames, source.frames

    return asyncio.run(main())


def context_frame(text: str, tools: Any = None) -> LLMContextFrame:
    options = {} if tools is None else {"tools": tools}
    return LLMContextFrame(context=LLMContext([{"role": "user", "content": text}], **options))


def test_a_context_is_answered_with_text_and_speech(realtime: RealtimeServer) -> None:
    output, _ = run(realtime, [context_frame("Hi!")])
    assert spoken_text(output).strip() == ANSWER
    assert audio_bytes(output) > 2 * SAMPLE_RATE
    messages = realtime.llm.requests[0]["messages"]
    assert messages == [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi!"}]


def test_speech_is_transcribed_and_answered(realtime: RealtimeServer) -> None:
    chunks = [InputAudioRawFrame(chunk, SAMPLE_RATE, 1) for chunk in realtime.question_chunks()]
    output, upstream = run(realtime, chunks)
    assert [frame.text for frame in upstream if isinstance(frame, TranscriptionFrame)] == [QUESTION]
    assert spoken_text(output).strip() == ANSWER


def test_a_tool_is_called(realtime: RealtimeServer) -> None:
    realtime.script_tool_call()
    properties = {"city": {"type": "string"}}
    schema = FunctionSchema(name=TOOL_NAME, description="The time of a city", properties=properties, required=["city"])
    frame = context_frame(QUESTION, ToolsSchema(standard_tools=[schema]))
    output, _ = run(realtime, [frame], until=lambda frames: "FunctionCallResult" in type(frames[-1]).__name__)
    assert realtime.llm.requests[0]["tools"][0]["function"]["name"] == TOOL_NAME
    assert next(frame.result for frame in output if "FunctionCallResult" in type(frame).__name__) == TOOL_RESULT


def test_an_interruption_ends_the_answer(realtime: RealtimeServer) -> None:
    """By the pipeline: with the server's turn detection it would only truncate the answer, which goes on."""
    cancelled = r'polyvox_aborts_total\{reason="cancel"\}'
    before = realtime.process.metric(cancelled)
    realtime.llm.script = Script(LONG_ANSWER)
    output, _ = run(
        realtime,
        [context_frame("Tell me everything.")],
        until=lambda frames: isinstance(frames[-1], TTSAudioRawFrame),
        then=[InterruptionFrame()],
        settle=lambda: realtime.process.metric(cancelled) > before and realtime.process.active_streams() == 0,
        turn_detection=False,
    )
    assert len(realtime.llm.requests) == 1
    assert 0 < audio_bytes(output) < 2 * SAMPLE_RATE * len(LONG_ANSWER)  # a sentence lasts longer than a second
