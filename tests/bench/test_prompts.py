"""The texts of the benchmark, their order, and when they are due."""

import itertools
import re
from pathlib import Path

import pytest

from polyvox.bench.prompts import arrivals, fingerprint, order, prompts, request_seed
from polyvox.errors import InvalidRequest


def test_there_are_enough_texts_of_every_length_and_each_is_there_once() -> None:
    texts = prompts()
    assert len(texts) >= 500
    lengths = [len(text.split()) for text in texts]
    assert (min(lengths), max(lengths) <= 40) == (3, True)
    for low, high, least in ((3, 6, 25), (7, 12, 120), (13, 20, 200), (21, 30, 30), (31, 40, 10)):
        assert sum(low <= length <= high for length in lengths) >= least, (low, high)
    plain = {re.sub(r"\W+", " ", text.lower()).strip() for text in texts}
    assert len(plain) == len(texts)


def test_texts_are_whole_sentences_that_anyone_can_say() -> None:
    for text in prompts():
        assert re.fullmatch(r"[A-Z][A-Za-z ,.;:?!'-]*[.?!]", text), text


def test_no_text_is_a_template_of_another() -> None:
    """No two begin with the same five words, and hardly any with the same four."""
    for words, allowed in ((5, 0), (4, 5)):
        starts = [tuple(text.lower().split()[:words]) for text in prompts() if len(text.split()) > words]
        assert len(starts) - len(set(starts)) <= allowed, words


def test_every_text_comes_once_before_any_comes_again() -> None:
    taken = list(itertools.islice(order(50, 1, "measured"), 100))
    assert sorted(taken[:50]) == sorted(taken[50:]) == list(range(50))
    assert taken[:50] != taken[50:]
    assert taken == list(itertools.islice(order(50, 1, "measured"), 100))
    assert taken[:50] != list(itertools.islice(order(50, 2, "measured"), 50))
    assert taken[:50] != list(itertools.islice(order(50, 1, "warm-up"), 50))


def test_another_rate_is_the_same_sequence_in_another_time() -> None:
    slow, fast = arrivals(2.0, 100.0, 7, "measured"), arrivals(8.0, 25.0, 7, "measured")
    assert slow == pytest.approx([4 * when for when in fast])
    assert slow != arrivals(2.0, 100.0, 8, "measured")
    assert slow != arrivals(2.0, 100.0, 7, "warm-up")


def test_arrivals_are_a_poisson_process() -> None:
    due = arrivals(10.0, 1000.0, 1, "measured")
    assert len(due) == pytest.approx(10_000, rel=0.03)
    between = [after - before for before, after in itertools.pairwise(due)]
    mean = sum(between) / len(between)
    spread = sum((gap - mean) ** 2 for gap in between) / len(between)
    assert spread == pytest.approx(mean**2, rel=0.1)  # as an exponential distribution has it
    assert due == sorted(due)
    assert due[-1] < 1000


def test_requests_have_seeds_of_their_own() -> None:
    seeds = [request_seed(1, index) for index in range(1000)]
    assert len(set(seeds)) == 1000
    assert seeds == [request_seed(1, index) for index in range(1000)]


def test_other_texts_can_be_given_and_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("One.\n\n  Two.  \n")
    assert prompts(path) == ("One.", "Two.")
    assert fingerprint(prompts(path)) != fingerprint(prompts())
    (tmp_path / "empty.txt").write_text("\n")
    for name in ("empty.txt", "missing.txt"):
        with pytest.raises(InvalidRequest, match=r"one text per line|one line of text"):
            prompts(tmp_path / name)
