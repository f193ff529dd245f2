# SPDX-License-Identifier: Apache-2.0
"""The codec decoder with kernels, in Triton's interpreter: the reference's samples, in slots, in any chunking."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.depthwise import depthwise_norm, depthwise_norm_reference
from polyvox.kernels.ring_attention import RingAttention
from polyvox.models.layers.decoder_pass import DecoderState
from polyvox.models.qwen3_tts.codec import CodecDecoder
from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.synthetic import tiny_files

pytestmark = pytest.mark.slow

FRAMES, WINDOW, SLOTS = 9, 5, 5


@cache
def decoder(dtype: torch.dtype = torch.float32) -> CodecDecoder:
    """Smaller than the tiny codec, since Triton's interpreter is slow; deterministic."""
    tiny = parse_config(tiny_files("custom_voice")).codec
    small = replace(tiny, window=WINDOW, decoder_dim=16, quantizers=3, upsampling_ratios=(2,), upsample_rates=(3, 2))
    codec = CodecDecoder(replace(small, transformer=replace(small.transformer, layers=2)))
    codec.requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for name, weight in codec.named_parameters():
        if weight.dim() == 1:
            low, high = (0.7, 1.3) if name.endswith(("norm.weight", "usage")) else (-0.3, 0.3)
        else:
            high = (3.0 / (weight.shape[0] if "block.1." in name else weight[0].numel())) ** 0.5
            # Residual branches accumulate, and samples must stay below the clamp.
            high *= 0.3 if "conv2" in name else 0.1 if weight.shape[0] == 1 else 1.0
            low = -high
        weight.uniform_(low, high, generator=generator)
    codec.narrow(dtype)
    return codec


@cache
def codes() -> Tensor:
    config = decoder().config
    generator = torch.Generator().manual_seed(1)
    return torch.randint(config.codebook_size, (2, FRAMES, config.quantizers), generator=generator)


@cache
def expected() -> Tensor:
    with torch.no_grad(), kernels.disabled():
        return decoder()(codes(), decoder().initial_state(2))[0]


def decoded(codec: CodecDecoder, state: DecoderState, slots: Tensor, sizes: list[int]) -> Tensor:
    return torch.cat([codec(part, state, slots)[0] for part in codes().split(sizes, dim=1)], dim=1)


def decibels(found: Tensor) -> float:
    """Signal-to-noise ratio against the reference decoder in float32, in dB."""
    return (10 * ((found - expected()).square().mean() / expected().square().mean()).log10()).item()


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("sizes", [[1, 1, 1, 2, 4], [8, 1]])
def test_chunks_in_slots_give_the_samples_of_the_reference_decoder(sizes: list[int]) -> None:
    codec = decoder()
    state, slots = codec.initial_state(SLOTS), torch.tensor([3, 1])
    assert decibels(decoded(codec, state, slots, sizes)) < -110
    fresh = codec.initial_state(SLOTS)
    assert all(torch.equal(state[name][[0, 2, 4]], fresh[name][[0, 2, 4]]) for name in state)


@pytest.mark.usefixtures("interpreted")
def test_kernels_accept_a_copied_state() -> None:
    codec = decoder()
    _, state = codec(codes()[:, :5], codec.initial_state(2))
    copied = {name: rows.clone() for name, rows in state.items()}
    again = [codec(codes()[:, 5:], state)[0] for _ in range(2)]
    assert all(torch.equal(state[name], copied[name]) for name in state)
    assert torch.equal(*again)
    whole = expected()[:, 5 * codec.config.samples_per_frame :]
    assert (again[0] - whole).abs().max() < 1e-5


@pytest.mark.usefixtures("interpreted")
def test_half_precision_keeps_a_high_signal_to_noise_ratio() -> None:
    codec = decoder(torch.float16)
    found = decoded(codec, codec.initial_state(SLOTS), torch.tensor([4, 0]), [4, 5])
    assert found.dtype == torch.float32
    assert decibels(found) < -45


@pytest.mark.usefixtures("interpreted")
def test_a_stream_has_the_same_samples_in_any_batch() -> None:
    """Padding rows in a poisoned scratch slot do not change a stream's bits."""
    codec, part = decoder(), codes()[:, :3]
    state, spoilt = codec.initial_state(SLOTS), codec.initial_state(SLOTS)
    for rows in spoilt.values():
        rows[0] = torch.nan if rows.is_floating_point() else 1
    beside, _ = codec(part, state, torch.tensor([3, 1]))
    padded, _ = codec(part[[0, 1]], spoilt, torch.tensor([0, 1]))
    assert torch.equal(padded[1], beside[1])
    assert all(torch.equal(spoilt[name][1], state[name][1]) for name in state)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("columns", [1, 7, 24])
def test_ring_attention_equals_its_reference(columns: int, group: int) -> None:
    """Streams that just started, that fill the ring, that wrapped around; unwritten entries are NaN."""
    generator = torch.Generator().manual_seed(columns)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    first, slots = torch.tensor([0, 4, 11, 40]), torch.tensor([2, 0, 5, 3])
    rings = [noise(6, 2, 2, 11, 16) for _ in range(2)]
    for ring in rings:
        ring[2] = torch.nan
        ring[0, :, :, 4:] = torch.nan
    plain = [ring.nan_to_num() for ring in rings]
    q, k, v = noise(4, columns, 2 * group, 16), noise(4, columns, 2, 16), noise(4, columns, 2, 16)
    positions, cos, sin = first[:, None] + torch.arange(columns), noise(4, columns, 1, 16), noise(4, columns, 1, 16)
    found = RingAttention(rings[0], rings[1], slots, positions, cos, sin)(1, q, k, v)
    attention = RingAttention(plain[0], plain[1], slots, positions, cos, sin)
    expected = attention.attend_reference(plain[0][:, 1], plain[1][:, 1], q, k, v)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for ring, other in zip(rings, plain, strict=True):
        torch.testing.assert_close(ring.nan_to_num(), other)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("columns", [1, 3, 9])
def test_depthwise_convolution_and_norm_equal_their_reference(columns: int) -> None:
    generator = torch.Generator().manual_seed(columns)
    x, state = (torch.randn(2, 20, n, generator=generator) for n in (columns, 6))
    state = state.repeat(2, 1, 1).transpose(1, 2).contiguous().transpose(1, 2)
    weight, bias, gain, shift = (torch.randn(20, *more, generator=generator) for more in [(1, 7), (), (), ()])
    slots = torch.tensor([3, 0])
    past = state[slots]
    found = depthwise_norm(x, state, slots, weight, bias, gain, shift, 1e-6)
    torch.testing.assert_close(found, depthwise_norm_reference(x, past, weight, bias, gain, shift, 1e-6))
    assert torch.equal(state[slots], torch.cat([past, x], dim=-1)[..., -6:])
