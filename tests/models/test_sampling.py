# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parity import GeneratorNoise
from polyvox.errors import InvalidRequest
from polyvox.kernels.noise import keyed_noise, philox
from polyvox.kernels.sampler import apply_repetition_penalty, draw, is_greedy
from polyvox.models.layers.sampling import seed_words, talker_parameters
from polyvox.models.request import Sampling

PLAIN = Sampling(temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0)


def rows(*params: Sampling) -> torch.Tensor:
    return torch.tensor([talker_parameters(p) for p in params])


def noise_of(
    seeds: list[int], segments: list[int], frames: list[int], first: int, count: int, vocab: int
) -> torch.Tensor:
    key = torch.tensor([seed_words(seed) for seed in seeds])
    return keyed_noise(key, torch.tensor(segments), torch.tensor(frames), first, count, vocab)


def test_philox_gives_the_published_test_vectors() -> None:
    """The known answers of the authors' test suite, first word."""
    for words, expected in (
        ([0] * 6, 0x6627E8D5),
        ([0xFFFFFFFF] * 6, 0x408F276D),
        ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0], 0xD16CFE09),
    ):
        counter = [torch.tensor([[[word]]]) for word in words[:4]]
        key = torch.tensor([words[4:]])
        found = philox((counter[0], counter[1], counter[2], counter[3]), key)
        assert found.item() == expected
        host = [word.numpy() for word in counter]
        assert philox((host[0], host[1], host[2], host[3]), key.numpy()).item() == expected


@given(st.integers(0, 2**64 - 1), st.integers(0, 9), st.integers(0, 8191), st.integers(0, 15))
def test_noise_depends_on_the_request_and_not_on_its_batch(seed: int, segment: int, frame: int, book: int) -> None:
    alone = noise_of([seed], [segment], [frame], book, 1, 40)
    batch = noise_of([5, seed, 6], [1, segment, 0], [3, frame, 9], 0, 16, 64)
    assert torch.equal(alone[0, 0], batch[1, book, :40])
    assert alone.isfinite().all()


def test_every_part_of_the_key_changes_the_noise() -> None:
    def noise(seed: int = 1, segment: int = 0, frame: int = 0, book: int = 0) -> torch.Tensor:
        return noise_of([seed], [segment], [frame], book, 1, 50)

    others = (noise(seed=2), noise(seed=1 + 2**32), noise(segment=1), noise(frame=1), noise(book=1))
    for other in others:
        assert (other == noise()).sum() < 3


def test_samples_follow_the_softmax() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5])
    count = 20_000
    noise = noise_of([9] * count, [0] * count, list(range(count)), 0, 1, 5)[:, 0]
    drawn = draw(logits.expand(count, -1), rows(*[PLAIN] * count), noise)
    expected = logits.softmax(0).numpy() * count
    found = np.bincount(drawn.numpy(), minlength=5)
    chi_square = ((found - expected) ** 2 / expected).sum()
    assert chi_square < 18.5  # 99.9 % of 4 degrees of freedom


def test_the_reference_order_is_that_of_multinomial() -> None:
    ours, theirs = torch.Generator().manual_seed(4), torch.Generator().manual_seed(4)
    logits = torch.randn(6, 1, 50, generator=torch.Generator().manual_seed(1))
    nothing = torch.zeros(1)
    noise = GeneratorNoise(ours)(nothing, nothing, nothing, 0, 6, 50)
    for i in range(6):
        expected = torch.multinomial(logits[i].softmax(-1), 1, generator=theirs)[:, 0]
        assert torch.equal(draw(logits[i], rows(PLAIN), noise[:, i]), expected)


def kept(logits: list[float], params: Sampling) -> set[int]:
    """The tokens that can be sampled: each is tried with noise that favours it."""
    tokens = len(logits)
    noise = torch.eye(tokens) * 1e6
    drawn = draw(torch.tensor([logits] * tokens), rows(*[params] * tokens), noise)
    return {i for i in range(tokens) if drawn[i] == i}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (PLAIN, {0, 1, 2, 3, 4}),
        (replace(PLAIN, top_k=1), {1}),
        (replace(PLAIN, top_k=2), {0, 1, 3}),  # 0 and 3 are equal: both stay
        (replace(PLAIN, top_k=3), {0, 1, 3}),
        (replace(PLAIN, top_k=500), {0, 1, 2, 3, 4}),
        (replace(PLAIN, top_p=0.4), {1}),
        (replace(PLAIN, top_p=0.95), {0, 1, 3}),
        (replace(PLAIN, top_k=1, top_p=0.99), {1}),
        (replace(PLAIN, temperature=100.0, top_p=0.95), {0, 1, 2, 3, 4}),
    ],
)
def test_filters_keep_ties_of_their_last_token(params: Sampling, expected: set[int]) -> None:
    assert kept([2.0, 3.0, -2.0, 2.0, -3.0], params) == expected


def test_greedy_sampling_ignores_the_noise() -> None:
    greedy = replace(PLAIN, temperature=0.0)
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    assert draw(logits, rows(greedy), torch.tensor([[99.0, 0.0, 0.0]])).tolist() == [1]


def test_rows_that_are_all_greedy_need_no_noise() -> None:
    greedy = rows(replace(PLAIN, temperature=0.0, top_k=2, top_p=0.5))
    assert is_greedy(greedy)
    assert not is_greedy(torch.cat([greedy, rows(PLAIN)]))
    logits = torch.randn(20, 30, generator=torch.Generator().manual_seed(3)).round(decimals=1)  # with ties
    params = greedy.expand(20, -1)
    assert torch.equal(draw(logits, params, None), draw(logits, params, torch.randn(20, 30)))


@given(st.integers(0, 10_000))
def test_a_mixed_batch_samples_as_each_row_alone(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, 30, generator=generator)
    logits[:, 7] = -torch.inf
    noise = torch.randn(4, 30, generator=generator)
    params = [
        PLAIN,
        replace(PLAIN, temperature=0.0),
        replace(PLAIN, top_k=3, temperature=0.5),
        replace(PLAIN, top_p=0.5),
    ]
    together = draw(logits, rows(*params), noise)
    alone = [draw(logits[i : i + 1], rows(params[i]), noise[i : i + 1]).item() for i in range(4)]
    assert together.tolist() == alone
    assert 7 not in alone


def test_the_repetition_penalty_lowers_seen_tokens() -> None:
    logits = torch.tensor([[2.0, -2.0, 2.0], [2.0, -2.0, 2.0]])
    seen = torch.tensor([[True, True, False], [False, False, True]])
    result = apply_repetition_penalty(logits, seen, rows(*(replace(PLAIN, repetition_penalty=p) for p in (2.0, 4.0))))
    assert result.tolist() == [[1.0, -4.0, 2.0], [2.0, -2.0, 0.5]]


@pytest.mark.parametrize(
    "change",
    [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1},
     {"repetition_penalty": 0.0}, {"predictor_temperature": 99.0}, {"predictor_top_p": "x"}, {"top_k": True}],
)  # fmt: skip
def test_an_invalid_parameter_is_rejected_by_name(change: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        replace(PLAIN, **change).check()  # type: ignore[arg-type]
    assert caught.value.field == next(iter(change))
