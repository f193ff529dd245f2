"""What was worked out from some content, kept for the contents used last."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """A bounded cache by content, for any thread; the same content gives the same object while it is kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[bytes, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, content: NDArray[Any], make: Callable[[], Value]) -> Value:
        """What `make` gave for this content, or gives now. Nobody waits for another's: two may work it out at once."""
        name = hashlib.sha256(content.tobytes()).digest()
        with self._lock:
            if name in self._values:
                self._values.move_to_end(name)
                return self._values[name]
        made = make()
        with self._lock:
            value = self._values.setdefault(name, made)
            self._values.move_to_end(name)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
            return value

    def __len__(self) -> int:
        return len(self._values)
