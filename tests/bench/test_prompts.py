# SPDX-License-Identifier: Apache-2.0
"""The prompt set, its order and the arrival times."""

import itertools
import re
from pathlib import Path

import pytest

from polyvox.bench.prompts import fingerprint, poisson_arrivals, prompt_order, prompts, request_seed
from polyvox.errors import InvalidRequest


def test_the_prompt_set_covers_every_length_without_duplicates() -> None:
    texts = prompts()
    assert len(texts) >= 500
    lengths = [len(text.split()) for text in texts]
    assert (min(lengths), max(lengths) <= 40) == (3, True)
    for low, high, min_count in ((3, 6, 25), (7, 12, 120), (13, 20, 200), (21, 30, 30), (31, 40, 10)):
        assert sum(low <= length <= high for length in lengths) >= min_count, (low, high)
    normalised = {re.sub(r"\W+", " ", text.lower()).strip() for text in texts}
    assert len(normalised) == len(texts)


def test_every_prompt_is_a_complete_sentence_without_digits_or_symbols() -> None:
    for text in prompts():
        assert re.fullmatch(r"[A-Z][A-Za-z ,.;:?!'-]*[.?!]", text), text


def test_prompts_do_not_share_a_template() -> None:
    """No two prompts start with the same five words, and at most five pairs with the same four."""
    for words, allowed in ((5, 0), (4, 5)):
        starts = [tuple(text.lower().split()[:words]) for text in prompts() if len(text.split()) > words]
        assert len(starts) - len(set(starts)) <= allowed, words


def test_every_prompt_is_used_once_before_any_repeats() -> None:
    taken = list(itertools.islice(prompt_order(50, 1, "measured"), 100))
    assert sorted(taken[:50]) == sorted(taken[50:]) == list(range(50))
    assert taken[:50] != taken[50:]
    assert taken == list(itertools.islice(prompt_order(50, 1, "measured"), 100))
    assert taken[:50] != list(itertools.islice(prompt_order(50, 2, "measured"), 50))
    assert taken[:50] != list(itertools.islice(prompt_order(50, 1, "warm-up"), 50))


def test_another_rate_gives_the_same_arrivals_on_another_time_scale() -> None:
    slow, fast = poisson_arrivals(2.0, 100.0, 7, "measured"), poisson_arrivals(8.0, 25.0, 7, "measured")
    assert slow == pytest.approx([4 * when for when in fast])
    assert slow != poisson_arrivals(2.0, 100.0, 8, "measured")
    assert slow != poisson_arrivals(2.0, 100.0, 7, "warm-up")


def test_arrivals_are_a_poisson_process() -> None:
    due = poisson_arrivals(10.0, 1000.0, 1, "measured")
    assert len(due) == pytest.approx(10_000, rel=0.03)
    between = [after - before for before, after in itertools.pairwise(due)]
    mean = sum(between) / len(between)
    variance = sum((gap - mean) ** 2 for gap in between) / len(between)
    assert variance == pytest.approx(mean**2, rel=0.1)  # as in an exponential distribution
    assert due == sorted(due)
    assert due[-1] < 1000


def test_request_seeds_are_distinct_and_reproducible() -> None:
    seeds = [request_seed(1, index) for index in range(1000)]
    assert len(set(seeds)) == 1000
    assert seeds == [request_seed(1, index) for index in range(1000)]


def test_another_prompt_file_has_another_fingerprint_and_an_unusable_one_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("One.\n\n  Two.  \n")
    assert prompts(path) == ("One.", "Two.")
    assert fingerprint(prompts(path)) != fingerprint(prompts())
    (tmp_path / "empty.txt").write_text("\n")
    for name in ("empty.txt", "missing.txt"):
        with pytest.raises(InvalidRequest, match=r"one text per line|one line of text"):
            prompts(tmp_path / name)
