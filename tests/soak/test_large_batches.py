# SPDX-License-Identifier: Apache-2.0
"""Tests of `make test` with more streams and frames: batches against solo runs, copied codes, kernels."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import Loaded
from engine.test_determinism import compare_batches_with_solo_runs
from engine.test_vocoder_runner import compare_copied_codes
from kernels.test_model_with_kernels import compare_codes, compare_predictor_logits
from models.test_model import REQUEST, Requests, compare_batch_with_solo_runs
from polyvox.engine.config import EngineConfig


def test_float32_batches_equal_solo_runs_or_diverge_at_a_near_tie(loaded: Loaded) -> None:
    compare_batches_with_solo_runs(loaded("custom_voice", "float32").model, num_streams=96, num_frames=40)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=st.lists(REQUEST, min_size=2, max_size=5))
def test_a_stream_in_a_batch_generates_the_codes_that_it_generates_alone(requests: Requests, loaded: Loaded) -> None:
    compare_batch_with_solo_runs(loaded("custom_voice", "float64"), requests, num_frames=24)


def test_fixed_size_calls_with_copied_codes_give_the_same_samples(loaded: Loaded) -> None:
    config = EngineConfig(max_streams=4, cuda_graphs=True, context=1024)
    compare_copied_codes(loaded("custom_voice", "float64").model, config, num_streams=6, num_frames=24)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("checkpoint", "lengths"), [("custom_voice", (19, 4)), ("voice_design", (5, 17)), ("omni-plain", (11, 5))]
)
def test_streams_with_kernels_sample_the_codes_of_the_reference(
    checkpoint: str, lengths: tuple[int, ...], loaded: Loaded
) -> None:
    compare_codes(loaded(checkpoint, "float32"), lengths, num_frames=4)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("num_streams", [1, 2, 5])
def test_a_small_batch_has_the_logits_of_the_reference_predictor(num_streams: int, loaded: Loaded) -> None:
    compare_predictor_logits(loaded("custom_voice", "float32"), num_streams)
