# SPDX-License-Identifier: Apache-2.0
"""The status of a stream and its allowed transitions."""

from enum import StrEnum

STATS_PREFIX = "status_"  # of the engine's statistics that count streams by status


class StreamStatus(StrEnum):
    AWAITING_TEXT = "awaiting_text"  # a live request without text yet; not queued
    QUEUED = "queued"  # prepared; waits for a slot and KV pages
    PREFILL = "prefill"  # has a slot; the prompt is not completely read
    RUNNING = "running"  # generates frames
    PAUSED = "paused"  # has a slot; waits for its reader or for more text
    DRAINING = "draining"  # generates no more frames; the remaining ones are decoded and delivered
    RELEASING = "releasing"  # has its result; a step in flight may still use its slot
    FINISHED = "finished"  # has its result and holds nothing


_S = StreamStatus

TRANSITIONS: dict[StreamStatus, frozenset[StreamStatus]] = {
    _S.AWAITING_TEXT: frozenset({_S.QUEUED, _S.FINISHED}),
    _S.QUEUED: frozenset({_S.PREFILL, _S.FINISHED}),
    _S.PREFILL: frozenset({_S.RUNNING, _S.RELEASING}),
    _S.RUNNING: frozenset({_S.PAUSED, _S.DRAINING, _S.RELEASING}),
    _S.PAUSED: frozenset({_S.RUNNING, _S.DRAINING, _S.RELEASING}),
    _S.DRAINING: frozenset({_S.RELEASING}),
    _S.RELEASING: frozenset({_S.FINISHED}),
    _S.FINISHED: frozenset(),
}
HOLDS_SLOT = frozenset({_S.PREFILL, _S.RUNNING, _S.PAUSED, _S.DRAINING, _S.RELEASING})
# No more frames are generated.
ENDED = frozenset({_S.DRAINING, _S.RELEASING, _S.FINISHED})


class ForbiddenTransition(RuntimeError):
    """A change of status that `TRANSITIONS` does not allow: a defect of the engine."""

    def __init__(self, stream_id: int, status: StreamStatus, target: StreamStatus) -> None:
        super().__init__(f"stream {stream_id} cannot change from {status} to {target}")
