# SPDX-License-Identifier: Apache-2.0
"""The settings of conversations: LLM, STT server and realtime sessions."""

from typing import ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator

from polyvox.server.setting_sections.section import SettingsSection


class ConversationSettings(SettingsSection):
    section: ClassVar[str] = "Conversation"

    llm: str | None = Field(
        default=None,
        description="URL of an OpenAI-compatible LLM for /v1/chat/completions, such as http://localhost:11434/v1.",
    )
    llm_model: str | None = Field(
        default=None, description="Model of the LLM; by default the one that each request names."
    )
    llm_key: str | None = Field(default=None, description="API key of the LLM.")
    llm_connect_timeout: float = Field(default=5.0, gt=0, description="Seconds to connect to the LLM.")
    llm_first_token_timeout: float = Field(
        default=60.0, gt=0, description="Seconds from a request to the LLM's first token."
    )
    llm_token_timeout: float = Field(default=20.0, gt=0, description="Seconds between two tokens of the LLM.")
    llm_timeout: float = Field(default=600.0, gt=0, description="Seconds for a whole answer of the LLM.")
    max_llm_requests: int = Field(
        default=256,
        ge=1,
        description="Maximum concurrent requests to the LLM per server process; beyond it status 503.",
    )
    stt: str | None = Field(
        default=None,
        description="URL of an OpenAI-compatible STT server for speech input and /v1/audio/transcriptions, such as "
        "http://localhost:8001/v1.",
    )
    stt_model: str | None = Field(
        default=None, description="Model of the STT server; by default the one that each request names."
    )
    stt_key: str | None = Field(default=None, description="API key of the STT server.")
    stt_connect_timeout: float = Field(default=5.0, gt=0, description="Seconds to connect to the STT server.")
    stt_turn_timeout: float = Field(
        default=20.0, gt=0, description="Seconds for the transcript of one turn of a conversation."
    )
    stt_timeout: float = Field(default=600.0, gt=0, description="Seconds for the transcript of an uploaded file.")
    max_stt_requests: int = Field(
        default=64,
        ge=1,
        description="Maximum concurrent requests to the STT server per server process; beyond it status 503.",
    )
    max_stt_bytes: int = Field(
        default=25_000_000, ge=1000, description="Maximum size in bytes of a request to /v1/audio/transcriptions."
    )
    chat_format: Literal["openai", "vllm-omni"] = Field(
        default="openai",
        description="Format of streamed audio in chat completions: OpenAI's, or that of vLLM-Omni's clients.",
    )
    max_realtime_sessions: int = Field(
        default=256, ge=1, description="Maximum open sessions of /v1/realtime per server process."
    )
    realtime_session_timeout: float = Field(
        default=3600.0, gt=0, description="Maximum duration of a session of /v1/realtime in seconds."
    )
    realtime_idle_timeout: float = Field(
        default=300.0, gt=0, description="Seconds without an event until an idle session of /v1/realtime is closed."
    )

    @field_validator("llm", "stt")
    @classmethod
    def _check_server_url(cls, url: str | None, info: ValidationInfo) -> str | None:
        if url is not None and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
            raise ValueError("must be a URL such as http://localhost:11434/v1")
        if url is not None and "@" in urlsplit(url).netloc:
            raise ValueError(f"must have no user and no password; set {info.field_name}_key")
        return url

    @field_validator("llm_key", "stt_key")
    @classmethod
    def _check_server_key(cls, key: str | None) -> str | None:
        key = key and key.strip()  # a file or a variable may end with a line break
        if key and not (key.isascii() and key.isprintable()):
            raise ValueError("must be printable ASCII, as a header is")
        return key

    _llm_is_supervised: bool = PrivateAttr(default=False)

    @property
    def llm_is_supervised(self) -> bool:
        """Whether the server itself starts and restarts the LLM."""
        return self._llm_is_supervised
