# SPDX-License-Identifier: Apache-2.0
"""Recordings survive saving and loading; error rates and their differences have correct standard errors."""

from pathlib import Path

import numpy as np
import pytest

from polyvox import load
from polyvox.bench.wer import WordErrors
from training.check import length_off
from training.rates import difference, error_rate
from training.recordings import ENGINE, Recording, load_recordings, save_recordings, speak
from training.sampling import table

pytestmark = pytest.mark.slow

# The first text twice: long enough that two seeds give different audio.
LONG = "I left my umbrella on the train this morning."
TEXTS = [LONG, "We ran out of milk.", LONG]


def test_saved_recordings_load_unchanged(tmp_path: Path) -> None:
    with load(config=ENGINE) as tts:
        made = speak(tts, TEXTS, "michael", "streaming")
        again = speak(tts, TEXTS[:1], "michael", "streaming")
    assert [one.text for one in made] == TEXTS
    assert len(made[0].samples) == len(again[0].samples)  # the seed is the index in the list, independent of the batch
    assert np.abs(made[0].samples - again[0].samples).max() < 1e-4
    assert not np.array_equal(made[0].samples, made[2].samples)
    save_recordings(tmp_path / "streaming-michael.npz", made, tts.sample_rate)
    found, rate = load_recordings(tmp_path / "streaming-michael.npz")
    assert rate == tts.sample_rate
    for one, other in zip(found, made, strict=True):
        assert (one.text, one.reason) == (other.text, "stop")
        np.testing.assert_allclose(one.samples, np.clip(other.samples, -1, 1), atol=1 / 32767)
        assert length_off(one, rate) is None


def test_runaway_and_cut_off_speech_is_detected() -> None:
    second = np.zeros(24_000, np.float32)
    text = "We ran out of milk."  # 1.3 s
    assert length_off(Recording(text, second, "stop"), 24_000) is None
    assert length_off(Recording(text, second[:9600], "stop"), 24_000) == "cut off"
    assert length_off(Recording(text, np.tile(second, 3), "stop"), 24_000) == "runaway"
    assert length_off(Recording(text, second, "runaway"), 24_000) == "runaway"


def test_the_standard_error_matches_the_spread_of_rates() -> None:
    drawn = np.random.default_rng(0).binomial(10, 0.1, (400, 100))
    rates = [error_rate([WordErrors(int(errors), 10) for errors in row]) for row in drawn]
    assert np.mean([one.value for one in rates]) == pytest.approx(0.1, abs=0.002)
    assert np.mean([one.error for one in rates]) == pytest.approx(np.std([one.value for one in rates]), rel=0.1)
    assert error_rate([WordErrors(1, 10), WordErrors(1, 10)]).percent == "10.0 ± 0.0 %"


def test_errors_common_to_both_cancel_in_the_difference() -> None:
    base = [WordErrors(errors, 10) for errors in (0, 5, 1, 9)]
    worse = [WordErrors(one.errors + 1, 10) for one in base]
    assert difference(worse, base).value == pytest.approx(0.1)
    assert difference(worse, base).error == pytest.approx(0)
    assert error_rate(base).error > 0.1


def test_sampling_settings_are_compared_sentence_by_sentence() -> None:
    rows = [
        {"setting": setting, "sentence": sentence, "cost": cost + sentence, "errors": errors, "words": 10}
        for setting, cost, errors in (("own", 3.0, 1), ("greedy", 2.0, 0))
        for sentence in range(8)
    ]
    own, greedy = table(rows)
    assert own.split() == ["own", "8", "cost", "0.650", "±", "0.087", "errors", "10.0", "±", "0.0"]
    assert greedy.split()[6:10] == ["(-0.100", "±", "0.000)", "errors"]
    assert greedy.endswith("(-10.0 ± 0.0)")
