# SPDX-License-Identifier: Apache-2.0
"""The settings of the engine: model, devices, streams, memory, restarts."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from polyvox.engine.config import EngineConfig
from polyvox.engine.lifecycle import RestartPolicy
from polyvox.server.setting_sections.section import SettingsSection


class EngineSettings(SettingsSection):
    section: ClassVar[str] = "Engine"

    model: str | None = Field(
        default=None, description="Checkpoint folder or Hugging Face id; by default the embedded voice."
    )
    device: str = Field(default="auto", description="auto, cpu, cuda or cuda:N.")
    dtype: str = Field(default="auto", description="auto, bfloat16, float32 or float64.")
    replicas: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = Field(
        default=1, description="Number of engine processes, one per GPU: a number, or auto for all GPUs."
    )
    vocoder_device: str = Field(
        default="auto", description="Device of the vocoder: auto (the model's device), cpu, cuda or cuda:N."
    )
    kv_dtype: Literal["auto", "model", "int8", "fp8"] = Field(
        default="auto",
        description="Type of the KV cache: auto (int8 beside bfloat16 on a GPU, else model), model (the model's), int8 "
        "or fp8, which need half the memory of bfloat16. int8 is more exact; on a GPU, fp8 requires compute capability "
        "8.9.",
    )
    weight_dtype: Literal["auto", "int8", "fp8"] = Field(
        default="auto",
        description="Type of the matrices of talker and code predictor: auto (that of the model), int8 or fp8, with a "
        "scale for each output channel. int8 is more exact; on a GPU, fp8 requires compute capability 8.9.",
    )
    max_streams: int | None = Field(
        default=None,
        ge=1,
        description="Maximum concurrent streams; by default 8 on a CPU, on a GPU as many as fit, at most 2048.",
    )
    max_queue: int | None = Field(
        default=None,
        ge=0,
        description="Maximum number of queued requests; by default as many as streams, at least 32.",
    )
    max_queue_seconds: float = Field(
        default=10.0,
        gt=0,
        le=25,
        description="Longest expected queue wait in seconds; requests beyond it are rejected.",
    )
    context: int | None = Field(
        default=None,
        ge=256,
        description="Average KV positions per stream: prompt rows and frames (12.5 per second). "
        "By default as many as fit, from 256 to 1024; for Qwen3-Omni from 1152 to 4607.",
    )
    memory_gb: float | None = Field(
        default=None,
        gt=0,
        description="Memory of a device that the engine may use in GB, weights included; by default all that is free.",
    )
    cuda_graphs: bool | None = Field(default=None, description="Capture and replay CUDA graphs; by default on a GPU.")
    deterministic: bool = Field(
        default=False, description="Bit-identical samples for a seed in any batch, on a GPU too; slower."
    )
    min_streams_to_pipeline: int | None = Field(
        default=None, ge=0, description="Streams from which steps overlap; 0 disables it; by default chosen by device."
    )
    buffer_seconds: float = Field(
        default=90.0, ge=2, description="Audio of a sentence that the engine buffers for a slow client, in seconds."
    )
    reader_timeout: float = Field(
        default=30.0,
        gt=0,
        description="Seconds that a client may be behind the playing time of its audio before its connection is reset.",
    )
    text_timeout: float = Field(default=30.0, gt=0, description="Seconds that a live stream waits for more text.")
    restart_delay: float = Field(
        default=0.5,
        gt=0,
        description="Seconds until a failed engine is started again; doubled by each further failure.",
    )
    max_restart_delay: float = Field(
        default=30.0, gt=0, description="Maximum seconds between two starts of the engine."
    )
    engine_down_timeout: float = Field(
        default=300.0, gt=0, description="Seconds after which /livez fails if the engine cannot be restarted."
    )
    cache_dir: Path | None = Field(
        default=None, description="Folder for compiled kernels; by default polyvox in the user's cache folder."
    )
    trace: str | None = Field(default=None, description="Path of a Perfetto trace, written at shutdown.")
    encoder_threads: int = Field(default=4, ge=1, le=256, description="Audio encoder threads per server process.")

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

    def restart_policy(self) -> RestartPolicy:
        return RestartPolicy(self.restart_delay, self.max_restart_delay)
