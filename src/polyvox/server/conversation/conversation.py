# SPDX-License-Identifier: Apache-2.0
"""What the chat completions of one server process share: the thinker and the transcripts of its answers."""

from dataclasses import dataclass, field

from polyvox.server.conversation.transcripts import TranscriptStore
from polyvox.server.responses import APIError
from polyvox.server.settings import Settings
from polyvox.thinkers.openai_client import LLMConfig, OpenAIThinker

HINT = "Start the server with --llm URL, such as http://localhost:11434/v1, and --llm-model NAME."


@dataclass(frozen=True, slots=True)
class Conversation:
    llm: OpenAIThinker | None
    transcripts: TranscriptStore = field(default_factory=TranscriptStore)

    @classmethod
    def create(cls, settings: Settings) -> "Conversation":
        """Inside the server's event loop."""
        if settings.llm is None:
            return cls(None)
        config = LLMConfig(
            settings.llm,
            settings.llm_model,
            settings.llm_key,
            settings.llm_connect_timeout,
            settings.llm_first_token_timeout,
            settings.llm_token_timeout,
            settings.llm_timeout,
            settings.max_llm_requests,
        )
        return cls(OpenAIThinker(config))

    def require_llm(self) -> OpenAIThinker:
        """Raises APIError if there is none."""
        if self.llm is None:
            raise APIError(404, "llm_not_configured", f"Chat completions need an LLM. {HINT}")
        return self.llm

    async def close(self) -> None:
        if self.llm is not None:
            await self.llm.close()
