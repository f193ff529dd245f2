# SPDX-License-Identifier: Apache-2.0
"""Sampling against its reference implementation, in Triton's interpreter."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels import code_draw
from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.gpu import GPUS, assume
from polyvox.kernels.launches import META
from polyvox.kernels.pre_norm import Norm, pre_norm_reference
from polyvox.kernels.sampler import DrawInputs, FirstCodeRules, draw_embedded, draw_keyed, draw_keyed_reference

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interpreted")]

SLOTS = 12
PLAIN = [1.0, 0, 1.0, 1.0]


def draws_of(params: list[list[float]], slots: list[int] | None = None) -> DrawInputs:
    """Row i samples with params[i]; keys, segments and frames of the slots differ."""
    generator = torch.Generator().manual_seed(7)
    rows = torch.tensor(slots or list(range(len(params))))
    by_slot = torch.ones(SLOTS, 4)
    by_slot[rows] = torch.tensor(params)
    return DrawInputs(
        slots=rows,
        params=by_slot,
        key=torch.randint(2**32, (SLOTS, 2), generator=generator),
        segment=torch.randint(100, (SLOTS,), generator=generator),
        frame=torch.randint(2000, (SLOTS,), generator=generator),
    )


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


MIX = [
    PLAIN,
    [0.0, 0, 1.0, 1.0],
    [0.9, 50, 1.0, 1.0],
    [0.7, 5, 0.8, 1.0],
    [1.3, 0, 0.5, 1.0],
    [1.0, 1, 1.0, 1.0],
    [1.0, 9999, 0.999, 1.0],
    [0.5, 20, 0.0, 1.0],
]


@pytest.mark.parametrize(
    ("vocab", "dtype", "book"),
    [(2048, torch.float32, 7), (2048, torch.bfloat16, 7), (3072, torch.float16, 0), (37, torch.bfloat16, 1)],
)
def test_it_samples_what_the_reference_samples(vocab: int, dtype: torch.dtype, book: int) -> None:
    """Samples may differ where the two best scores are within 1e-6; with these seeds none do."""
    logits = (4 * normal(len(MIX), vocab)).to(dtype)
    draws = draws_of(MIX, slots=[3, 0, 7, 1, 11, 5, 2, 9])
    assert torch.equal(draw_keyed(logits, book, draws), draw_keyed_reference(logits, book, draws))


def support(logits: list[float], params: list[float]) -> tuple[set[int], set[int]]:
    """The tokens sampled over many frames, by the kernel and by the reference implementation."""
    count = 24
    draws = draws_of([params])
    draws = replace(
        draws,
        slots=torch.arange(count),
        params=torch.tensor([params]).expand(count, 4).contiguous(),
        key=draws.key[:1].expand(count, 2).contiguous(),
        segment=torch.zeros(count, dtype=torch.int64),
        frame=torch.arange(count),
    )
    rows = torch.tensor([logits]).expand(count, -1).contiguous()
    found = set(draw_keyed(rows, 1, draws).tolist()), set(draw_keyed_reference(rows, 1, draws).tolist())
    halves = rows.half()
    assert set(draw_keyed(halves, 1, draws).tolist()) == set(draw_keyed_reference(halves, 1, draws).tolist())
    return found


@pytest.mark.parametrize(
    ("logits", "params", "kept"),
    [
        ([1.9, 2.0, 2.0, 2.0, 1.8], [1.0, 2, 1.0, 1.0], {1, 2, 3}),  # ties with the k-th are kept
        ([0.0, -0.0, -0.1, -0.2], [1.0, 1, 1.0, 1.0], {0, 1}),  # both zeros are equal
        ([-5.1, -5.0, -5.05], [1.0, 2, 1.0, 1.0], {1, 2}),  # negative scores are ordered too
        ([0.0, 0.0, 0.0, 0.0], [1.0, 0, 0.3, 1.0], {0, 1, 2, 3}),  # ties in top-p
        ([0.2, 0.1, 0.0], [1.0, 0, 0.3, 1.0], {0}),
        ([0.2, 0.1, 0.0], [1.0, 0, 0.5, 1.0], {0, 1}),
        ([0.2, 0.1, 0.0], [1.0, 2, 0.9, 1.0], {0, 1}),  # top-p applies after top-k
        ([1.0, -torch.inf, 1.0], [1.0, 3, 1.0, 1.0], {0, 2}),
    ],
)
def test_filters_keep_what_the_reference_keeps(logits: list[float], params: list[float], kept: set[int]) -> None:
    assert support(logits, params) == (kept, kept)


def test_greedy_takes_the_first_of_the_best() -> None:
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0], [-torch.inf] * 4])
    assert draw_keyed(logits, 3, draws_of([[0.0, 0, 1.0, 1.0]] * 2)).tolist() == [1, 0]


def rules(vocab: int) -> FirstCodeRules:
    generator = torch.Generator().manual_seed(3)
    return FirstCodeRules(
        seen=torch.rand(SLOTS, vocab, generator=generator) < 0.3,
        min_frames=torch.tensor([0, 5000] * (SLOTS // 2)),
        soft_limit=torch.tensor([0, 0, 5000, 5000] * (SLOTS // 4)),
        pressure=0.05,
        end=vocab - 3,
        first_control_id=vocab - 20,
    )


@pytest.mark.parametrize("vocab", [3072, 100])
def test_code_0_follows_its_rules(vocab: int) -> None:
    logits = 3 * normal(8, vocab, seed=5)
    draws = draws_of([[t, 40, 1.0, penalty] for t in (0.0, 0.9) for penalty in (1.0, 1.05, 2.0, 0.5)])
    found = draw_keyed(logits, 0, draws, rules(vocab))
    assert torch.equal(found, draw_keyed_reference(logits, 0, draws, rules(vocab)))


def test_codes_are_written_to_a_column_of_the_codes_of_frames() -> None:
    logits, draws, frames = 3 * normal(8, 100), draws_of(MIX), torch.full((8, 4), -1)
    for first in (None, rules(100)):
        expected = draw_keyed(logits, 0, draws, first)
        out = frames[:, 2]
        assert draw_keyed(logits, 0, draws, first, out=out) is out
        assert torch.equal(frames[:, 2], expected)
        frames[:, 2] = 0
        with kernels.disabled():
            assert draw_keyed(logits, 0, draws, first, out=out) is out
        assert torch.equal(frames[:, 2], expected)
        assert (frames[:, [0, 1, 3]] == -1).all()


def test_embeddings_of_the_codes_are_looked_up() -> None:
    logits, draws, codes = 3 * normal(8, 100), draws_of(MIX), torch.full((8, 4), -1)
    table, norm = normal(100, 24, seed=1), Norm(normal(24, seed=2), 1e-6)
    drawn, rows = draw_embedded(logits, 2, draws, table, norm, codes[:, 2])
    assert torch.equal(drawn, draw_keyed(logits, 2, draws))
    assert torch.equal(codes[:, 2], drawn)
    expected = pre_norm_reference(table[drawn][:, None], norm)
    assert torch.equal(rows.rows, expected.rows)
    assert torch.equal(rows.gained, expected.gained)
    torch.testing.assert_close(rows.squares, expected.squares)


def test_the_kernels_in_cuda_support_the_logits_of_both_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaSource, "available", lambda _: True)
    first = replace(rules(3072), first_control_id=2048, end=2150)

    def supported(vocab: int, first: FirstCodeRules | None, dtype: torch.dtype = torch.bfloat16) -> bool:
        with assume(GPUS[90]), torch.inference_mode():
            return code_draw.supports(torch.empty(3, vocab, dtype=dtype, device=META), first)

    assert supported(2048, None)
    assert supported(3072, first)
    assert supported(3072, replace(first, end=3071))
    assert not supported(3072, None)
    assert not supported(2048, first)
    assert not supported(3072, first, torch.float16)
    assert not supported(2048, None, torch.float32)
    assert not supported(3076, first)  # the second row is not aligned
    assert not supported(3072, replace(first, end=3072))
    assert not supported(3072, replace(first, end=2047))
    assert not supported(3072, replace(first, first_control_id=2049))
    assert not supported(3072, replace(first, seen=torch.zeros(2, 3076, dtype=torch.bool)))

    table, gain = torch.empty(2048, 1024, dtype=torch.bfloat16), torch.empty(1024, dtype=torch.bfloat16)
    assert code_draw.supports_embedding(table, Norm(gain, 1e-6))
    assert not code_draw.supports_embedding(table.float(), Norm(gain, 1e-6))
    assert not code_draw.supports_embedding(table, Norm(gain.float(), 1e-6))
    assert not code_draw.supports_embedding(table[:, :512], Norm(gain[:512], 1e-6))
    assert not code_draw.supports_embedding(torch.empty(2048, 2048, dtype=torch.bfloat16)[:, ::2], Norm(gain, 1e-6))


def test_only_the_end_of_the_control_ids_is_sampled_and_not_too_early() -> None:
    logits = normal(4, 100)
    logits[:, 80:] = 50.0
    draws = draws_of([PLAIN] * 4)
    found = draw_keyed(logits, 0, draws, rules(100)).tolist()
    assert found[0] == found[2] == 97
    assert all(code < 80 for code in found[1::2])


def test_the_logit_of_the_end_grows_with_every_frame_past_the_soft_limit() -> None:
    logits = torch.zeros(1, 100)
    draws = replace(draws_of([[0.0, 0, 1.0, 1.0]]), frame=torch.full((SLOTS,), 10))
    strict = replace(rules(100), seen=torch.zeros(SLOTS, 100, dtype=torch.bool), soft_limit=torch.full((SLOTS,), 10))
    assert draw_keyed(logits, 0, draws, strict).tolist() == [0]
    assert draw_keyed(logits, 0, draws, replace(strict, soft_limit=strict.soft_limit - 1)).tolist() == [97]


def test_a_row_samples_the_same_at_any_index_of_any_batch() -> None:
    logits = normal(8, 500)
    draws = draws_of(MIX)
    together = draw_keyed(logits, 2, draws)
    turned = draw_keyed(logits.flip(0).contiguous(), 2, replace(draws, slots=draws.slots.flip(0).contiguous()))
    assert torch.equal(turned.flip(0), together)
    for i in range(8):
        assert draw_keyed(logits[i : i + 1], 2, replace(draws, slots=draws.slots[i : i + 1])) == together[i]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_nan_logits_still_sample_a_valid_id() -> None:
    codes = draw_keyed(torch.full((8, 100), torch.nan), 1, draws_of(MIX))
    assert ((codes >= 0) & (codes < 100)).all()
