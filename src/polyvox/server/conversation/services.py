# SPDX-License-Identifier: Apache-2.0
"""What all conversations share: the thinker, the transcripts of its answers, and the transcriber of speech."""

from dataclasses import dataclass
from pathlib import Path

from polyvox.server.conversation.transcripts import MAX_CHARS, MAX_TRANSCRIPTS, TranscriptStore
from polyvox.server.metrics import Metrics
from polyvox.server.realtime.session_limit import SessionLimit
from polyvox.server.responses import APIError
from polyvox.server.settings import Settings
from polyvox.thinkers.openai_client import LLMConfig, OpenAIThinker
from polyvox.transcription.client import STTConfig, Transcriber

TRANSCRIPTS = "transcripts"  # the folder of transcripts in that of all server processes
STT_HINT = "Start the server with --stt URL, such as http://localhost:8001/v1, and --stt-model NAME."
HINT = "Start the server with --llm URL, such as http://localhost:11434/v1, and --llm-model NAME."


@dataclass(frozen=True, slots=True)
class ConversationServices:
    """llm and stt: None if the settings have none. transcripts: of spoken answers."""

    llm: OpenAIThinker | None
    stt: Transcriber | None
    transcripts: TranscriptStore
    realtime_sessions: SessionLimit

    @classmethod
    def create(cls, settings: Settings, shared_dir: Path | None, metrics: Metrics) -> "ConversationServices":
        """Inside the server's event loop. shared_dir: see create_app."""
        folder = None if shared_dir is None else shared_dir / TRANSCRIPTS
        num_processes = max(1, settings.workers)
        transcripts = TranscriptStore(folder, MAX_CHARS // num_processes, MAX_TRANSCRIPTS // num_processes)
        sessions = SessionLimit(settings.max_realtime_sessions)
        stt = None if settings.stt is None else Transcriber(_stt_config(settings), metrics.record_transcription)
        llm = None if settings.llm is None else OpenAIThinker(_llm_config(settings))
        return cls(llm, stt, transcripts, sessions)

    def require_llm(self) -> OpenAIThinker:
        """Raises APIError if there is none."""
        if self.llm is None:
            raise APIError(404, "llm_not_configured", f"Conversations need an LLM. {HINT}")
        return self.llm

    def require_stt(self) -> Transcriber:
        """Raises APIError if there is none."""
        if self.stt is None:
            raise APIError(404, "stt_not_configured", f"Transcription needs an STT server. {STT_HINT}")
        return self.stt

    async def close(self) -> None:
        if self.stt is not None:
            await self.stt.close()
        if self.llm is not None:
            await self.llm.close()
        self.transcripts.close()


def _llm_config(settings: Settings) -> LLMConfig:
    assert settings.llm is not None
    return LLMConfig(
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


def _stt_config(settings: Settings) -> STTConfig:
    assert settings.stt is not None
    return STTConfig(
        settings.stt,
        settings.stt_model,
        settings.stt_key,
        settings.stt_connect_timeout,
        settings.stt_turn_timeout,
        settings.stt_timeout,
        settings.max_stt_requests,
    )
