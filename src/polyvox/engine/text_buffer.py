# SPDX-License-Identifier: Apache-2.0
"""Text of a stream that is not in its slot yet."""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyvox.models.protocol import GIVEN_ROW

Rows = NDArray[np.float32]


class TextBuffer:
    """Token ids and rows of another model, one for each frame, in order."""

    def __init__(self, ids: Sequence[int] = ()) -> None:
        self._ids = list(ids)
        self._rows: deque[Rows] = deque()  # of the ids that are GIVEN_ROW

    def __len__(self) -> int:
        return len(self._ids)

    def append(self, ids: Sequence[int]) -> None:
        self._ids += ids

    def append_rows(self, rows: Rows) -> None:
        self._ids += [GIVEN_ROW] * len(rows)
        self._rows.extend(rows)

    def take(self, max_ids: int, max_rows: int) -> tuple[list[int], Rows | None]:
        """Removes the first ids, at most max_ids; a row only among the first max_rows. Returns them and their rows."""
        count = max(0, min(len(self._ids), max_ids))
        if self._rows and GIVEN_ROW in self._ids[max(max_rows, 0) : count]:
            count = self._ids.index(GIVEN_ROW, max(max_rows, 0))
        ids = self._ids[:count]
        del self._ids[:count]
        rows = [self._rows.popleft() for _ in range(ids.count(GIVEN_ROW))]
        return ids, np.stack(rows) if rows else None
