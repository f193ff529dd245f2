# SPDX-License-Identifier: Apache-2.0
"""The sizes to which calls of generator and vocoder are padded: one table for graphs and scheduler."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

# From the smallest size on, a power of two is followed by this many sizes at equal distances before the next one. More
# sizes are less padding, and more graphs to capture.
STEPS_PER_OCTAVE = ((1, 1), (16, 2), (256, 4))


def batch_sizes(max_size: int, min_size: int = 1) -> tuple[int, ...]:
    """Sizes in order up to max_size: at most half of a call is padding, a third from 16 on, a fifth from 256 on."""
    found = {max_size}
    for power in (min_size << i for i in range(max_size.bit_length())):
        steps = next(steps for size, steps in reversed(STEPS_PER_OCTAVE) if power >= size)
        found |= {size for size in range(power, 2 * power, power // steps) if size < max_size}
    return tuple(sorted(found))


def next_size(sizes: Sequence[int], count: int) -> int:
    """The smallest size that is at least count."""
    return sizes[bisect_left(sizes, count)]


def previous_size(sizes: Sequence[int], count: int) -> int:
    """The largest size that is at most count; 0 if there is none."""
    index = bisect_right(sizes, count)
    return sizes[index - 1] if index else 0
