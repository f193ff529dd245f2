# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import DEVICE, Loaded
from parity import TOLERANCE, golden, relative_error
from polyvox.models.layers.decoder_pass import DecoderState
from polyvox.models.layers.transformer import TransformerLayer
from reference.cases import STREAMED_CODEC_FRAMES

pytestmark = pytest.mark.slow

CHUNKS = st.lists(st.integers(1, 25), min_size=1, max_size=STREAMED_CODEC_FRAMES)


def cuts(sizes: list[int]) -> list[tuple[int, int]]:
    """Chunk boundaries over all frames; the sizes repeat."""
    borders: list[tuple[int, int]] = []
    start = 0
    while start < STREAMED_CODEC_FRAMES:
        stop = min(start + sizes[len(borders) % len(sizes)], STREAMED_CODEC_FRAMES)
        borders.append((start, stop))
        start = stop
    return borders


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=CHUNKS, dtype=st.sampled_from(["float32", "float64"]))
def test_any_chunking_gives_the_samples_of_the_reference(sizes: list[int], dtype: str, loaded: Loaded) -> None:
    expected, codec = golden("codec", dtype), loaded("custom_voice", dtype).model.model.codec
    codes = torch.from_numpy(expected["short_codes"]).to(DEVICE)
    state = codec.initial_state(len(codes))
    chunks = []
    with torch.no_grad():
        for start, stop in cuts(sizes):
            samples, state = codec(codes[:, start:stop], state)
            chunks.append(samples)
    assert relative_error(torch.cat(chunks, dim=1), expected["short"]) < TOLERANCE[dtype]


def test_streams_at_different_positions_share_a_batch(loaded: Loaded) -> None:
    """Row 1 starts 21 frames after row 0; each has the samples of the stream alone."""
    expected, codec = golden("codec", "float64"), loaded("custom_voice", "float64").model.model.codec
    codes = torch.from_numpy(expected["short_codes"]).to(DEVICE)
    _, ahead = codec(codes[:1, :21], codec.initial_state(1))
    fresh = codec.initial_state(1)
    state: DecoderState = {key: torch.cat([ahead[key], fresh[key]]) for key in fresh}
    together = torch.stack([codes[0, 21:40], codes[1, :19]])
    samples, _ = codec(together, state)
    size = codec.config.samples_per_frame
    assert relative_error(samples[:1], expected["short"][:1, 21 * size : 40 * size]) < TOLERANCE["float64"]
    assert relative_error(samples[1:], expected["short"][1:, : 19 * size]) < TOLERANCE["float64"]


@pytest.mark.parametrize("slots", [[1, 2], [2, 0]])
def test_streams_in_any_slots_have_the_samples_of_a_state_of_their_own(slots: list[int], loaded: Loaded) -> None:
    codec = loaded("custom_voice", "float32").model.model.codec
    codes = torch.from_numpy(golden("codec", "float32")["short_codes"]).to(DEVICE)[:2]
    state, own, at = codec.initial_state(4), codec.initial_state(2), torch.tensor(slots, device=DEVICE)
    before = {key: value.clone() for key, value in state.items()}
    for first in (0, 1, 4):
        frames = codes[:, first : first + (3 if first else 1)]
        samples, _ = codec(frames, state, at)
        expected, own = codec(frames, own)
        assert torch.equal(samples, expected)
    assert all(torch.equal(state[key][3], before[key][3]) for key in state)
    assert all(torch.equal(state[key][at], own[key]) for key in state)


def test_fused_projections_with_layer_scales_give_the_same_samples(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = loaded("custom_voice", "float64").model.model.codec
    codes = torch.from_numpy(golden("codec", "float64")["short_codes"]).to(DEVICE)[:, :6]
    with torch.inference_mode():
        expected, _ = codec(codes, codec.initial_state(len(codes)))
        monkeypatch.setattr(TransformerLayer, "supports_fused", lambda _layer, _rows: True)
        found, _ = codec(codes, codec.initial_state(len(codes)))
    assert not torch.equal(found, expected)  # the norm is divided between two products
    assert relative_error(found, expected.cpu().numpy()) < 1e-9


def test_decoding_without_slots_does_not_change_its_input_state(loaded: Loaded) -> None:
    """So that a state can be kept and used again."""
    codec = loaded("custom_voice", "float32").model.model.codec
    codes = torch.from_numpy(golden("codec", "float32")["short_codes"]).to(DEVICE)
    _, state = codec(codes[:, :9], codec.initial_state(2))
    copied = {key: value.clone() for key, value in state.items()}
    first, _ = codec(codes[:, 9:14], state)
    assert all(torch.equal(state[key], copied[key]) for key in state)
    again, _ = codec(codes[:, 9:14], state)
    assert torch.equal(first, again)


def test_every_entry_of_the_state_affects_the_samples(loaded: Loaded) -> None:
    """Clearing any entry changes the samples, so the state has no unused entries."""
    codec = loaded("custom_voice", "float64").model.model.codec
    codes = torch.from_numpy(golden("codec", "float64")["short_codes"]).to(DEVICE)
    _, state = codec(codes[:, :30], codec.initial_state(2))
    right, _ = codec(codes[:, 30:], state)
    assert codec.initial_state(2).keys() == state.keys()
    for key in state:
        wrong, _ = codec(codes[:, 30:], state | {key: torch.zeros_like(state[key])})
        assert relative_error(wrong, right.cpu().numpy()) > 1e-6, key


def test_a_state_does_not_keep_the_memory_of_a_larger_tensor(loaded: Loaded) -> None:
    codec = loaded("custom_voice", "float32").model.model.codec
    codes = torch.from_numpy(golden("codec", "float32")["short_codes"]).to(DEVICE)
    _, state = codec(codes, codec.initial_state(2))
    for key, value in state.items():
        assert value.untyped_storage().nbytes() == value.numel() * value.element_size(), key
