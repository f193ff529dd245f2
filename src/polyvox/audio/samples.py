# SPDX-License-Identifier: Apache-2.0
"""The type of audio samples everywhere between the vocoder and the encoders."""

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]  # mono, full scale is [-1, 1]
