# SPDX-License-Identifier: Apache-2.0
"""The settings of the server: their names, defaults, limits and descriptions."""

import os
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import Field, PrivateAttr, ValidationInfo, field_validator
from pydantic.config import JsonDict
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from polyvox.engine.config import EngineConfig
from polyvox.engine.lifecycle import RestartPolicy
from polyvox.file_store import is_url, without_secrets
from polyvox.server.setting_types import Aliases, CommaSeparated, Names, Workers, has_opentelemetry, split_address
from polyvox.server.tls import check_certificate, check_key

ENV_PREFIX = "POLYVOX_"
BACKLOG = 2048  # connections that wait to be accepted
MAX_JSON_BYTES_PER_CHARACTER = 12  # an escaped surrogate pair
OTHER_FIELDS_BYTES = 64 * 1024  # of a JSON body, beside its text

PublicEndpoints = Literal["voices", "models", "metrics", "docs"]

# Sections of the settings in `polyvox serve --help`.
NETWORK: JsonDict = {"section": "Network"}
ENGINE: JsonDict = {"section": "Engine"}
ACCESS: JsonDict = {"section": "Access"}
LIMITS: JsonDict = {"section": "Request limits"}
VOICES: JsonDict = {"section": "Voices"}
CONVERSATION: JsonDict = {"section": "Conversation"}
LOGGING: JsonDict = {"section": "Logging"}
SECRETS = ("api_keys", "llm_key", "stt_key")  # never shown


class Settings(BaseSettings):
    """Settings of `polyvox serve`. The constructor takes explicit values only; `load_settings` reads the sources."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=(), env_prefix=ENV_PREFIX
    )

    host: str = Field(
        default="127.0.0.1", description="Address to listen on; 0.0.0.0 for all.", json_schema_extra=NETWORK
    )
    port: int = Field(
        default=8000, ge=0, le=65535, description="TCP port; 0 for any free one.", json_schema_extra=NETWORK
    )
    workers: Workers = Field(
        default="auto",
        validate_default=True,
        ge=0,
        le=64,
        description="Number of HTTP server processes: a number, auto for one per four cores, or 0 to run the engine "
        "inside the server process.",
        json_schema_extra=NETWORK,
    )
    tls_cert: Path | None = Field(
        default=None,
        description="Certificate chain in PEM format for HTTPS and WSS; loaded again when the file changes.",
        json_schema_extra=NETWORK,
    )
    tls_key: Path | None = Field(
        default=None,
        validate_default=True,
        description="Key of tls_cert in PEM format, without a password.",
        json_schema_extra=NETWORK,
    )
    root_path: str = Field(default="", description="Path prefix when served behind a proxy.", json_schema_extra=NETWORK)
    keep_alive_timeout: float = Field(
        default=30.0, gt=0, description="HTTP keep-alive timeout in seconds.", json_schema_extra=NETWORK
    )
    ray: bool = Field(
        default=False,
        description="Deploy on a Ray cluster: that of RAY_ADDRESS, or one on this machine.",
        json_schema_extra=NETWORK,
    )
    drain_timeout: float = Field(
        default=30.0,
        ge=0,
        description="Seconds that running requests may take to finish at shutdown.",
        json_schema_extra=NETWORK,
    )

    wyoming: str | None = Field(
        default=None,
        description="Address for Home Assistant's Wyoming protocol, such as tcp://0.0.0.0:10200; it has no API keys.",
        json_schema_extra=NETWORK,
    )
    zeroconf: bool = Field(
        default=False,
        description="Announce the Wyoming address on the local network; needs the package zeroconf.",
        json_schema_extra=NETWORK,
    )

    model: str | None = Field(
        default=None,
        description="Checkpoint folder or Hugging Face id; by default the embedded voice.",
        json_schema_extra=ENGINE,
    )
    device: str = Field(default="auto", description="auto, cpu, cuda or cuda:N.", json_schema_extra=ENGINE)
    dtype: str = Field(default="auto", description="auto, bfloat16, float32 or float64.", json_schema_extra=ENGINE)
    replicas: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = Field(
        default=1,
        description="Number of engine processes, one per GPU: a number, or auto for all GPUs.",
        json_schema_extra=ENGINE,
    )
    vocoder_device: str = Field(
        default="auto",
        description="Device of the vocoder: auto (the model's device), cpu, cuda or cuda:N.",
        json_schema_extra=ENGINE,
    )
    max_streams: int | None = Field(
        default=None,
        ge=1,
        description="Maximum concurrent streams; by default 8 on a CPU, on a GPU as many as fit, at most 256.",
        json_schema_extra=ENGINE,
    )
    max_queue: int = Field(default=32, ge=0, description="Maximum number of queued requests.", json_schema_extra=ENGINE)
    max_queue_seconds: float = Field(
        default=10.0,
        gt=0,
        le=25,
        description="Longest expected queue wait in seconds; requests beyond it are rejected.",
        json_schema_extra=ENGINE,
    )
    context: int | None = Field(
        default=None,
        ge=256,
        description="Average KV positions per stream: prompt rows and frames (12.5 per second). "
        "By default 1024, and 4607 for Qwen3-Omni.",
        json_schema_extra=ENGINE,
    )
    memory_gb: float | None = Field(
        default=None,
        gt=0,
        description="Memory for streams in GB; by default all that is free.",
        json_schema_extra=ENGINE,
    )
    cuda_graphs: bool | None = Field(
        default=None, description="Capture and replay CUDA graphs; by default on a GPU.", json_schema_extra=ENGINE
    )
    deterministic: bool = Field(
        default=False,
        description="Bit-identical samples for a seed in any batch, on a GPU too; slower.",
        json_schema_extra=ENGINE,
    )
    min_streams_to_pipeline: int | None = Field(
        default=None,
        ge=0,
        description="Streams from which steps overlap; 0 disables it; by default chosen by device.",
        json_schema_extra=ENGINE,
    )
    buffer_seconds: float = Field(
        default=90.0,
        ge=2,
        description="Audio of a sentence that the engine buffers for a slow client, in seconds.",
        json_schema_extra=ENGINE,
    )
    reader_timeout: float = Field(
        default=30.0,
        gt=0,
        description="Seconds that a client may be behind the playing time of its audio before its connection is reset.",
        json_schema_extra=ENGINE,
    )
    text_timeout: float = Field(
        default=30.0, gt=0, description="Seconds that a live stream waits for more text.", json_schema_extra=ENGINE
    )
    restart_delay: float = Field(
        default=0.5,
        gt=0,
        description="Seconds until a failed engine is started again; doubled by each further failure.",
        json_schema_extra=ENGINE,
    )
    max_restart_delay: float = Field(
        default=30.0, gt=0, description="Maximum seconds between two starts of the engine.", json_schema_extra=ENGINE
    )
    engine_down_timeout: float = Field(
        default=300.0,
        gt=0,
        description="Seconds after which /livez fails if the engine cannot be restarted.",
        json_schema_extra=ENGINE,
    )
    cache_dir: Path | None = Field(
        default=None,
        description="Folder for compiled kernels; by default polyvox in the user's cache folder.",
        json_schema_extra=ENGINE,
    )
    trace: str | None = Field(
        default=None, description="Path of a Perfetto trace, written at shutdown.", json_schema_extra=ENGINE
    )
    encoder_threads: int = Field(
        default=4, ge=1, le=256, description="Audio encoder threads per server process.", json_schema_extra=ENGINE
    )

    api_keys: Names = Field(
        default=[], description="Accepted API keys; without any, no key is needed.", json_schema_extra=ACCESS
    )
    public: Annotated[list[PublicEndpoints], *CommaSeparated] = Field(
        default=[], description="Endpoints that need no key: voices, models, metrics, docs.", json_schema_extra=ACCESS
    )
    max_streams_per_key: int | None = Field(
        default=None,
        ge=1,
        description="Maximum concurrent requests per API key; further requests get status 429.",
        json_schema_extra=ACCESS,
    )
    max_streams_per_address: int | None = Field(
        default=None,
        ge=1,
        description="Maximum concurrent requests per client address or IPv6 /64; further requests get status 429.",
        json_schema_extra=ACCESS,
    )
    trusted_proxies: Names = Field(
        default=["127.0.0.1", "::1"],
        description="Addresses or networks of proxies whose X-Forwarded-For or Forwarded names the client.",
        json_schema_extra=ACCESS,
    )
    allowed_hosts: Names = Field(
        default=[],
        description="Public host names of the server, such as tts.example.com, .example.com or *.",
        json_schema_extra=ACCESS,
    )
    cors_origins: Names = Field(
        default=[],
        description="Origins of web pages that may call, such as https://example.com, or *.",
        json_schema_extra=ACCESS,
    )

    max_text_chars: int = Field(
        default=50_000, ge=1, description="Maximum characters of text per request.", json_schema_extra=LIMITS
    )
    max_body_bytes: int = Field(
        default=16_000_000, ge=1000, description="Maximum size of a request body in bytes.", json_schema_extra=LIMITS
    )
    max_recording_bytes: int = Field(
        default=10_000_000, ge=1000, description="Maximum size of a recording in bytes.", json_schema_extra=LIMITS
    )
    max_recording_seconds: float = Field(
        default=60.0,
        gt=0,
        description="Seconds of a recording that are read; the rest is ignored.",
        json_schema_extra=LIMITS,
    )
    max_batch_items: int = Field(
        default=32, ge=1, description="Maximum items per batch request.", json_schema_extra=LIMITS
    )
    max_spool_bytes: int = Field(
        default=2_000_000_000,
        ge=1_000_000,
        description="Maximum size in bytes of all whole-file responses, shared equally by the server processes; beyond "
        "it status 503.",
        json_schema_extra=LIMITS,
    )
    spool_dir: Path | None = Field(
        default=None,
        description="Folder of temporary files of whole-file responses; by default the system's.",
        json_schema_extra=LIMITS,
    )
    body_timeout: float = Field(
        default=30.0,
        gt=0,
        description="Seconds for a request's headers, and for its body, to arrive.",
        json_schema_extra=LIMITS,
    )
    websocket_idle_timeout: float = Field(
        default=30.0, gt=0, description="Seconds until an idle WebSocket is closed.", json_schema_extra=LIMITS
    )

    voices_dir: Path | str | None = Field(
        default=None,
        description="Folder or URL (s3://…) of the voice library; by default the user's own folder.",
        json_schema_extra=VOICES,
    )
    lexicon: Path | None = Field(
        default=None,
        description="File with pronunciations: lines of word = respelling, PLS (.pls) or JSON rules (.json).",
        json_schema_extra=VOICES,
    )
    voice_aliases: Aliases = Field(
        default={}, description="Alternative voice names, such as alloy=heart.", json_schema_extra=VOICES
    )
    ref_audio_domains: Names = Field(
        default=[], description="Hosts that recordings may be fetched from.", json_schema_extra=VOICES
    )
    media_root: Path | None = Field(
        default=None, description="Folder that file:// recordings may be read from.", json_schema_extra=VOICES
    )

    llm: str | None = Field(
        default=None,
        description="URL of an OpenAI-compatible LLM for /v1/chat/completions, such as http://localhost:11434/v1.",
        json_schema_extra=CONVERSATION,
    )
    llm_model: str | None = Field(
        default=None,
        description="Model of the LLM; by default the one that each request names.",
        json_schema_extra=CONVERSATION,
    )
    llm_key: str | None = Field(default=None, description="API key of the LLM.", json_schema_extra=CONVERSATION)
    llm_connect_timeout: float = Field(
        default=5.0, gt=0, description="Seconds to connect to the LLM.", json_schema_extra=CONVERSATION
    )
    llm_first_token_timeout: float = Field(
        default=60.0,
        gt=0,
        description="Seconds from a request to the LLM's first token.",
        json_schema_extra=CONVERSATION,
    )
    llm_token_timeout: float = Field(
        default=20.0, gt=0, description="Seconds between two tokens of the LLM.", json_schema_extra=CONVERSATION
    )
    llm_timeout: float = Field(
        default=600.0, gt=0, description="Seconds for a whole answer of the LLM.", json_schema_extra=CONVERSATION
    )
    max_llm_requests: int = Field(
        default=256,
        ge=1,
        description="Maximum concurrent requests to the LLM per server process; beyond it status 503.",
        json_schema_extra=CONVERSATION,
    )
    stt: str | None = Field(
        default=None,
        description="URL of an OpenAI-compatible STT server for speech input and /v1/audio/transcriptions, such as "
        "http://localhost:8001/v1.",
        json_schema_extra=CONVERSATION,
    )
    stt_model: str | None = Field(
        default=None,
        description="Model of the STT server; by default the one that each request names.",
        json_schema_extra=CONVERSATION,
    )
    stt_key: str | None = Field(default=None, description="API key of the STT server.", json_schema_extra=CONVERSATION)
    stt_connect_timeout: float = Field(
        default=5.0, gt=0, description="Seconds to connect to the STT server.", json_schema_extra=CONVERSATION
    )
    stt_turn_timeout: float = Field(
        default=20.0,
        gt=0,
        description="Seconds for the transcript of one turn of a conversation.",
        json_schema_extra=CONVERSATION,
    )
    stt_timeout: float = Field(
        default=600.0,
        gt=0,
        description="Seconds for the transcript of an uploaded file.",
        json_schema_extra=CONVERSATION,
    )
    max_stt_requests: int = Field(
        default=64,
        ge=1,
        description="Maximum concurrent requests to the STT server per server process; beyond it status 503.",
        json_schema_extra=CONVERSATION,
    )
    max_stt_bytes: int = Field(
        default=25_000_000,
        ge=1000,
        description="Maximum size in bytes of a request to /v1/audio/transcriptions.",
        json_schema_extra=CONVERSATION,
    )
    chat_format: Literal["openai", "vllm-omni"] = Field(
        default="openai",
        description="Format of streamed audio in chat completions: OpenAI's, or that of vLLM-Omni's clients.",
        json_schema_extra=CONVERSATION,
    )

    max_realtime_sessions: int = Field(
        default=256,
        ge=1,
        description="Maximum open sessions of /v1/realtime per server process.",
        json_schema_extra=CONVERSATION,
    )
    realtime_session_timeout: float = Field(
        default=3600.0,
        gt=0,
        description="Maximum duration of a session of /v1/realtime in seconds.",
        json_schema_extra=CONVERSATION,
    )
    realtime_idle_timeout: float = Field(
        default=300.0,
        gt=0,
        description="Seconds without an event until an idle session of /v1/realtime is closed.",
        json_schema_extra=CONVERSATION,
    )

    log_format: Literal["text", "json"] = Field(
        default="text", description="Format of log lines.", json_schema_extra=LOGGING
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Minimum level of log lines.", json_schema_extra=LOGGING
    )
    otel: bool = Field(
        default=False,
        description="Send OpenTelemetry traces to OTEL_EXPORTER_OTLP_ENDPOINT; needs the packages of the extra otel.",
        json_schema_extra=LOGGING,
    )

    @field_validator("tls_cert")
    @classmethod
    def _check_tls_cert(cls, cert: Path | None) -> Path | None:
        if cert is not None:
            check_certificate(cert)
        return cert

    @field_validator("tls_key")
    @classmethod
    def _check_tls_key(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        cert = info.data.get("tls_cert")
        if key is None and cert is not None:
            raise ValueError("must be set with tls_cert")
        if key is not None and "tls_cert" in info.data:  # otherwise tls_cert is invalid
            if cert is None:
                raise ValueError("must not be set without tls_cert")
            check_key(cert, key)
        return key

    @field_validator("otel")
    @classmethod
    def _check_otel(cls, otel: bool) -> bool:
        if otel and not has_opentelemetry():
            raise ValueError("must be false without its packages: pip install 'polyvox[otel]'")
        return otel

    @field_validator("wyoming")
    @classmethod
    def _check_wyoming(cls, address: str | None) -> str | None:
        if address is not None:
            split_address(address)
        return address

    @field_validator("zeroconf")
    @classmethod
    def _check_zeroconf(cls, zeroconf: bool, info: ValidationInfo) -> bool:
        if zeroconf and info.data.get("wyoming") is None:
            raise ValueError("must be false without wyoming, whose address it announces")
        return zeroconf

    @field_validator("trusted_proxies")
    @classmethod
    def _check_networks(cls, networks: list[str]) -> list[str]:
        for network in networks:
            try:
                ip_network(network, strict=False)
            except ValueError:
                raise ValueError("must be IP addresses or networks such as 10.0.0.0/8") from None
        return networks

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

    @field_validator("voices_dir")
    @classmethod
    def _parse_voices_dir(cls, location: Path | str | None) -> Path | str | None:
        return Path(location) if isinstance(location, str) and not is_url(location) else location

    @field_validator("spool_dir")
    @classmethod
    def _check_spool_dir(cls, folder: Path | None) -> Path | None:
        if folder is not None and not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError("must be a writable folder")
        return folder

    @field_validator("root_path")
    @classmethod
    def _normalize_root_path(cls, path: str) -> str:
        return f"/{inner}" if (inner := path.strip("/")) else ""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)

    _llm_is_supervised: bool = PrivateAttr(default=False)

    @property
    def wyoming_address(self) -> tuple[str, int] | None:
        return None if self.wyoming is None else split_address(self.wyoming)

    @property
    def max_text_body_bytes(self) -> int:
        """Body limit of routes that take no recordings."""
        return min(self.max_body_bytes, MAX_JSON_BYTES_PER_CHARACTER * self.max_text_chars + OTHER_FIELDS_BYTES)

    def engine_config(self) -> EngineConfig:
        return EngineConfig(
            max_streams=self.max_streams or 0,
            context=self.context or 0,
            max_queue=self.max_queue,
            max_queue_seconds=self.max_queue_seconds,
            buffer_seconds=self.buffer_seconds,
            reader_timeout=self.reader_timeout,
            text_timeout=self.text_timeout,
            min_streams_to_pipeline=self.min_streams_to_pipeline,
            cuda_graphs=self.cuda_graphs,
            deterministic=self.deterministic,
            memory_gb=self.memory_gb,
            pcm=True,
            trace=self.trace,
        )

    @property
    def llm_is_supervised(self) -> bool:
        """Whether the server itself starts and restarts the LLM."""
        return self._llm_is_supervised

    def with_supervised_llm(self, url: str) -> "Settings":
        copy = self.model_copy(update={"llm": url})
        copy._llm_is_supervised = True
        return copy

    def restart_policy(self) -> RestartPolicy:
        return RestartPolicy(self.restart_delay, self.max_restart_delay)

    def shown_values(self) -> dict[str, Any]:
        """All settings as JSON values. API keys are counted, not shown."""
        values = self.model_dump(mode="json")
        values["api_keys"] = [f"({len(self.api_keys)} hidden)"] if self.api_keys else []
        values["llm_key"] = "(hidden)" if self.llm_key else None
        values["stt_key"] = "(hidden)" if self.stt_key else None
        if isinstance(self.voices_dir, str):
            values["voices_dir"] = without_secrets(self.voices_dir)
        return values

    def to_yaml(self) -> str:
        """All settings as a configuration file, without API keys."""
        return yaml.safe_dump(self.shown_values(), sort_keys=False, allow_unicode=True)
