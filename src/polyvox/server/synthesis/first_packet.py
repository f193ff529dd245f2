# SPDX-License-Identifier: Apache-2.0
"""Where the time from a request to its first packet goes."""

from dataclasses import dataclass

from polyvox.engine.interface import FirstChunkTimes

# The stages in order. Together they are the time up to the first packet; "words" interrupts those that follow it.
STAGES = (
    "request",  # parsing, authentication and limits; only of HTTP requests with the whole text
    "words",  # all waits for the text of the first frames; only of live text
    "text",  # text preparation, until the first segment is submitted
    "submit",  # to the engine's process: tokens, first check of admission control
    "queue",  # until the stream has a slot: admission control, the end of the step in progress, the wait for capacity
    "generate",  # prefill and first frame
    "decode",  # the other frames of the first chunk, and the vocoder
    "deliver",  # to the server process, then resampling and encoding
)


@dataclass(slots=True)
class FirstPacketTimer:
    """The times of the first segment of an utterance, by `time.monotonic`."""

    live: bool = False
    awaited: float = 0.0  # seconds of waits for live text before the segment was submitted
    submitted_at: float | None = None
    chunk: FirstChunkTimes | None = None

    @property
    def awaited_in_engine(self) -> float:
        """Seconds of waits for live text after the segment was submitted."""
        chunk = self.chunk
        if chunk is None or not self.live:
            return 0.0
        return (chunk.queued_at - chunk.received_at) + (chunk.text_at - chunk.admitted_at)

    def stages(self, arrived_at: float | None, started_at: float, now: float) -> dict[str, float] | None:
        """Seconds of each stage of a packet that is ready now; None if its audio is not that of the first segment.

        arrived_at: of the HTTP request; None: unknown. started_at: when the text was there; of live text the start of
        the utterance, later by `awaited`.
        """
        if self.submitted_at is None or self.chunk is None:
            return None
        chunk = self.chunk
        stages = {
            "request": 0.0 if arrived_at is None else started_at - arrived_at,
            "words": self.awaited + self.awaited_in_engine,
            "text": self.submitted_at - started_at,
            "submit": (chunk.received_at if self.live else chunk.queued_at) - self.submitted_at,
            "queue": chunk.admitted_at - chunk.queued_at,
            "generate": chunk.first_frame_at - (chunk.text_at if self.live else chunk.admitted_at),
            "decode": chunk.decoded_at - chunk.first_frame_at,
            "deliver": now - chunk.decoded_at,
        }
        if arrived_at is None:
            del stages["request"]
        if not self.live:
            del stages["words"]
        return {stage: max(0.0, seconds) for stage, seconds in stages.items()}


def milliseconds(stages: dict[str, float]) -> dict[str, float]:
    """Milliseconds by stage, with two decimals."""
    return {name: round(1e3 * seconds, 2) for name, seconds in stages.items()}


def server_timing(stages: dict[str, float]) -> str:
    """The value of the header Server-Timing."""
    return ", ".join(f"{name};dur={duration:.2f}" for name, duration in milliseconds(stages).items())
