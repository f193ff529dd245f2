"""When a run keeps what it has, and when it gives up."""

from math import nan

from training.schedule import Best


def test_only_a_lower_number_replaces_the_best() -> None:
    best = Best(patience=0.3)
    assert [best.improved(value, 0.1 * i) for i, value in enumerate([2.0, nan, 2.0, 1.5, nan])] == [
        True, False, False, True, False,
    ]  # fmt: skip
    assert best.value == 1.5


def test_a_run_without_a_lower_value_is_given_up_after_its_patience() -> None:
    best = Best(patience=0.3)
    assert best.improved(1.0, 0.5)
    assert not best.improved(nan, 0.7)
    assert not best.hopeless(0.75)
    assert best.hopeless(0.81)
