# SPDX-License-Identifier: Apache-2.0
"""Which part of a spoken answer was played, by its recording or in proportion, and what a player can have played."""

import asyncio
from collections.abc import Awaitable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyvox.server.realtime.spoken_transcript import PlaybackClock, SpokenTranscript
from polyvox.server.synthesis.speech_recording import SpeechRecording, proportional_end
from polyvox.server.synthesis.timestamps import AlignmentScheduler

TEXT = "One two, three."


def spoken(text: str = TEXT, seconds: float = 3.0) -> SpokenTranscript:
    transcript = SpokenTranscript()
    transcript.add_text(text)
    transcript.seconds = seconds
    return transcript


def text_played(transcript: SpokenTranscript, seconds: float) -> str:
    return asyncio.run(transcript.text_played(seconds))


class RecordingOfTwoWords(SpeechRecording):
    def __init__(self) -> None:
        super().__init__(24_000, 1.0, AlignmentScheduler())

    async def text_end(self, seconds: float) -> int | None:
        return len("One two,") if seconds < 3 else len(TEXT)


def test_a_recorded_answer_is_cut_where_its_recording_says() -> None:
    transcript = SpokenTranscript(RecordingOfTwoWords())
    transcript.add_text(f"{TEXT} More text")
    transcript.seconds = 3.0
    assert text_played(transcript, 1.0) == "One two,"
    assert text_played(transcript, 3.0) == TEXT  # the audio of the rest was not sent
    transcript.is_complete = True
    assert text_played(transcript, 3.0) == f"{TEXT} More text"


def test_a_cut_is_kept_while_the_text_at_the_end_of_the_answer_is_found() -> None:
    class SlowAtTheEnd(RecordingOfTwoWords):
        found = asyncio.Event()

        async def text_end(self, seconds: float) -> int | None:
            if seconds == 3.0:
                await self.found.wait()
            return await super().text_end(seconds)

    async def check() -> str:
        transcript, texts = SpokenTranscript(SlowAtTheEnd()), []
        transcript.add_text(TEXT)
        transcript.seconds = 3.0

        async def set_text(finding: Awaitable[str]) -> None:
            texts.append(await finding)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(set_text(transcript.text_played(3.0)))  # the response ends
            await asyncio.sleep(0)
            tasks.create_task(set_text(transcript.cut(1.0)))  # and the client truncates it
            await asyncio.sleep(0)
            SlowAtTheEnd.found.set()
        return texts[-1]

    assert asyncio.run(check()) == "One two,"


@given(st.text("ab, .\n", max_size=60), st.floats(0, 1))
def test_without_word_times_the_text_is_cut_between_words(text: str, share: float) -> None:
    end = proportional_end(text, share)
    assert end <= share * len(text)
    assert not end or not text[end:] or text[end].isspace()


def test_more_is_played_in_more_time() -> None:
    transcript = spoken()
    found = [text_played(transcript, step / 10) for step in range(31)]
    assert found == sorted(found, key=len)
    assert (found[0], found[15], found[30]) == ("", "One", TEXT)


def test_audio_is_played_in_real_time_from_its_arrival() -> None:
    now = 100.0
    clock = PlaybackClock(lambda: now)
    assert clock.remaining == 0
    clock.add(2.0)
    now += 0.5
    clock.add(1.0)
    assert clock.remaining == pytest.approx(2.5)
    now += 5
    assert clock.remaining == 0
    clock.add(1.0)  # after a gap
    assert clock.remaining == pytest.approx(1.0)
    clock.stop()
    assert clock.remaining == 0
