# SPDX-License-Identifier: Apache-2.0
"""One call of a convolutional decoder (conv_decoder.py): its streams' states before and after it."""

import torch
from torch import Tensor

from polyvox.kernels.conv import UpdateHistory, update_history
from polyvox.kernels.history import HistoryUpdates

DecoderState = dict[str, Tensor]


class DecoderPass:
    """One call of the decoder: the states before and after it.

    With slots [B] they are the same: stream i is row slots[i], updated in place. Without, stream i is row i, and the
    state after the call is new.

    absent [B]: how many of the first columns of this call do not exist; None if all exist.
    """

    def __init__(self, before: DecoderState, slots: Tensor | None) -> None:
        self.before, self.slots = before, slots
        self.after: DecoderState = {} if slots is None else before
        # Consecutive slots on a CPU are a slice of the state, which is read without a copy.
        self._rows = slots if slots is None or slots.device.type != "cpu" else as_slice(slots)
        self.absent: Tensor | None = None
        self.update: UpdateHistory = update_history
        self._updates = HistoryUpdates()

    def read(self, key: str) -> Tensor:
        """The rows of these streams; may be a view of the state, which `write` changes."""
        return self.before[key] if self._rows is None else self.before[key][self._rows]

    def write(self, key: str, rows: Tensor) -> None:
        if self._rows is None:
            self.after[key] = rows.clone()
        else:
            self.after[key][self._rows] = rows

    def collect_updates(self) -> None:
        """From now on, histories in slots are updated by `finish`."""
        self.update = self._updates.add

    def finish(self) -> None:
        """After the last layer."""
        self._updates.launch()

    def mark_start(self) -> None:
        """Prepares `drop_block`; before any layer changes the state."""
        self.at_start = self.read("position") == 0
        self.absent = torch.zeros_like(self.at_start, dtype=torch.int64)

    def drop_block(self, stride: int) -> None:
        """After an upsampling by stride that has no output for the first existing column of a stream."""
        if self.absent is not None:
            self.absent = torch.where(self.at_start, (self.absent + 1) * stride, 0)

    def clear_absent(self, x: Tensor) -> Tensor:
        """Signals [B,C,T] with zeros in the columns that do not exist."""
        if self.absent is None:
            return x
        columns = torch.arange(x.shape[-1], device=x.device)
        return x.masked_fill((columns < self.absent[:, None])[:, None], 0)


def as_slice(slots: Tensor) -> Tensor | slice:
    """Consecutive indices as a slice; others as they are."""
    numbers = slots.tolist()
    if numbers and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return slice(numbers[0], numbers[0] + len(numbers))
    return slots
