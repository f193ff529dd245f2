# SPDX-License-Identifier: Apache-2.0
"""What the host writes to slots, as one array of integers with a row per slot; changed rows are sent at once."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Columns of a row. The text's change while a stream runs, the others are set at its start.
SLOT, TEXT_END, EXPECTED_FRAMES = 0, 1, 2
TEXT_INTEGERS = slice(TEXT_END, EXPECTED_FRAMES + 1)
START_INTEGERS = slice(3, 8)  # position, frame_index, repeats, segment, min_frames
KEY = slice(8, 10)
LAST_IDS = slice(10, 12)  # text and code id of the last prompt row, which is the input of the first frame
PARAMETERS = slice(12, 16)  # 8 numbers of 32 bits, two in each column
TEXT = 16  # from here on: a ring of text ids, one per frame


class SlotValues:
    """The values of all slots as the host wrote them last, and which slots were changed."""

    def __init__(self, num_slots: int, num_text_ids: int) -> None:
        self._rows = np.zeros((num_slots, TEXT + num_text_ids), np.int64)
        self._rows[:, SLOT] = np.arange(num_slots)
        self._parameters = self._rows[:, PARAMETERS].view(np.float32)
        self._text = self._rows[:, TEXT:]
        self._changed: dict[int, bool] = {}  # slot: whether a stream starts in it

    def start(
        self,
        slot: int,
        text: Sequence[int],
        expected_frames: int,
        integers: Sequence[int],
        key: Sequence[int],
        last_ids: NDArray[np.int64],
        parameters: Sequence[float],
    ) -> None:
        """Sets all values of a slot; of the text, as many ids as there are columns."""
        row, num_ids = self._rows[slot], min(len(text), self._text.shape[1])
        row[TEXT_END], row[EXPECTED_FRAMES] = num_ids, expected_frames
        row[START_INTEGERS], row[KEY], row[LAST_IDS] = integers, key, last_ids
        self._parameters[slot] = parameters
        row[TEXT : TEXT + num_ids] = text[:num_ids]
        self._changed[slot] = True

    def write_text(self, slot: int, start: int, ids: Sequence[int]) -> None:
        """Sets the ids of the frames from start on."""
        ring, first = self._text[slot], start % self._text.shape[1]
        before_wrap, after_wrap = ids[: len(ring) - first], ids[len(ring) - first :]
        ring[first : first + len(before_wrap)] = before_wrap  # slices: an array of indices takes ten times as long
        ring[: len(after_wrap)] = after_wrap
        self._rows[slot, TEXT_END] = start + len(ids)
        self._changed.setdefault(slot, False)

    def limit(self, slot: int, expected_frames: int) -> None:
        self._rows[slot, EXPECTED_FRAMES] = expected_frames
        self._changed.setdefault(slot, False)

    def discard(self, slot: int) -> None:
        """Forgets changes of a slot that was released."""
        self._changed.pop(slot, None)

    def changed(self) -> tuple[NDArray[np.int64], int]:
        """A copy of the changed rows, those of new streams first, and the number of new streams."""
        slots = sorted(self._changed, key=lambda slot: not self._changed[slot])
        return self._rows[slots], sum(self._changed.values())

    def clear(self) -> None:
        """The changed rows have been sent."""
        self._changed.clear()

    def __bool__(self) -> bool:
        return bool(self._changed)
