# SPDX-License-Identifier: Apache-2.0
"""The configuration of an engine: its size, its limits and its timeouts."""

from dataclasses import dataclass, fields
from math import inf
from types import NoneType
from typing import get_args

from polyvox.errors import InvalidRequest

PAGE = 16  # positions of a KV page
MIN_CONTEXT = 256  # positions: enough for a prompt and a sentence
# Streams of the largest call. From here on a larger call takes longer in proportion, so more streams are several calls,
# and neither the graphs nor the time to capture them grow with the slots.
MAX_BATCH = 1024
# Queued requests that are allowed at least, by default: a small engine serves short requests quickly.
MIN_QUEUE = 32


def queue_length(max_queue: int | None, max_streams: int) -> int:
    """Requests that may be queued; by default one for each stream.

    The expected wait decides over requests: a full queue takes as long as the running streams. The length bounds memory
    and the time of a decision.
    """
    return max(max_streams, MIN_QUEUE) if max_queue is None else max_queue


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Configuration of an engine.

    - max_streams: concurrent streams; 0 means 8 on a CPU, and on a GPU as many as fit, at most 2,048.
    - context: average positions (prompt rows and frames) per stream; one stream may use more. 0 means as many as fit,
      at most the model's default.
    - max_queue: maximum number of queued requests; by default as many as streams, at least MIN_QUEUE.
    - max_queue_seconds: longest expected wait for a slot.
    - buffer_seconds: audio buffered for a slow reader; a stream that fits keeps no slot once it is generated.
    - reader_timeout: seconds that a full buffer waits for its reader.
    - text_timeout: seconds that a live stream waits for text.
    - min_streams_to_pipeline: streams from which a step is launched before the previous one has completed; 0 disables
      it; by default chosen by device.
    - cuda_graphs: fixed-size calls that a GPU captures and replays; by default on a GPU.
    - deterministic: every call has the same size, so that a seed gives bit-identical samples in any batch, on a GPU
      too; slow.
    - memory_gb: memory of each device that the engine may use, weights included; by default all that is free.
    - poison_freed: fill freed memory with NaN to expose stale reads.
    - pcm: for servers: chunks have 16-bit PCM, converted on the vocoder's device, instead of float samples, and a
      stream whose samples are not finite ends with an error.
    - trace: path of a Perfetto trace, written on close.
    """

    max_streams: int = 8
    context: int = 0
    max_queue: int | None = None
    max_queue_seconds: float = 10.0
    buffer_seconds: float = 90.0
    reader_timeout: float = 30.0
    text_timeout: float = 30.0
    min_streams_to_pipeline: int | None = None
    cuda_graphs: bool | None = None
    deterministic: bool = False
    memory_gb: float | None = None
    poison_freed: bool = False
    pcm: bool = False
    trace: str | None = None

    def check(self) -> None:
        """Raises InvalidRequest if a value cannot work."""
        minimums = {"context": MIN_CONTEXT}
        for field in fields(self):
            value = getattr(self, field.name)
            minimum = minimums.get(field.name, 0) if value else 0
            if value is None and NoneType in get_args(field.type):
                continue
            if field.type in (bool, bool | None) and not isinstance(value, bool):
                raise InvalidRequest(field.name, value, "must be True or False")
            if field.type not in (int, float, float | None):
                continue
            if isinstance(value, bool) or not isinstance(value, int if field.type is int else int | float):
                raise InvalidRequest(
                    field.name, value, "must be an integer" if field.type is int else "must be a number"
                )
            if not minimum <= value < inf:
                raise InvalidRequest(field.name, value, f"must be at least {minimum}")
        if self.buffer_seconds < 2:
            raise InvalidRequest(
                "buffer_seconds", self.buffer_seconds, "must be at least 2, because the largest chunk is 1.3 s"
            )
        for name in ("max_queue", "min_streams_to_pipeline"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise InvalidRequest(name, value, "must be a non-negative integer")

    @property
    def max_batch(self) -> int:
        """Streams of the largest frame call, and frames of the largest codec call."""
        return min(self.max_streams, MAX_BATCH)

    @property
    def queue_length(self) -> int:
        """Requests that may be queued."""
        return queue_length(self.max_queue, self.max_streams)

    @property
    def pages(self) -> int:
        """KV pages of the engine."""
        return -(-self.max_streams * self.context // PAGE)
