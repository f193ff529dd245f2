# SPDX-License-Identifier: Apache-2.0
"""What an utterance reports for traces. Without tracing nothing is recorded."""

from typing import Protocol

from polyvox.engine.interface import AsyncStream, Result
from polyvox.server.request_log import RequestRecord


class UtteranceTrace(Protocol):
    def on_submitted(self, stream: AsyncStream, start: float) -> None:
        """The engine accepted a sentence. start: when it was submitted, by time.time."""

    def on_sentence_finished(self, stream: AsyncStream, result: Result) -> None: ...

    def on_first_packet(self, stages: dict[str, float] | None) -> None:
        """The first encoded audio is ready to be sent. stages: seconds of each stage before, if they are known."""

    def on_finished(self, record: RequestRecord) -> None: ...


class NoUtteranceTrace:
    """Tracing is off."""

    def on_submitted(self, stream: AsyncStream, start: float) -> None:
        pass

    def on_sentence_finished(self, stream: AsyncStream, result: Result) -> None:
        pass

    def on_first_packet(self, stages: dict[str, float] | None) -> None:
        pass

    def on_finished(self, record: RequestRecord) -> None:
        pass


NO_TRACE = NoUtteranceTrace()
