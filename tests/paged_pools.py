# SPDX-License-Identifier: Apache-2.0
"""Pages of keys or values as a KV cache on a GPU stores them."""

from torch import Tensor


def by_head(pool: Tensor) -> Tensor:
    """A copy of pages [P, PAGE, KVH, D] that is [P, KVH, PAGE, D] in memory."""
    return pool.transpose(1, 2).contiguous().transpose(1, 2)
