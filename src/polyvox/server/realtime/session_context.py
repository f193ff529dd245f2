# SPDX-License-Identifier: Apache-2.0
"""What the parts of a realtime session share."""

from dataclasses import dataclass

from polyvox.server.app_state import AppState
from polyvox.server.middleware.limits import ConcurrencyLimiter
from polyvox.server.realtime.conversation import RealtimeConversation
from polyvox.server.realtime.events import EventSender
from polyvox.server.realtime.spoken_transcript import PlaybackClock
from polyvox.server.realtime.tasks import SessionTasks


@dataclass(frozen=True, slots=True)
class SessionContext:
    """The objects of one session. clock: of the player at the client."""

    state: AppState
    limiter: ConcurrencyLimiter
    request_id: str
    sender: EventSender
    conversation: RealtimeConversation
    clock: PlaybackClock
    tasks: SessionTasks
