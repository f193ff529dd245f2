# SPDX-License-Identifier: Apache-2.0
"""Bit flags that a generator returns for each frame."""

FRAME_ENDED = 1  # end of speech: the call generated no frame for this slot
FRAME_REPETITION_LOOP = 2  # the codes have repeated for several seconds
