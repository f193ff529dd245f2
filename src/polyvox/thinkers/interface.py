# SPDX-License-Identifier: Apache-2.0
"""The interface of a thinker: the language model that writes an answer while it is spoken."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from polyvox.errors import Overloaded, PolyvoxError
from polyvox.models.request import ThinkerPrompt

# The body of a chat completion request in OpenAI's format.
ChatBody = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Delta:
    """The next piece of the answer.

    text: what is spoken; empty for tool calls and reasoning. ids: its tokens, if the thinker returns them. chunk: the
    `chat.completion.chunk` object in OpenAI's format, with one choice and without its finish_reason.
    """

    text: str
    ids: tuple[int, ...] = ()
    chunk: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class End:
    """The end of a complete answer. usage: OpenAI's `usage` object, if the thinker returns one."""

    finish_reason: str
    usage: Mapping[str, Any] | None = None


ThinkerEvent = ThinkerPrompt | Delta | End


class ThinkerFailed(PolyvoxError):
    """The thinker cannot be reached, sent invalid data or ended its answer too early."""

    status = 502
    code = "llm_failed"


# The settings with the time limits of a thinker.
TimeLimit = Literal["llm_connect_timeout", "llm_first_token_timeout", "llm_token_timeout", "llm_timeout"]


class ThinkerTimeout(ThinkerFailed):
    """The thinker was too slow. limit: the setting that it exceeded."""

    status = 504
    code = "llm_timeout"

    def __init__(self, message: str, limit: TimeLimit) -> None:
        super().__init__(f"{message} ({limit}).")
        self.limit = limit


class ThinkerRejected(PolyvoxError):
    """The thinker rejected the request. The status and the message are its own."""

    code = "llm_rejected"

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param


class ThinkerOverloaded(Overloaded):
    """The thinker has no capacity (503) or limits its requests (429)."""

    code = "llm_overloaded"

    def __init__(self, message: str, retry_after: float, status: int = 503) -> None:
        super().__init__(message, retry_after)
        self.status = status


class ThinkerStarting(Overloaded):
    """The server starts or restarts the thinker, which does not listen yet."""

    code = "llm_starting"

    def __init__(self, retry_after: float) -> None:
        super().__init__("The LLM is starting.", retry_after)


class Thinker(Protocol):
    """A language model for any number of concurrent answers."""

    def answer(self, body: ChatBody, with_ids: bool) -> AsyncGenerator[ThinkerEvent]:
        """Streams one answer: with `with_ids` a ThinkerPrompt, then Deltas, then the End.

        Closing the generator cancels the answer. Raises ThinkerRejected, ThinkerOverloaded, ThinkerStarting,
        ThinkerTimeout or ThinkerFailed.
        """

    async def close(self) -> None:
        """Ends all answers. Idempotent."""
