# SPDX-License-Identifier: Apache-2.0
"""The number of torch threads of a call on a CPU."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL_MODEL = 1 << 24  # layers × hidden²; the 0.6B model has 29 million
MIN_SHARED_FRAMES = 12  # of a call of a small model, from which on a second thread is faster


@contextmanager
def threads_for(device: torch.device, small_model: bool, frames: int) -> Iterator[None]:
    """Runs small calls of a small model on a CPU in one thread, which is faster than sharing them.

    A thread that the program starts meanwhile keeps one thread for its own torch operations until it calls
    `torch.set_num_threads`: what one thread sets is also the default of threads that start later. Another thread that
    restores the default after each change, as in `use_threads`, took about 30 µs of each call, and closes only most of
    the time in which a thread may start.
    """
    before = torch.get_num_threads()
    single = device.type == "cpu" and small_model and frames < MIN_SHARED_FRAMES and before > 1
    if single:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if single:
            torch.set_num_threads(before)  # the setting is global to the process


def use_threads(count: int) -> None:
    """Runs CPU operations of the calling thread in this many threads; other threads keep their setting."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    # The last setting is also that of threads which start later, so another thread makes it the former one.
    restoring = threading.Thread(target=torch.set_num_threads, args=(before,))
    restoring.start()
    restoring.join()
