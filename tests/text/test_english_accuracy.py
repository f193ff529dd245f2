# SPDX-License-Identifier: Apache-2.0
"""Accuracy of the English rules on cases that were written before the rules."""

from collections import Counter
from pathlib import Path

from tools.text_accuracy import accuracy_table, load_cases

CASES = load_cases()
CATEGORIES = {
    *("plain", "punctuation", "date", "letters", "cardinal", "verbatim", "decimal", "measure", "money", "ordinal"),
    *("time", "electronic", "digit", "fraction", "telephone", "address"),
}


def test_there_are_at_least_1500_cases_in_16_categories() -> None:
    counts = Counter(case.category for case in CASES)
    assert len({case.written for case in CASES}) >= 1500
    assert counts.keys() == CATEGORIES
    assert min(counts.values()) >= 50


def test_at_least_98_percent_of_the_cases_are_read_correctly() -> None:
    table, accuracy = accuracy_table(CASES)
    assert accuracy >= 0.98, table


def test_at_least_95_percent_of_each_category_are_read_correctly() -> None:
    for category in CATEGORIES:
        table, accuracy = accuracy_table(case for case in CASES if case.category == category)
        assert accuracy >= 0.95, table


def test_cases_written_after_the_rules_stay_correct() -> None:
    cases = load_cases(Path(__file__).with_name("english_held_out.tsv"))
    assert [case.written for case in cases if not case.is_correct] == []
