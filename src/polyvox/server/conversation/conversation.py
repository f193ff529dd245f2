# SPDX-License-Identifier: Apache-2.0
"""What all chat completions share: the thinker and the transcripts of its answers."""

from dataclasses import dataclass
from pathlib import Path

from polyvox.server.conversation.transcripts import MAX_CHARS, MAX_TRANSCRIPTS, TranscriptStore
from polyvox.server.realtime.session_limit import SessionLimit
from polyvox.server.responses import APIError
from polyvox.server.settings import Settings
from polyvox.thinkers.openai_client import LLMConfig, OpenAIThinker

TRANSCRIPTS = "transcripts"  # the folder of transcripts in that of all server processes
HINT = "Start the server with --llm URL, such as http://localhost:11434/v1, and --llm-model NAME."


@dataclass(frozen=True, slots=True)
class Conversation:
    llm: OpenAIThinker | None
    transcripts: TranscriptStore
    realtime_sessions: SessionLimit

    @classmethod
    def create(cls, settings: Settings, shared_dir: Path | None) -> "Conversation":
        """Inside the server's event loop. shared_dir: see create_app."""
        folder = None if shared_dir is None else shared_dir / TRANSCRIPTS
        num_processes = max(1, settings.workers)
        transcripts = TranscriptStore(folder, MAX_CHARS // num_processes, MAX_TRANSCRIPTS // num_processes)
        sessions = SessionLimit(settings.max_realtime_sessions)
        if settings.llm is None:
            return cls(None, transcripts, sessions)
        config = LLMConfig(
            settings.llm,
            settings.llm_model,
            settings.llm_key,
            settings.llm_connect_timeout,
            settings.llm_first_token_timeout,
            settings.llm_token_timeout,
            settings.llm_timeout,
            settings.max_llm_requests,
            settings.llm_is_supervised,
        )
        return cls(OpenAIThinker(config), transcripts, sessions)

    def require_llm(self) -> OpenAIThinker:
        """Raises APIError if there is none."""
        if self.llm is None:
            raise APIError(404, "llm_not_configured", f"Conversations need an LLM. {HINT}")
        return self.llm

    async def close(self) -> None:
        if self.llm is not None:
            await self.llm.close()
        self.transcripts.close()
