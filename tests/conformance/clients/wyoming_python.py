# SPDX-License-Identifier: Apache-2.0
"""The wyoming package, used as Home Assistant uses it: describe, a whole text, streamed text."""

import asyncio
import sys

from measurement import Measurement, words
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.info import Describe, Info
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped, SynthesizeVoice

HOST, PORT = sys.argv[2].removeprefix("tcp://").split(":")


async def main():
    async with asyncio.timeout(100), AsyncTcpClient(HOST, int(PORT)) as client:
        await client.write_event(Describe().event())
        (program,) = Info.from_event(await client.read_event()).tts
        assert program.supports_synthesize_streaming
        voice = SynthesizeVoice(name=program.voices[0].name, language=program.voices[0].languages[0])

        await client.write_event(Synthesize("Hello there.", voice=voice).event())
        start = AudioStart.from_event(await client.read_event())
        assert (start.rate, start.width, start.channels) == (24_000, 2, 1)
        while not AudioStop.is_type((await client.read_event()).type):
            pass

        measurement = Measurement()
        await client.write_event(SynthesizeStart(voice=voice).event())
        for word in words():
            await client.write_event(SynthesizeChunk(word).event())
        await client.write_event(Synthesize("".join(words()), voice=voice).event())
        await client.write_event(SynthesizeStop().event())
        while not SynthesizeStopped.is_type((event := await client.read_event()).type):
            if AudioChunk.is_type(event.type):
                measurement.add(AudioChunk.from_event(event).audio)
        measurement.report("wyoming", f"voices {', '.join(each.name for each in program.voices)}")


asyncio.run(main())
