# SPDX-License-Identifier: Apache-2.0
"""The exceptions that Polyvox raises. Each has an HTTP status, an error code and a message for the user."""

from collections.abc import Iterable
from typing import Final, Literal

MAX_SHOWN_VALUE = 80  # characters of a value in a message
# A queue is full; no slot is free for as long as a request may wait; a limit of sessions; a disk does not answer; the
# server ends.
OverloadReason = Literal["queue_full", "no_slot_in_time", "too_many_sessions", "disk_timeout", "shutting_down"]


class _NotShown:
    pass


NOT_SHOWN: Final = _NotShown()  # pass it as a value to leave "(got …)" out of the message

NO_TEXT: Final = "must have at least one word"


def shorten(value: object) -> str:
    """The repr of a value, cut to the length that messages show."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_VALUE else text[: MAX_SHOWN_VALUE - 3] + "…"


def invalid_value(field: str, value: object, requirement: str | Iterable[str], hint: str = "") -> str:
    """The message for an invalid value: `Invalid value for 'speed': must be between 0.25 and 4 (got 9).`

    requirement: a predicate such as "must be an integer", or the values that are allowed. hint: one more sentence that
    says how to fix it.
    """
    if not isinstance(requirement, str):
        requirement = "must be one of " + ", ".join(requirement)
    got = "" if value is NOT_SHOWN else f" (got {shorten(value)})"
    message = f"Invalid value for '{field}': {requirement}{got}."
    return f"{message} {hint}" if hint else message


def how_to_install(extra: str) -> str:
    """The end of a sentence: how to install the packages of an extra. In the clone, because Polyvox is on no index."""
    return f"run pip install '.[{extra}]' in the clone of Polyvox"


class PolyvoxError(Exception):
    """Base class. The message is for the user and says what to do."""

    status = 500
    code = "internal_error"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles the class, message and attributes, because the constructors of subclasses differ."""
        return _restore, (type(self), str(self)), vars(self)


def _restore(cls: type[PolyvoxError], message: str) -> PolyvoxError:
    return cls.__new__(cls, message)


class InvalidRequest(PolyvoxError):
    """A field has an invalid value. Nothing was computed for the request.

    The arguments are those of `invalid_value`.
    """

    status = 400
    code = "invalid_request"

    def __init__(self, field: str, value: object, requirement: str | Iterable[str], hint: str = "") -> None:
        super().__init__(invalid_value(field, value, requirement, hint))
        self.field = field

    def message_for(self, name: str) -> str:
        """The message with another name for the field, such as the one that an HTTP API uses."""
        return str(self).replace(f"'{self.field}'", f"'{name}'", 1)

    def rename(self, name: str) -> None:
        """Give the field another name, such as the one that a command line uses."""
        self.args, self.field = (self.message_for(name),), name


class CheckpointError(PolyvoxError):
    """A checkpoint is missing, damaged or of an unsupported type."""

    code = "bad_checkpoint"


class Overloaded(PolyvoxError):
    """No capacity is free. The same request may succeed after `retry_after` seconds.

    reason: more exact than the code, if there is one.
    """

    status = 503
    code = "overloaded"

    def __init__(self, message: str, retry_after: float, reason: OverloadReason | None = None) -> None:
        super().__init__(message)
        self.retry_after, self.reason = retry_after, reason


class StreamFailed(PolyvoxError):
    """A stream failed after it had started."""

    code = "stream_failed"


class EngineDown(Overloaded):
    """The engine is restarting or closed and accepts no requests."""

    code = "engine_down"


class UnknownVoice(InvalidRequest):
    """Neither the model nor the voice library has this voice."""

    status = 404
    code = "voice_not_found"


class VoiceExists(InvalidRequest):
    """The voice library already has a voice with this name."""

    status = 409
    code = "voice_exists"


class VoiceLibraryError(PolyvoxError):
    """A file of the voice library is damaged, or the folder cannot be read or written."""

    code = "voice_library"
