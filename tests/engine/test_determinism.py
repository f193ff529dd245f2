"""Level (b) of determinism: in float32 a crowd rounds otherwise than a stream alone, and only a near tie may show it.

Level (a), float64, where the codes are equal in any crowd, is test_stateful.py.
"""

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import Loaded
from engine.speaking import Codes, note_codes, request, spoken
from engine.stepped_engine import CHEAP
from polyvox.audio.clip import Samples
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.kernels import sampler
from polyvox.models.qwen3_tts import generator
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.models.request import Request, Sampling

pytestmark = pytest.mark.slow

log = logging.getLogger(__name__)

# Rounding moves a score by about 1e-6; two scores that are closer than this may change places.
NEAR_TIE = 1e-4
STREAMS, SLOTS, FRAMES = 48, 8, 20
TEXTS = ("hello there", "the other assistant", "on and on it goes, the line", "a")
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=1.5, top_k=0, predictor_temperature=1.5, predictor_top_k=0, min_frames=FRAMES),
    Sampling(temperature=0.7, top_k=10, repetition_penalty=1.3, min_frames=FRAMES),
)


@contextmanager
def noted_margins() -> Iterator[list[float]]:
    """By how much the best of each draw beats the second best, draw after draw, of a stream that is alone."""
    found: list[float] = []
    draw: Callable[[Tensor, Tensor, Tensor], Tensor] = sampler.draw

    def noted(logits: Tensor, params: Tensor, noise: Tensor) -> Tensor:
        assert len(logits) == 1
        temperature = params[:, sampler.TEMPERATURE, None]
        scores = logits / torch.where(temperature == 0, 1.0, temperature)
        ordered = scores.sort(dim=-1, descending=True).values
        kept = torch.where(scores < sampler._threshold(ordered, params), -torch.inf, scores)
        best, second = torch.where(temperature == 0, kept, kept + noise).topk(2).values[0].tolist()
        found.append(best - second)
        return draw(logits, params, noise)

    with mock.patch.object(generator, "draw", noted):
        yield found


def first_difference(one: Codes, other: Codes) -> tuple[int, int] | None:
    """The first frame and codebook that differ; where one ends before the other, it is code 0 that does."""
    for frame, (ours, theirs) in enumerate(zip(one, other, strict=False)):
        for book, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if a != b:
                return frame, book
    return None if len(one) == len(other) else (min(len(one), len(other)), 0)


def said_alone(speech: Qwen3TTSModel, asked: list[Request]) -> list[tuple[Codes, Samples, list[float]]]:
    """One after the other, on an engine that has room for one."""
    engine = LocalEngine(speech, EngineConfig(max_streams=1))
    try:
        codes, found = note_codes(engine), []
        for one in asked:
            with noted_margins() as margins:
                stream = engine.submit(one)
                samples = spoken(stream)
            found.append((codes[stream], samples, margins))
        return found
    finally:
        engine.close()


def said_in_crowds(speech: Qwen3TTSModel, asked: list[Request], chance: random.Random) -> list[tuple[Codes, Samples]]:
    """All of them, in crowds of random sizes, some of which begin while the last one still speaks."""
    engine = LocalEngine(speech, EngineConfig(max_streams=SLOTS, max_queue=len(asked)))
    try:
        codes = note_codes(engine)
        with engine.lock:
            engine.load.cost = replace(CHEAP)  # or a machine slower than the tiny checkpoint's 2 ms lets in one
        found, waiting = [], list(asked)
        while waiting:
            with engine.lock:
                streams = [engine.submit(waiting.pop(0)) for _ in range(min(chance.randint(1, SLOTS), len(waiting)))]
            found += [(stream, spoken(stream)) for stream in streams]
        assert engine.stats()["frames"] / engine.stats()["steps"] > 2, "this was no crowd"
        return [(codes[stream], samples) for stream, samples in found]
    finally:
        engine.close()


def test_float32_in_a_crowd_is_float32_alone_or_parts_at_a_near_tie(loaded: Loaded) -> None:
    """`pytest --log-cli-level=info` shows the counts."""
    speech = loaded("custom_voice", "float32").speech
    chance = random.Random(1)
    asked = [
        request(
            chance.choice(TEXTS),
            chance.choice(["serena", "vivian"]),
            seed,
            FRAMES,
            layout=chance.choice(["whole", "streaming"]),
            sampling=chance.choice(SAMPLINGS),
        )
        for seed in range(STREAMS)
    ]
    groups = speech.config.talker.code_groups
    parted: list[float] = []
    smallest, draws, rounded = 1.0, 0, 0
    crowd, solo = said_in_crowds(speech, asked, chance), said_alone(speech, asked)
    for (codes, samples), (expected, heard, margins) in zip(crowd, solo, strict=True):
        assert len(margins) >= groups * len(expected)
        smallest, draws = min(smallest, *margins), draws + len(margins)
        difference = first_difference(codes, expected)
        if difference is None:
            np.testing.assert_allclose(samples, heard, rtol=0, atol=1e-4)
            rounded += not np.array_equal(samples, heard)
        else:
            frame, book = difference
            parted.append(margins[groups * frame + book])
    figures = (
        f"{STREAMS} streams, {draws} draws, smallest margin {smallest:.1e}; {len(parted)} parted, at margins {parted}; "
        f"of the others {rounded} with other rounding"
    )
    log.info(figures)
    assert max(parted, default=0.0) < NEAR_TIE, f"some parted where nothing tied: {figures}"
    assert rounded, "nothing was rounded otherwise: these were no crowds"


def test_where_two_streams_part_is_found() -> None:
    codes = [[1, 2], [3, 4]]
    assert first_difference(codes, codes) is None
    assert first_difference(codes, [[1, 2], [3, 5]]) == (1, 1)
    assert first_difference(codes, codes[:1]) == (1, 0)
