# SPDX-License-Identifier: Apache-2.0
"""A bounded cache by the content of an array."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Value = TypeVar("Value")


class ContentCache(Generic[Value]):
    """Values computed from arrays, for the most recently used contents. Thread-safe."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._values: OrderedDict[bytes, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, content: NDArray[np.generic], compute: Callable[[], Value]) -> Value:
        """The cached value, or the result of compute. Two threads may compute the same value; the first one is kept."""
        key = hashlib.sha256(content.tobytes()).digest()
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        computed = compute()
        with self._lock:
            value = self._values.setdefault(key, computed)
            self._values.move_to_end(key)
            while len(self._values) > self._max_entries:
                self._values.popitem(last=False)
            return value

    def __len__(self) -> int:
        return len(self._values)
