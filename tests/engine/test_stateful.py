"""The engine under everything that may happen to it; `crowd.py` says what holds."""

import pytest

from conftest import Loaded
from engine.random_operations import LONGEST, SAMPLINGS, TEXTS, VOICES, play
from engine.speaking import alone, request
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def speech(loaded: Loaded) -> Qwen3TTSModel:
    return loaded("custom_voice", "float64").speech


@pytest.mark.parametrize("ahead", [0, 1], ids=["at once", "one step late"])
def test_whatever_happens_each_stream_says_what_it_says_alone(speech: Qwen3TTSModel, ahead: int) -> None:
    """Float64, poisoned: level (a) of determinism, and nothing leaks, hangs, ends twice or is heard by another."""
    play(speech, ahead, examples=10)


@pytest.mark.parametrize("ahead", [0, 1], ids=["at once", "one step late"])
def test_so_it_does_beside_an_engine_that_nobody_stops(speech: Qwen3TTSModel, ahead: int) -> None:
    """The same while the engine's thread runs on by itself: what happens meets it anywhere in its turn."""
    play(speech, ahead, examples=4, free=True)


def test_two_voices_alone_differ(speech: Qwen3TTSModel) -> None:
    """Or a stream that speaks with another's voice would pass."""
    for text in TEXTS:
        for sampling in SAMPLINGS.values():
            one, other = (
                alone(speech, request(text, voice, 0, LONGEST, layout="streaming", sampling=sampling))
                for voice in VOICES
            )
            assert one.codes != other.codes
