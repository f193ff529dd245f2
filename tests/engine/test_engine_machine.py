# SPDX-License-Identifier: Apache-2.0
"""The engine under random operations; `engine_machine.py` has the invariants."""

import pytest

from conftest import Loaded
from engine.clients import MAX_FRAMES, SAMPLINGS, TEXTS, VOICES
from engine.engine_machine import run_machine
from engine.synthesis import request, run_alone
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def speech(loaded: Loaded) -> Qwen3TTSModel:
    return loaded("custom_voice", "float64").model


@pytest.mark.parametrize("pipeline", [0, 1], ids=["not pipelined", "pipelined"])
def test_each_stream_equals_its_solo_run_under_random_operations(speech: Qwen3TTSModel, pipeline: int) -> None:
    """Level (a) of determinism, in float64 with poisoned memory; no leak, no hang, one result, no forbidden status."""
    run_machine(speech, pipeline, examples=7)


@pytest.mark.parametrize("pipeline", [0, 1], ids=["not pipelined", "pipelined"])
def test_each_stream_equals_its_solo_run_on_an_unstopped_engine(speech: Qwen3TTSModel, pipeline: int) -> None:
    """The same while the engine's thread runs freely: operations happen anywhere in an iteration."""
    run_machine(speech, pipeline, examples=4, free=True)


def test_solo_runs_of_two_voices_differ(speech: Qwen3TTSModel) -> None:
    """Otherwise a stream with another stream's voice would pass."""
    for text in TEXTS:
        for sampling in SAMPLINGS.values():
            one, other = (
                run_alone(speech, request(text, voice, 0, MAX_FRAMES, layout="streaming", sampling=sampling))
                for voice in VOICES
            )
            assert one.codes != other.codes
