"""How large an engine is and how patient; what follows from it is derived, what cannot work is refused."""

from dataclasses import dataclass, fields
from math import inf

from polyvox.errors import InvalidRequest

PAGE = 16  # positions that are given to a stream at a time
LEAST_CONTEXT = 256  # positions: a prompt and a sentence


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The keys of an engine's configuration.

    slots: streams that run at once; 0 for 8 on a CPU, and on a GPU as many as fit, at most 256. context: positions
    (prompt rows and frames) that a slot has on average; one stream may take more. queue, queue_seconds: how many
    requests wait for a slot, and how long. buffer_seconds: audio kept for a reader that is slower than speech.
    reader_seconds: how long a full buffer waits for its reader. text_seconds: how long a live stream waits for text.
    ahead: streams from which on a step is begun before the last one's outcome is known, 0 for never; by default as the
    device has it. graphs: calls of fixed sizes, which a GPU captures and replays; by default on a GPU. deterministic:
    every call has the same size, so that a seed gives the same samples bit for bit in any crowd, on a GPU too; slow.
    memory_gb: that slots and pages may take, by default all there is. poison: spoil what is freed, to find readers of
    what they did not write. trace: a file for a Perfetto trace, written when the engine closes.
    """

    slots: int = 8
    context: int = 1024
    queue: int = 32
    queue_seconds: float = 10.0
    buffer_seconds: float = 30.0
    reader_seconds: float = 30.0
    text_seconds: float = 30.0
    ahead: int | None = None
    graphs: bool | None = None
    deterministic: bool = False
    memory_gb: float | None = None
    poison: bool = False
    trace: str | None = None

    def check(self) -> None:
        """Raises InvalidRequest with the sentence that mends it."""
        least = {"context": LEAST_CONTEXT}
        for field in fields(self):
            value, low = getattr(self, field.name), least.get(field.name, 0)
            if field.type not in (int, float):
                continue
            if isinstance(value, bool) or not isinstance(value, int if field.type is int else int | float):
                raise InvalidRequest(field.name, value, "a whole number" if field.type is int else "a number")
            if not low <= value < inf:
                raise InvalidRequest(field.name, value, f"{low} or more")
        if self.buffer_seconds < 2:
            raise InvalidRequest("buffer_seconds", self.buffer_seconds, "2 or more: the largest chunk is 1.3 s")
        if self.ahead is not None and (not isinstance(self.ahead, int) or self.ahead < 0):
            raise InvalidRequest("ahead", self.ahead, "a whole number of streams, 0 or more")

    @property
    def pages(self) -> int:
        return -(-self.slots * self.context // PAGE)
