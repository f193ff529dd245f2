# SPDX-License-Identifier: Apache-2.0
"""Where the time from a request to its first packet goes."""

from dataclasses import dataclass
from itertools import pairwise

from polyvox.engine.interface import FirstChunkTimes

# The stages in order. Each ends where the next one begins.
STAGES = (
    "request",  # parsing, authentication and limits; only of HTTP requests with the whole text
    "text",  # text preparation, until the first segment is submitted
    "submit",  # to the engine's process: tokens, admission control
    "queue",  # until the stream has a slot: the end of the step in progress, and the wait for capacity
    "generate",  # prefill and first frame
    "decode",  # the other frames of the first chunk, and the vocoder
    "deliver",  # to the server process, then resampling and encoding
)


@dataclass(slots=True)
class FirstPacketTimer:
    """The times of the first segment of an utterance, by `time.monotonic`."""

    submitted_at: float | None = None
    chunk: FirstChunkTimes | None = None

    def stages(self, arrived_at: float | None, started_at: float, now: float) -> dict[str, float] | None:
        """Seconds of each stage of a packet that is ready now; None if its audio is not that of the first segment.

        arrived_at: of the HTTP request; None: unknown. started_at: when the text was there.
        """
        if self.submitted_at is None or self.chunk is None:
            return None
        chunk = self.chunk
        engine = (chunk.queued_at, chunk.admitted_at, chunk.first_frame_at, chunk.decoded_at)
        times = [started_at if arrived_at is None else arrived_at, started_at, self.submitted_at, *engine, now]
        seconds = [max(0.0, after - before) for before, after in pairwise(times)]
        stages = dict(zip(STAGES, seconds, strict=True))
        if arrived_at is None:
            del stages["request"]
        return stages


def server_timing(stages: dict[str, float]) -> str:
    """The value of the header Server-Timing: milliseconds by stage."""
    return ", ".join(f"{name};dur={1e3 * seconds:.2f}" for name, seconds in stages.items())
