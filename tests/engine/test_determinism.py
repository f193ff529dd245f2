# SPDX-License-Identifier: Apache-2.0
"""Level (b) of determinism: in float32 a batch rounds differently than a solo run, which only near ties may show.

Level (a), float64, where the codes are equal in any batch, is test_engine_machine.py. With `deterministic` the
samples are equal in float32 too.
"""

import logging
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import Loaded
from engine.stepped_engine import LOW_COST
from engine.synthesis import Codes, read_all, record_codes, request
from polyvox.audio.samples import Samples
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.kernels import sampler
from polyvox.models import talker_generator as generator
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.models.request import Request, Sampling

pytestmark = pytest.mark.slow

log = logging.getLogger(__name__)

# Rounding changes a score by about 1e-6; two scores closer than this may swap.
NEAR_TIE = 1e-4
SLOTS = 8
TEXTS = ("hello there", "the other assistant", "on and on it goes, the line", "a")
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=1.5, top_k=0, predictor_temperature=1.5, predictor_top_k=0),
    Sampling(temperature=0.7, top_k=10, repetition_penalty=1.3),
)


@contextmanager
def recorded_margins() -> Iterator[list[float]]:
    """Margins between the best and the second best score of each draw of a solo run."""
    found: list[float] = []
    draw: Callable[[Tensor, Tensor, Tensor], Tensor] = sampler.draw

    def recorded(logits: Tensor, params: Tensor, noise: Tensor) -> Tensor:
        assert len(logits) == 1
        temperature = params[:, sampler.TEMPERATURE, None]
        scores = logits / torch.where(temperature == 0, 1.0, temperature)
        ordered = scores.sort(dim=-1, descending=True).values
        kept = torch.where(scores < sampler._threshold(ordered, params), -torch.inf, scores)
        best, second = torch.where(temperature == 0, kept, kept + noise).topk(2).values[0].tolist()
        found.append(best - second)
        return draw(logits, params, noise)

    with mock.patch.object(generator, "draw", recorded):
        yield found


def first_difference(one: Codes, other: Codes) -> tuple[int, int] | None:
    """The first frame and codebook that differ; if one is shorter, codebook 0 of its end."""
    for frame, (left, right) in enumerate(zip(one, other, strict=False)):
        for book, (a, b) in enumerate(zip(left, right, strict=True)):
            if a != b:
                return frame, book
    return None if len(one) == len(other) else (min(len(one), len(other)), 0)


def run_solo(
    speech: Qwen3TTSModel, wanted: list[Request], deterministic: bool = False
) -> list[tuple[Codes, Samples, list[float]]]:
    """Runs requests one after the other, on an engine with one slot."""
    engine = LocalEngine(speech, EngineConfig(max_streams=1, deterministic=deterministic))
    try:
        codes, found = record_codes(engine), []
        for one in wanted:
            with recorded_margins() as margins:
                stream = engine.submit(one)
                samples = read_all(stream)
            found.append((codes[stream], samples, margins))
        return found
    finally:
        engine.close()


def run_in_batches(
    speech: Qwen3TTSModel, wanted: list[Request], sizes: Iterable[int], deterministic: bool = False
) -> list[tuple[Codes, Samples]]:
    """Runs requests in batches of these sizes, one batch after the other."""
    config = EngineConfig(max_streams=SLOTS, max_queue=len(wanted), deterministic=deterministic)
    engine = LocalEngine(speech, config)
    try:
        codes = record_codes(engine)
        with engine.lock:
            engine.load.cost = replace(LOW_COST)  # the calibrated capacity may be one stream
        found, waiting = [], iter(wanted)
        for size in sizes:
            with engine.lock:
                streams = [engine.submit(one) for one in islice(waiting, size)]
            found += [(stream, read_all(stream)) for stream in streams]
        if not deterministic:  # then calls have one stream, and a busy machine admits fewer at once
            assert engine.stats()["frames"] / engine.stats()["steps"] > 2, "the batches are too small"
        return [(codes[stream], samples) for stream, samples in found]
    finally:
        engine.close()


def test_a_float32_batch_equals_solo_runs_or_diverges_at_a_near_tie(loaded: Loaded) -> None:
    """`pytest --log-cli-level=info` shows the counts."""
    compare_batches_with_solo_runs(loaded("custom_voice", "float32").model, num_streams=20, num_frames=20)


def test_a_deterministic_engine_on_a_cpu_has_the_same_samples_in_any_batch(loaded: Loaded) -> None:
    speech = loaded("custom_voice", "float32").model
    wanted = [request(TEXTS[seed % 4], "serena", seed, 6, sampling=SAMPLINGS[seed % 3]) for seed in range(SLOTS)]
    batched = run_in_batches(speech, wanted, [SLOTS], deterministic=True)
    for (codes, samples), (expected, expected_samples, _) in zip(
        batched, run_solo(speech, wanted, deterministic=True), strict=True
    ):
        assert codes == expected
        np.testing.assert_array_equal(samples, expected_samples)


def compare_batches_with_solo_runs(speech: Qwen3TTSModel, num_streams: int, num_frames: int) -> None:
    rng = random.Random(1)
    wanted = [
        request(
            rng.choice(TEXTS),
            rng.choice(["serena", "vivian"]),
            seed,
            num_frames,
            layout=rng.choice(["whole", "streaming"]),
            sampling=replace(rng.choice(SAMPLINGS), min_frames=rng.choice([2, num_frames])),
        )
        for seed in range(num_streams)
    ]
    groups = speech.config.talker.code_groups
    diverged: list[float] = []
    smallest, draws, rounded = 1.0, 0, 0
    sizes = [rng.randint(1, SLOTS) for _ in wanted]
    batched, solo = run_in_batches(speech, wanted, sizes), run_solo(speech, wanted)
    for (codes, samples), (expected, expected_samples, margins) in zip(batched, solo, strict=True):
        assert len(margins) >= groups * len(expected)
        smallest, draws = min(smallest, *margins), draws + len(margins)
        difference = first_difference(codes, expected)
        if difference is None:
            np.testing.assert_allclose(samples, expected_samples, rtol=0, atol=1e-4)
            rounded += not np.array_equal(samples, expected_samples)
        else:
            frame, book = difference
            diverged.append(margins[groups * frame + book])
    figures = (
        f"{num_streams} streams, {draws} draws, smallest margin {smallest:.1e}; "
        f"{len(diverged)} diverged, at margins {diverged}; "
        f"of the others {rounded} differ by rounding"
    )
    log.info(figures)
    assert max(diverged, default=0.0) < NEAR_TIE, f"divergence without a near tie: {figures}"
    assert rounded, "no sample differs by rounding: these were no batches"


def test_the_first_difference_is_found() -> None:
    codes = [[1, 2], [3, 4]]
    assert first_difference(codes, codes) is None
    assert first_difference(codes, [[1, 2], [3, 5]]) == (1, 1)
    assert first_difference(codes, codes[:1]) == (1, 0)
