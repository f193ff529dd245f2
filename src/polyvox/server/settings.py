"""The server's one configuration: a YAML file, the environment and flags, each going before the one named earlier."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from polyvox.engine.config import EngineConfig
from polyvox.errors import NOT_SHOWN, InvalidRequest

PREFIX = "POLYVOX_"
# Variables with our prefix that are not the server's.
OTHERS = ("POLYVOX_HOME", "POLYVOX_CONFIG", "POLYVOX_TEST_DEVICE")

Public = Literal["voices", "models", "metrics", "docs"]


class Settings(BaseModel):
    """Every key of the configuration, with what it means."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    host: str = Field(default="127.0.0.1", description="The address to listen on; 0.0.0.0 for every network.")
    port: int = Field(default=8000, ge=0, le=65535, description="0 takes any free one.")
    model: str | None = Field(default=None, description="A folder or a hub id; by default the embedded voice.")
    device: str = Field(default="auto", description="auto, cpu, cuda or cuda:N.")
    dtype: str = Field(default="auto", description="auto, bfloat16, float32 or float64.")
    workers: int = Field(
        default=1, ge=0, le=64, description="Server processes; 0 runs the engine in the server's process."
    )

    max_streams: int | None = Field(
        default=None,
        ge=1,
        description="Streams that run at once; by default 8 on a CPU, and on a GPU as many as fit, at most 256.",
    )
    context: int = Field(
        default=1024, ge=256, description="Rows of prompt and frames (12.5 a second) that a stream has on average."
    )
    graphs: bool | None = Field(default=None, description="Replay CUDA graphs; by default on a GPU.")
    deterministic: bool = Field(
        default=False, description="The same seed gives the same samples in any crowd, on a GPU too; slow."
    )
    memory: float | None = Field(
        default=None, gt=0, description="GB that the streams may take; by default all there is."
    )
    slo: float = Field(
        default=10.0, gt=0, le=25, description="Seconds that a request may have to wait; else it is refused."
    )
    queue: int = Field(default=32, ge=0, description="Requests that may wait.")
    reader_seconds: float = Field(default=30.0, gt=0, description="How long a reader may read nothing.")
    encoders: int = Field(default=4, ge=1, le=256, description="Threads that encode, in each server process.")

    api_keys: list[str] = Field(default=[], description="Who may call; without any, everybody.")
    public: list[Public] = Field(default=[], description="What needs no key: voices, models, metrics, docs.")
    key_streams: int | None = Field(
        default=None, ge=1, le=1 << 20, description="Requests of one key at once; more are answered with 429."
    )
    cors_origins: list[str] = Field(default=[], description="Web pages that may call, as https://example.com, or *.")
    root_path: str = Field(default="", description="The path before ours, behind a proxy.")

    max_text: int = Field(default=50_000, ge=1, description="Characters of one request.")
    max_body: int = Field(default=16_000_000, ge=1000, description="Bytes of one request.")
    max_audio: int = Field(default=10_000_000, ge=1000, description="Bytes of one recording.")
    max_audio_seconds: float = Field(default=60.0, gt=0, description="Of one recording; what a voice needs is 1 to 30.")
    max_batch: int = Field(default=32, ge=1, description="Items of one batch.")
    body_seconds: float = Field(default=30.0, gt=0, description="In which a request must have come in whole.")
    keep_alive_seconds: float = Field(default=30.0, gt=0, description="That an idle connection stays open.")
    idle_seconds: float = Field(
        default=30.0, gt=0, description="Without a message or a sound, before a WebSocket is closed."
    )
    drain_seconds: float = Field(default=30.0, ge=0, description="For what is under way when the server stops.")

    ref_audio_domains: list[str] = Field(default=[], description="Hosts that recordings may be fetched from.")
    media_root: Path | None = Field(default=None, description="The folder that file:// recordings may lie in.")
    voices: Path | None = Field(default=None, description="The folder of the voice library; by default the user's own.")
    aliases: dict[str, str] = Field(default={}, description="Other names of voices, such as alloy=heart.")

    log_format: Literal["text", "json"] = Field(default="text", description="Of the lines on stderr.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="And above.")

    @field_validator("root_path")
    @classmethod
    def _begin_with_a_slash(cls, path: str) -> str:
        """And end without one, however it was written."""
        return f"/{inner}" if (inner := path.strip("/")) else ""

    def engine_config(self) -> EngineConfig:
        return EngineConfig(
            max_streams=self.max_streams or 0,
            context=self.context,
            cuda_graphs=self.graphs,
            deterministic=self.deterministic,
            max_queue=self.queue,
            max_queue_seconds=self.slo,
            reader_timeout=self.reader_seconds,
            memory_gb=self.memory,
        )

    def shown(self) -> str:
        """All of it, as the file that would give the same; keys are counted, never shown."""
        values = self.model_dump(mode="json")
        values["api_keys"] = [f"({len(self.api_keys)} that are not shown)"] if self.api_keys else []
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def read_settings(
    flags: Mapping[str, Any] | None = None, file: Path | None = None, environment: Mapping[str, str] = os.environ
) -> Settings:
    """What holds: flags before the environment before the file before the defaults. A flag of None is not given.

    Raises InvalidRequest with the key, its value, what is allowed and where it stood.
    """
    if file is None and PREFIX + "CONFIG" in environment:
        file = Path(environment[PREFIX + "CONFIG"])
    sources = {
        f"{file}": {} if file is None else _read(file),
        "the environment": _from_environment(environment),
        "the flags": {key: value for key, value in (flags or {}).items() if value is not None},
    }
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, given in sources.items():
        for key, value in given.items():
            if key not in Settings.model_fields:
                raise InvalidRequest("settings", key, [*Settings.model_fields], f"Source: {origin}.")
            values[key], origins[key] = value, origin
    try:
        return Settings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        shown = NOT_SHOWN if key == "api_keys" else values[key]
        requirement = first["msg"].replace("Input should", "must")
        raise InvalidRequest(key, shown, requirement, f"Source: {origins[key]}.") from None


def _read(file: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidRequest("config", str(file), f"must be a readable YAML file: {error}") from None
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise InvalidRequest("config", str(file), "must be a mapping with lines such as `port: 8000`")
    return found


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """POLYVOX_PORT=8000 is port; a list is divided by commas, aliases are alloy=heart,echo=michael."""
    values: dict[str, Any] = {}
    for name, value in environment.items():
        if not name.startswith(PREFIX) or name in OTHERS:
            continue
        key = name.removeprefix(PREFIX).lower()
        field = Settings.model_fields.get(key)
        kind = get_origin(field.annotation) if field else None
        parts = [part.strip() for part in value.split(",") if part.strip()]
        if kind is list:
            values[key] = parts
        elif kind is dict:
            if not all("=" in part for part in parts):
                raise InvalidRequest(name, value, "must be name=name pairs separated by commas")
            values[key] = dict(part.split("=", 1) for part in parts)
        else:
            values[key] = value
    return values
