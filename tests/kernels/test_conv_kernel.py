# SPDX-License-Identifier: Apache-2.0
"""The convolution kernel against its reference implementations, in Triton's interpreter, at shapes that fit no tile."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from polyvox.kernels import conv, tiles
from polyvox.kernels.conv import (
    PackedConv,
    causal_conv,
    causal_conv_reference,
    causal_upsample_reference,
    pack_conv,
    pack_upsample,
    update_history,
    update_history_reference,
)
from polyvox.kernels.gpu import GPUS, Gpu
from polyvox.kernels.snake import snake_coefficients, snake_reference

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interpreted")]

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3}
SLOTS = 7
# inputs, outputs, taps, dilation: the codec's layer shapes, at sizes that are not multiples of a tile.
CONVS = [(16, 24, 7, 1), (8, 8, 7, 9), (48, 40, 3, 1), (32, 1, 7, 3), (24, 96, 1, 1)]
UPSAMPLES = [(16, 8, 3, 2), (24, 10, 5, 2), (16, 16, 2, 1)]  # inputs, outputs, rate, taps


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def slot_state(channels: int, history: int, dtype: torch.dtype) -> Tensor | None:
    return noise(SLOTS, history, channels, dtype=dtype, seed=9).transpose(1, 2) if history else None


def close(found: Tensor, expected: Tensor) -> None:
    error = (found.double() - expected.double()).abs().max() / expected.double().abs().max().clamp(min=1e-9)
    assert error < TOLERANCE[found.dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("inputs", "outputs", "kernel", "dilation"), CONVS)
@pytest.mark.parametrize("columns", [1, 5, 33])
def test_a_convolution_continues_the_columns_of_its_slot(
    inputs: int, outputs: int, kernel: int, dilation: int, columns: int, dtype: torch.dtype
) -> None:
    weight = noise(outputs, inputs, kernel, dtype=dtype, seed=1) / (inputs * kernel) ** 0.5
    bias, x = noise(outputs, dtype=dtype, seed=2), noise(3, inputs, columns, dtype=dtype, seed=3)
    add, snake = noise(3, outputs, columns, dtype=dtype, seed=4), (noise(outputs, seed=5), noise(outputs, seed=6))
    slots = torch.tensor([5, 0, 2])
    taps = pack_conv(weight, bias, dilation)
    state = slot_state(inputs, taps.history, dtype)
    past = state[slots] if state is not None else None
    before = state.clone() if state is not None else None
    found, active = causal_conv(x, taps, state, slots, add, snake_coefficients(*snake))
    expected = causal_conv_reference(x.double(), widen(past), weight.double(), bias.double(), dilation) + add.double()
    close(found, expected)
    close(active, snake_reference(expected, *snake))
    if state is not None and before is not None and past is not None:
        assert torch.equal(state[slots], torch.cat([past, x], dim=-1)[..., -taps.history :])
        others = [1, 3, 4, 6]
        assert torch.equal(state[others], before[others])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("inputs", "outputs", "rate", "taps"), UPSAMPLES)
def test_a_transposed_convolution_is_the_same_product(
    inputs: int, outputs: int, rate: int, taps: int, dtype: torch.dtype
) -> None:
    weight = noise(inputs, outputs, rate * taps, dtype=dtype, seed=1) / inputs**0.5
    bias, x = noise(outputs, dtype=dtype, seed=2), noise(2, inputs, 9, dtype=dtype, seed=3)
    snake, slots = (noise(outputs, seed=5), noise(outputs, seed=6)), torch.tensor([6, 1])
    packed = pack_upsample(weight, bias, rate)
    state = slot_state(inputs, packed.history, dtype)
    past = state[slots] if state is not None else None
    found, active = causal_conv(x, packed, state, slots, snake=snake_coefficients(*snake))
    expected = causal_upsample_reference(x.double(), widen(past), weight.double(), bias.double(), rate)
    assert found.shape == (2, outputs, 9 * rate)
    close(found, expected)
    close(active, snake_reference(expected, *snake))
    if state is not None:
        assert torch.equal(state[slots], x[..., -1:])


def widen(past: Tensor | None) -> Tensor | None:
    return None if past is None else past.double()


def small_layer() -> PackedConv:
    return pack_conv(noise(20, 12, 7, seed=1), noise(20, seed=2), 3)


@pytest.mark.parametrize("sizes", [[1] * 16, [2] * 8, [4] * 4, [8, 8], [1, 2, 5, 8]])
def test_any_chunking_gives_the_columns_of_one_call(sizes: list[int]) -> None:
    layer, x, slots = small_layer(), noise(2, 12, 16, seed=3), torch.tensor([3, 1])
    whole = torch.zeros(SLOTS, 18, 12).transpose(1, 2)
    parts = whole.clone()
    expected, _ = causal_conv(x, layer, whole, slots)
    found = [causal_conv(part, layer, parts, slots)[0] for part in x.split(sizes, dim=-1)]
    torch.testing.assert_close(torch.cat(found, dim=-1), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(parts, whole)


def test_a_stream_does_not_depend_on_its_neighbours_even_if_they_are_poisoned() -> None:
    """Padding rows share a scratch slot full of NaN and do not change a stream's bits."""
    layer, x = small_layer(), noise(5, 12, 6, seed=3)
    state = slot_state(12, 18, torch.float32)
    assert state is not None
    first, spoilt = state.clone(), state.clone()
    spoilt[[0, 6]] = torch.nan
    found, _ = causal_conv(x, layer, first, torch.tensor([2, 3, 4, 5, 1]))
    x[[0, 1, 3, 4]] = torch.nan
    alone, _ = causal_conv(x, layer, spoilt, torch.tensor([6, 6, 4, 6, 0]))
    assert torch.equal(alone[2], found[2])
    assert torch.equal(spoilt[4], first[4])
    assert torch.equal(spoilt[[1, 2, 3, 5]], state[[1, 2, 3, 5]])


@pytest.mark.parametrize("columns", [1, 4, 11, 30])
def test_the_history_update_equals_its_reference(columns: int) -> None:
    rows, past, slots = noise(3, columns, 70), noise(SLOTS, 11, 70, seed=1), torch.tensor([4, 0, 6])
    expected = past.clone()
    update_history_reference(rows, expected, slots)
    update_history(rows, past, slots)
    assert torch.equal(past, expected)


def test_snake_keeps_its_precision_far_from_zero() -> None:
    x = torch.linspace(-100, 100, 40 * 16).view(1, 1, -1).expand(1, 2, -1).contiguous()
    one = pack_conv(torch.eye(2)[..., None], torch.zeros(2), 1)
    snake = (torch.tensor([0.0, -3.0]), torch.tensor([0.0, -1.0]))
    _, found = causal_conv(x, one, None, torch.tensor([0]), snake=snake_coefficients(*snake))
    torch.testing.assert_close(found.double(), snake_reference(x.double(), *snake), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("tile", tiles.TILES, ids=str)
def test_every_tile_gives_the_same_product(tile: tiles.Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and channels that are not multiples of a tile, and more than one tile of both."""
    monkeypatch.setattr(conv, "choose_tile", lambda *_: replace(tile, depth=16))
    outputs, columns = tile.columns + 5, tile.rows // 2 + 3
    weight, x = noise(outputs, 24, 2, seed=1).half() / 7, noise(2, 24, columns, seed=3).half()
    taps, slots = pack_conv(weight, torch.zeros(outputs).half(), 2), torch.tensor([1, 0])
    state = slot_state(24, 2, torch.float16)
    assert state is not None
    past = state[slots].double()
    found, _ = causal_conv(x, taps, state, slots)
    close(found, causal_conv_reference(x.double(), past, weight.double(), torch.zeros(outputs).double(), 2))


@pytest.mark.parametrize("tile", tiles.TILES, ids=str)
def test_every_tile_fits_a_multiprocessor(tile: tiles.Tile) -> None:
    """Operands in shared memory, accumulators in at most 128 of a thread's registers."""
    assert tile.shared + tiles.SPARE <= GPUS[90].shared
    assert tile.rows * tile.columns <= 128 * 32 * tile.warps


@pytest.mark.parametrize("shared", [48 << 10, 99 << 10, 163 << 10])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (32, 768), (1 << 16, 768), (1 << 22, 96)])
def test_a_gpu_with_less_shared_memory_gets_a_tile_that_fits(rows: int, columns: int, shared: int) -> None:
    chosen = tiles.choose_tile(rows, columns, 96, torch.float16, Gpu(80, 40, shared))
    assert chosen.shared + tiles.SPARE <= shared


@pytest.mark.parametrize("gpu", GPUS.values(), ids=str)
def test_every_architecture_has_the_largest_tile(gpu: Gpu) -> None:
    """With fewer stages where shared memory is small."""
    chosen = tiles.choose_tile(1 << 20, 768, 768, torch.float16, gpu)
    assert (chosen.rows, chosen.columns) == (128, 192)
    assert chosen.stages >= 2
    assert chosen.shared + tiles.SPARE <= gpu.shared
