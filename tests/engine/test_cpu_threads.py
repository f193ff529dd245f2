# SPDX-License-Identifier: Apache-2.0
"""The number of torch threads is a setting of one thread, not of the whole program."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from polyvox.engine.cpu_threads import use_threads


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_only_the_thread_that_asks_for_it_computes_alone() -> None:
    def count_after_the_change() -> int:
        use_threads(1)
        return torch.get_num_threads()

    with ThreadPoolExecutor(1) as changed, ThreadPoolExecutor(1) as started_later:
        assert changed.submit(count_after_the_change).result(60) == 1
        assert started_later.submit(torch.get_num_threads).result(60) == 3
        assert changed.submit(torch.get_num_threads).result(60) == 1
    assert torch.get_num_threads() == 3
