# SPDX-License-Identifier: Apache-2.0
"""Settings of glibc's malloc for a server process, so that its memory shrinks again after a peak."""

import ctypes
import sys

# Parameters of mallopt(3)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
MAX_ARENAS = 2  # by default 8 per core: each thread fills one of its own
# glibc's first values. It raises both, up to 32 MiB, when a large block is freed, unless they are set.
THRESHOLD_BYTES = 128 * 1024


def limit_malloc() -> bool:
    """Limits what malloc keeps of freed memory; False where malloc is not glibc's.

    Not for a process that runs a model on a CPU: large blocks are mapped and unmapped at each use.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl
        return False
    values = {M_ARENA_MAX: MAX_ARENAS, M_TRIM_THRESHOLD: THRESHOLD_BYTES, M_MMAP_THRESHOLD: THRESHOLD_BYTES}
    return all(mallopt(parameter, value) == 1 for parameter, value in values.items())
