# SPDX-License-Identifier: Apache-2.0
"""A LiveKit agent that speaks with Polyvox: livekit_agent.py OUTPUT.wav [--url http://127.0.0.1:8000]

LiveKit's ElevenLabs plugin streams text to Polyvox over a WebSocket. The session runs without a room and writes its
audio to a file; in an application `session.start(agent, room=…)` connects it to a room.
"""

import argparse
import asyncio
import wave
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
from livekit import rtc
from livekit.agents import Agent, AgentSession
from livekit.agents.voice.io import AudioOutput, AudioOutputCapabilities
from livekit.plugins import elevenlabs

ANSWER = "The next train leaves at nine forty five. It stops at the harbour on its way to the coast."
SAMPLE_RATE = 24_000


async def tokens() -> AsyncIterator[str]:
    """A scripted language model; with `AgentSession(llm=…)` LiveKit streams the tokens of a real one."""
    for word in ANSWER.split(" "):
        yield f"{word} "


class WavOutput(AudioOutput):  # type: ignore[misc]
    """Writes the audio of the session to a file, instead of a room."""

    def __init__(self, file: wave.Wave_write) -> None:
        super().__init__(label="wav", capabilities=AudioOutputCapabilities(pause=False), sample_rate=SAMPLE_RATE)
        self._file = file
        self._seconds = 0.0

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        self._file.writeframes(bytes(frame.data))
        self._seconds += frame.duration

    def flush(self) -> None:
        super().flush()
        self.on_playback_finished(playback_position=self._seconds, interrupted=False)
        self._seconds = 0.0

    def clear_buffer(self) -> None:
        """Called at an interruption; a file has nothing to discard."""


async def run(url: str, output: Path) -> None:
    with wave.open(str(output), "wb") as file:
        file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
        async with aiohttp.ClientSession() as http:
            tts = elevenlabs.TTS(
                voice_id="heart", encoding="pcm_24000", api_key="none", base_url=f"{url}/v1", http_session=http
            )
            session: AgentSession[None] = AgentSession(tts=tts)
            session.output.audio = WavOutput(file)
            agent = Agent(instructions="You help with train connections.")
            await session.start(agent, record=False)
            await session.say(tokens())
            await session.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="WAV file to write")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the Polyvox server")
    arguments = parser.parse_args()
    asyncio.run(run(arguments.url, arguments.output))


if __name__ == "__main__":
    main()
