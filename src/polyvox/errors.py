"""Every error that Polyvox raises on purpose; each knows its HTTP status and its code."""

from collections.abc import Iterable


class PolyvoxError(Exception):
    """The base of all of them. The message is one sentence for the user, with what to do."""

    status = 500
    code = "internal_error"

    def __reduce__(self) -> tuple[object, ...]:
        """Crosses a process border with its class, message and fields; not by constructors, which all differ."""
        return _bare, (type(self), str(self)), vars(self)


def _bare(kind: type[PolyvoxError], message: str) -> PolyvoxError:
    return kind.__new__(kind, message)


def short(value: object) -> str:
    """A value as messages show it."""
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "…"


class InvalidRequest(PolyvoxError):
    """A request field has a value that cannot be served; nothing was computed for it."""

    status = 400
    code = "invalid_request"

    def __init__(self, field: str, value: object, allowed: str | Iterable[str]) -> None:
        if not isinstance(allowed, str):
            allowed = "one of " + ", ".join(allowed)
        super().__init__(f"{field}: {short(value)} is not possible; allowed is {allowed}")
        self.field = field


class CheckpointError(PolyvoxError):
    """A checkpoint is missing, damaged, or of a kind that Polyvox does not speak."""

    code = "bad_checkpoint"


class Overloaded(PolyvoxError):
    """Everything is busy; the same request may be sent again later."""

    status = 503
    code = "overloaded"

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StreamFailed(PolyvoxError):
    """A stream that had begun could not be finished."""

    code = "stream_failed"


class EngineDown(Overloaded):
    """The engine is being started again; nothing can be taken meanwhile."""

    code = "engine_down"


class UnknownVoice(InvalidRequest):
    """A voice that neither the model nor the library has."""

    status = 404
    code = "voice_not_found"


class VoiceExists(InvalidRequest):
    """A name that another voice has already."""

    status = 409
    code = "voice_exists"


class VoiceLibraryError(PolyvoxError):
    """A file of the voice library is damaged, or its folder cannot be used; the message names it."""

    code = "voice_library"
