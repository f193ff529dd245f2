"""Engines without a model for tests of the server: what they can do, how far they go and what they say is chosen."""

import threading
from collections.abc import Callable
from dataclasses import replace

from ipc.fake_engine import ABOUT, FakeEngine, FakeStream
from polyvox.errors import Overloaded
from polyvox.models.info import ModelIdentity, ModelInfo
from polyvox.models.request import Request

PLACES = 1000  # more than any test takes
CUSTOM = replace(
    ABOUT,
    identity=ModelIdentity("Fake-CustomVoice", "custom_voice-4-2x8-0123456789ab"),
    voices=("heart", "michael"),
)
DESIGN = replace(
    ABOUT,
    identity=ModelIdentity("Fake-VoiceDesign", "voice_design-4-2x8-0123456789ab"),
    designs_voices=True,
    takes_instructions=True,
)


class HeldEngine(FakeEngine):
    """Makes so many chunks of each stream and then waits until it is let go; takes so many streams at once."""

    def __init__(
        self,
        about: ModelInfo = CUSTOM,
        allowed: int | None = None,
        places: int = PLACES,
        step_seconds: float = 0.0,
    ) -> None:
        self.facts, self.allowed, self.places = about, allowed, places
        self.asked: list[Request] = []
        super().__init__(step_seconds)

    def info(self) -> ModelInfo:
        return self.facts

    def submit(self, request: Request, on_ready: Callable[[FakeStream], None] | None = None) -> FakeStream:
        with self.work:
            if len(self._streams) >= self.places:
                raise Overloaded("all streams are taken", retry_after=2.5)
            self.asked.append(request)
            stream = super().submit(request, on_ready)
            can_step = stream.can_step

            def held() -> bool:
                free = self.allowed is None or stream.made < self.allowed or stream.cancelled
                return free and can_step()

            stream.can_step = held  # type: ignore[method-assign]
            return stream

    @property
    def streams(self) -> int:
        with self.work:
            return len(self._streams)

    def let_go(self, allowed: int | None = None) -> None:
        with self.work:
            self.allowed = allowed
            self.work.notify_all()


def built_slowly(seconds: float, step_seconds: float) -> HeldEngine:
    """As a model that takes its time to load."""
    threading.Event().wait(seconds)
    return HeldEngine(step_seconds=step_seconds)
