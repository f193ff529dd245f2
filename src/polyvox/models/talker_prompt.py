# SPDX-License-Identifier: Apache-2.0
"""The prompt of a talker as rows of ids, without tensors.

A prefill row is the sum of a text part and a codec part. The text part is always an id; the codec part is an id, the
speaker vector of a cloned voice, a frame of the reference recording, or empty. Text that is not in the prefill is read
one id per frame (`trailing`); after its end every frame reads the text padding.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NO_CODE = -1


@dataclass(frozen=True, slots=True)
class Prompt:
    """The ids of all rows, and the rows to which speaker vector and reference frames are added."""

    text: tuple[int, ...]
    codec: tuple[int, ...]  # NO_CODE where the codec part is not an id
    trailing: tuple[int, ...]
    vector_row: int | None  # the row of the cloned voice's vector
    frames_row: int | None  # the first row of the reference recording's frames

    def __len__(self) -> int:
        return len(self.text)

    def voice_rows(self, num_frames: int) -> NDArray[np.int64]:
        """The rows to which the vector of a cloned voice and the frames of its recording are added."""
        assert self.vector_row is not None
        frames = () if self.frames_row is None else range(self.frames_row, self.frames_row + num_frames)
        return np.array([self.vector_row, *frames], np.int64)
