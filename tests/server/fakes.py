# SPDX-License-Identifier: Apache-2.0
"""Engines without a model for tests of the server, with chosen capabilities, progress and capacity."""

import threading
from dataclasses import replace

from ipc.fake_engine import ABOUT, FakeEngine, FakeStream
from polyvox.engine.interface import OnReady
from polyvox.errors import Overloaded
from polyvox.models.info import ModelIdentity, ModelInfo
from polyvox.models.request import Request

MAX_STREAMS = 1000  # more than any test uses
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


class PausableEngine(FakeEngine):
    """Pauses each stream after max_chunks chunks until `resume`, and accepts at most max_streams streams."""

    def __init__(
        self,
        info: ModelInfo = CUSTOM,
        max_chunks: int | None = None,
        max_streams: int = MAX_STREAMS,
        step_seconds: float = 0.0,
    ) -> None:
        self._info, self.max_chunks, self.max_streams = info, max_chunks, max_streams
        self.requests: list[Request] = []
        super().__init__(step_seconds)

    def info(self) -> ModelInfo:
        return self._info

    def submit(self, request: Request, on_ready: OnReady | None = None) -> FakeStream:
        with self.work:
            if len(self._streams) >= self.max_streams:
                raise Overloaded("all streams are taken", retry_after=2.5)
            self.requests.append(request)
            return super().submit(request, on_ready)

    def may_step(self, stream: FakeStream) -> bool:
        return self.max_chunks is None or stream.made < self.max_chunks or stream.cancelled

    @property
    def streams(self) -> int:
        with self.work:
            return len(self._streams)

    def resume(self, max_chunks: int | None = None) -> None:
        """Lets streams run up to a new limit, by default to their end."""
        with self.work:
            self.max_chunks = max_chunks
            self.work.notify_all()


def build_slowly(seconds: float, step_seconds: float) -> PausableEngine:
    """An engine that takes a while to start."""
    threading.Event().wait(seconds)
    return PausableEngine(step_seconds=step_seconds)
