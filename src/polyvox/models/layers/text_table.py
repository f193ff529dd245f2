# SPDX-License-Identifier: Apache-2.0
"""The talker's text rows by token id: the text projection of a vocabulary, computed once."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from polyvox.models.layers.talker import BaseTalker

ROWS_PER_CALL = 4096  # on a GPU, where all rows are computed at load
# On a CPU: about as many new tokens as a sentence has. Every call has this size, so that a row has the same bits
# whichever rows are computed with it.
CPU_ROWS_PER_CALL = 16


class TextTable:
    """Rows [vocabulary, hidden] in the talker's dtype and on its device.

    On a GPU all rows are computed at load. On a CPU, where that would take a minute for a published vocabulary, a row
    is computed when its id is first required; memory of other rows is not touched.
    """

    def __init__(self, talker: BaseTalker) -> None:
        vocab_size, hidden_size = len(talker.text_table), talker.config.hidden_size
        self.rows = torch.empty(vocab_size, hidden_size, dtype=talker.dtype, device=talker.device)
        self._talker = talker
        self._computed: NDArray[np.bool_] | None = None  # None: all of them
        if talker.device.type == "cpu":
            self._computed = np.zeros(vocab_size, np.bool_)
        elif talker.device.type != "meta":
            self._compute_all()

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def require(self, ids: Sequence[int] | NDArray[np.int64]) -> None:
        """Computes the rows of ids that were not required before. Thread-safe: a row has the same bits every time."""
        if self._computed is None or not len(ids):
            return
        required = np.asarray(ids, np.int64)
        missing = required[~self._computed[required]]
        if len(missing):
            self._compute(np.unique(missing))

    @torch.inference_mode()
    def _compute(self, ids: NDArray[np.int64]) -> None:
        assert self._computed is not None
        for start in range(0, len(ids), CPU_ROWS_PER_CALL):
            part = torch.from_numpy(ids[start : start + CPU_ROWS_PER_CALL])
            padded = torch.cat([part, part[:1].expand(CPU_ROWS_PER_CALL - len(part))])
            self.rows[part] = self._talker.text_rows(padded)[: len(part)]
        self._computed[ids] = True

    @torch.inference_mode()
    def _compute_all(self) -> None:
        source, device = self._talker.text_table, self.rows.device
        for start in range(0, len(source), ROWS_PER_CALL):
            rows = source[start : start + ROWS_PER_CALL].to(device)
            self.rows[start : start + len(rows)] = self._talker.text_projection(rows)
