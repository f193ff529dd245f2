# SPDX-License-Identifier: Apache-2.0
"""The queue for one server's ring: chunks that wait until the ring has space, and the results that follow them."""

import time
from collections import deque

from polyvox.audio.pcm import Audio, Pcm, as_pcm
from polyvox.engine.interface import ChunkParts, Result
from polyvox.ipc.audio_ring import AudioRing
from polyvox.ipc.messages import ChunkHeader


class RingQueue:
    """Chunks and results in the order in which they are sent. It owns the ring, of which it is the writer."""

    def __init__(self, ring: AudioRing) -> None:
        self._ring = ring
        self._queue: deque[tuple[int, ChunkHeader | Result, list[Audio]]] = deque()
        self._progress = time.monotonic()  # when the ring was last empty, or the server last consumed from it

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def max_samples(self) -> int:
        """Samples of the largest chunk that can be sent."""
        return self._ring.capacity

    @property
    def stalled_seconds(self) -> float:
        """Seconds since the server last consumed, if there is something in the ring."""
        return time.monotonic() - self._progress if self._ring.written > self._ring.consumed else 0.0

    def add_chunk(self, id: int, chunk: ChunkParts) -> None:
        header = ChunkHeader(id, chunk.index, chunk.size, chunk.final, chunk.times)
        self._queue.append((id, header, chunk.parts))

    def add_result(self, id: int, result: Result) -> None:
        self._queue.append((id, result, []))

    def fill_ring(self) -> tuple[list[ChunkHeader], dict[int, Result]]:
        """Moves queued chunks into the ring until it is full. A result comes in the same update as its final chunk."""
        chunks: list[ChunkHeader] = []
        parts: list[Pcm] = []
        results: dict[int, Result] = {}
        queue, ring = self._queue, self._ring
        if ring.written == ring.consumed:
            self._progress = time.monotonic()
        free = ring.free
        while queue:
            id, item, audio = queue[0]
            if isinstance(item, ChunkHeader):
                free -= item.num_samples
                if free < 0:
                    break
                parts += map(as_pcm, audio)
                chunks.append(item)
            else:
                results[id] = item
            queue.popleft()
        ring.write(parts)
        return chunks, results

    def release(self, position: int) -> None:
        """The server has consumed everything before this position."""
        self._ring.release(position)
        self._progress = time.monotonic()

    def close(self) -> None:
        """Drops what waits, and unmaps the ring. Idempotent."""
        self._queue.clear()
        self._ring.close()
