# SPDX-License-Identifier: Apache-2.0
"""Builds the engine of a server, without the web framework; torch is imported only when the model is loaded."""

import os
from typing import TYPE_CHECKING

from polyvox import progress
from polyvox.caches import CACHE_DIR
from polyvox.engine.interface import InProcessEngine
from polyvox.server.logs import set_up_logs
from polyvox.server.replica_devices import VISIBLE_DEVICES
from polyvox.server.settings import Settings

if TYPE_CHECKING:
    from polyvox.tts import TTS


def set_up_engine_process(settings: Settings, replica: int | None = None, gpu: str | None = None) -> None:
    """Sets up the process that runs the engine, before it imports torch. replica, gpu: see build_engine."""
    set_up_logs(settings, {} if replica is None else {"replica": replica})
    if gpu is not None:
        os.environ[VISIBLE_DEVICES] = gpu  # torch then has one device, and no context on another GPU
    if settings.cache_dir is not None:
        os.environ[CACHE_DIR] = str(settings.cache_dir)
    progress.report("import", 0, 1)


def load_model(settings: Settings, replica: int | None = None, gpu: str | None = None) -> "TTS":
    """Loads the model. Only the process that runs the engine imports torch."""
    set_up_engine_process(settings, replica, gpu)
    from polyvox.tts import load

    config = settings.engine_config()
    return load(
        settings.model,
        settings.device,
        settings.dtype,
        config=config,
        vocoder_device=settings.vocoder_device,
        kv_dtype=settings.kv_dtype,
        weight_dtype=settings.weight_dtype,
    )


def build_engine(settings: Settings, replica: int | None = None, gpu: str | None = None) -> InProcessEngine:
    """Loads the model and starts its engine, in the engine's process.

    replica: its index if there are several. gpu: the only one that it may use, as a value of CUDA_VISIBLE_DEVICES.
    """
    return load_model(settings, replica, gpu).detach_engine()


class LocalEngineBuilder:
    """Starts an engine in this process at each call. The model is loaded once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tts: TTS | None = None

    def __call__(self) -> InProcessEngine:
        if self._tts is None:
            self._tts = load_model(self._settings)
        return self._tts.engine
