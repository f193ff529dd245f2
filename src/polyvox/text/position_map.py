# SPDX-License-Identifier: Apache-2.0
"""Positions in a text and in what a stage of the normalisation made of it."""

from bisect import bisect_left, bisect_right

import numpy as np
from numpy.typing import ArrayLike, NDArray


class PositionMap:
    """A monotone map from positions in the input of a stage to positions in its output. Both only grow.

    Unchanged text is mapped character by character; within replaced text the map is linear.
    """

    def __init__(self) -> None:
        self._inputs, self._outputs = [0], [0]
        self.num_in = self.num_out = 0

    def copy(self, num_chars: int) -> None:
        """The next characters are unchanged."""
        self.replace(num_chars, num_chars)

    def replace(self, num_in: int, num_out: int) -> None:
        """The next characters of the input become characters of the output."""
        if num_in or num_out:
            if num_in != num_out:
                self._add(self.num_in, self.num_out)
            self._add(self.num_in + num_in, self.num_out + num_out)

    def add(self, num_in: int, num_out: int) -> None:
        """A pair of positions, not before the last one. Text between two pairs is a replacement."""
        self._add(max(num_in, self.num_in), max(num_out, self.num_out))

    def __call__(self, positions: ArrayLike) -> NDArray[np.float64]:
        """Positions in the output, for ascending positions in the input. What is not read yet is at the end."""
        wanted = np.asarray(positions, np.float64)
        if not wanted.size:
            return wanted
        first = max(0, bisect_left(self._inputs, wanted[0]) - 1)
        last = bisect_right(self._inputs, wanted[-1]) + 1
        return np.interp(wanted, self._inputs[first:last], self._outputs[first:last])

    def _add(self, num_in: int, num_out: int) -> None:
        inputs, outputs = self._inputs, self._outputs
        extends = len(inputs) > 1 and inputs[-1] - inputs[-2] == outputs[-1] - outputs[-2]
        if extends and num_in - inputs[-1] == num_out - outputs[-1]:
            inputs[-1], outputs[-1] = num_in, num_out
        elif (num_in, num_out) != (inputs[-1], outputs[-1]):
            inputs.append(num_in)
            outputs.append(num_out)
        self.num_in, self.num_out = num_in, num_out
