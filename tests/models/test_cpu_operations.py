# SPDX-License-Identifier: Apache-2.0
"""What inference on a CPU computes with fewer or larger operations equals the reference implementation."""

import math
import weakref
from typing import Any

import pytest
import torch

from conftest import Loaded
from polyvox.engine.config import PAGE
from polyvox.engine.kv_cache import KVCache
from polyvox.kernels.conv import causal_product
from polyvox.models.layers import conv_layers
from polyvox.models.layers.code_predictor import CodePredictor
from polyvox.models.layers.conv_layers import MAX_PRODUCT_COLUMNS, CausalConv, CausalUpsample, Stateful
from polyvox.models.layers.linear import Linear, arrange_matrices
from polyvox.models.layers.transformer_config import CodePredictorConfig, TransformerConfig
from polyvox.models.paged_kv import KVShape

LAYERS = [
    CausalConv(6, 5, 7, dilation=3),
    CausalConv(6, 5, 1),
    CausalUpsample(6, 3, 10, 5),
    CausalUpsample(6, 6, 2, 2),
]


@pytest.mark.parametrize("columns", [1, 4, MAX_PRODUCT_COLUMNS + 1])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{type(layer).__name__}-{layer.state_shape[1]}")
def test_a_matrix_product_equals_the_convolution(
    layer: Stateful, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    products: list[torch.Tensor] = []

    def product(*given: Any) -> torch.Tensor:
        products.append(causal_product(*given))
        return products[-1]

    monkeypatch.setattr(conv_layers, "causal_product", product)
    channels, history = layer.state_shape
    x, past = torch.randn(2, channels, columns), torch.randn(2, channels, history) if history else None
    with torch.enable_grad():
        expected = layer.plain(x, past).detach()
    with torch.no_grad():
        torch.testing.assert_close(layer.plain(x, past), expected, rtol=1e-5, atol=1e-5)
    assert len(products) == (columns <= MAX_PRODUCT_COLUMNS)


@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{type(layer).__name__}-{layer.state_shape[1]}")
@torch.no_grad()
def test_a_product_uses_the_current_weights(layer: Stateful, name: str) -> None:
    torch.manual_seed(0)
    channels, history = layer.state_shape
    x, past = torch.randn(1, channels, 4), torch.randn(1, channels, history) if history else None
    before, changed = layer.plain(x, past), layer.get_parameter(f"conv.{name}")
    changed.add_(1)
    found = layer.plain(x, past)
    with torch.enable_grad():
        expected = layer.plain(x, past).detach()
    changed.sub_(1)
    assert (found - before).abs().max() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_an_activation_uses_the_current_coefficients() -> None:
    snake, x = conv_layers.SnakeBeta(3), torch.ones(1, 3, 2)
    for parameter in snake.parameters():
        torch.nn.init.zeros_(parameter)
    before = snake(x)
    snake.beta.sub_(1)
    torch.testing.assert_close(snake(x) - x, (before - x) * math.e)


def test_matrices_that_are_stored_by_column_give_the_same_rows() -> None:
    torch.manual_seed(0)
    wide, high = Linear(6, 20), Linear(20, 6)
    for layer in (wide, high):
        torch.nn.init.normal_(layer.weight)
    x = torch.randn(3, 6)
    expected = high(wide(x))
    for by_column, strides in ((True, ((1, 20), (20, 1))), (False, ((6, 1), (20, 1)))):
        arrange_matrices(torch.nn.ModuleList([wide, high]), by_column)
        torch.testing.assert_close(high(wide(x)), expected)
        assert (wide.weight.stride(), high.weight.stride()) == strides


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("pages", [[3, 4, 5], [5, 2, 4]], ids=["consecutive", "scattered"])
def test_attention_of_one_row_equals_that_of_the_row_in_a_batch(pages: list[int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    shape, position = KVShape(2, 2, 8), 2 * PAGE + 3
    caches = [KVCache(shape, 6, 3, 4, torch.device("cpu"), dtype) for _ in range(2)]
    past = torch.randn(caches[0]._pool.shape)
    past[:, :, pages[2], 4:] = torch.nan  # not written yet
    past[:, :, 1] = torch.nan  # of another slot
    for cache in caches:
        cache._pool.copy_(past)
        cache.set_block_table(1, pages)
        cache.upload()
    q, k, v = torch.randn(1, 1, 6, 8), torch.randn(1, 1, 2, 8), torch.randn(1, 1, 2, 8)
    alone = caches[0].view(torch.tensor([1]), torch.tensor([position]), position + 1, decode_only=True)
    slots, positions = torch.tensor([1, 0]), torch.tensor([position, 0])
    batch = caches[1].view(slots, positions, position + 1, decode_only=True)
    assert callable(alone)
    assert callable(batch)
    for layer in range(2):
        both = batch(layer, *(rows.expand(2, -1, -1, -1) for rows in (q, k, v)))
        torch.testing.assert_close(alone(layer, q, k, v), both[:1])
    written = [cache._pool[:, :, pages[2], position % PAGE] for cache in caches]
    assert torch.equal(*written)
    assert not written[0].isnan().any()


def test_precomputed_rows_give_the_codes_of_the_projection() -> None:
    torch.manual_seed(0)
    shape = TransformerConfig(16, 24, layers=2, heads=2, kv_heads=2, head_dim=8, norm_eps=1e-6, rope_theta=10_000)
    predictor = CodePredictor(CodePredictorConfig(shape, 32), 24, 3)
    for parameter in predictor.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    hidden, first = torch.randn(4, 24), torch.randn(4, 24)
    logits: list[list[torch.Tensor]] = [[], []]
    for number in range(2):

        def draw(book: int, scores: torch.Tensor, number: int = number) -> torch.Tensor:
            assert book == len(logits[number])
            logits[number].append(scores)
            return scores.argmax(-1)

        predictor(predictor.inputs(hidden, first), draw)
        predictor.precompute(torch.randn(5, 24), max_batch=4)
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-4)


def test_a_state_keeps_what_was_computed_for_it(loaded: Loaded) -> None:
    """Its CUDA graphs contain the addresses; a further state of the same model computes it again."""
    generator = loaded("custom_voice", "float32").model.generator
    predictor = generator.talker.code_predictor
    first = generator.new_state(1, 4, 4)
    assert predictor.precomputed is not None
    of_first = weakref.ref(predictor.precomputed.rows)
    second = generator.new_state(1, 4, 4)
    assert predictor.precomputed.rows is not of_first()
    assert of_first() is not None
    del first
    assert of_first() is None
    assert second.nbytes
