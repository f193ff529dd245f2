# SPDX-License-Identifier: Apache-2.0
"""Transcripts of speech, and the errors of the STT server that makes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from polyvox.errors import Overloaded, PolyvoxError

# How a request to the STT server ended.
TranscriptionOutcome = Literal["finished", "rejected", "failed", "timeout", "cancelled"]


@dataclass(frozen=True, slots=True)
class Transcription:
    """language, seconds (of audio) and usage (OpenAI's object) are None if the STT server does not return them."""

    text: str
    language: str | None = None
    seconds: float | None = None
    usage: Mapping[str, Any] | None = None


class TranscriptionFailed(PolyvoxError):
    """The STT server cannot be reached or sent invalid data."""

    status = 502
    code = "stt_failed"


# The settings with the time limits of transcriptions.
STTTimeLimit = Literal["stt_connect_timeout", "stt_turn_timeout", "stt_timeout"]


class TranscriptionTimeout(TranscriptionFailed):
    """The STT server was too slow. limit: the setting that it exceeded."""

    status = 504
    code = "stt_timeout"

    def __init__(self, message: str, limit: STTTimeLimit) -> None:
        super().__init__(f"{message} ({limit}).")
        self.limit = limit


class TranscriptionRejected(PolyvoxError):
    """The STT server rejected the request. The status and the message are its own."""

    code = "stt_rejected"

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param


class TranscriptionOverloaded(Overloaded):
    """The STT server has no capacity (503) or limits its requests (429)."""

    code = "stt_overloaded"

    def __init__(self, message: str, retry_after: float, status: int = 503) -> None:
        super().__init__(message, retry_after)
        self.status = status
