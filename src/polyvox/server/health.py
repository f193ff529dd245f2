# SPDX-License-Identifier: Apache-2.0
"""Liveness and readiness: a trial utterance at the start and after each restart of the engine, then its statistics."""

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from contextlib import suppress

import numpy as np
from fastapi.responses import JSONResponse, PlainTextResponse

from polyvox.engine.capacity import find_limit
from polyvox.engine.engine_status import EngineState, EngineStatus
from polyvox.engine.interface import AsyncEngine
from polyvox.engine.replica_set import merge_stats
from polyvox.errors import EngineDown, PolyvoxError
from polyvox.garbage_collection import FullCollections
from polyvox.models.info import ModelInfo
from polyvox.models.request import ClonedVoice
from polyvox.server.metrics import Metrics
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.service import SynthesisService

log = logging.getLogger(__name__)

CHECK_INTERVAL = 1.0  # seconds
STATS_TIMEOUT = 5.0  # seconds
TRIAL_TIMEOUT = 60.0  # seconds: an overloaded engine may be slow
LAG_INTERVAL = 0.05  # seconds between two measurements of the event loop's lag
LAG_WINDOW = 10.0  # seconds for which the largest lag is reported
TRIAL_TEXT, TRIAL_FRAMES = "Ready.", 4  # frames enough to run every part of the model


def live_response(status: EngineStatus, timeout: float, now: float) -> PlainTextResponse:
    """The response of /livez: 503 if the engine failed and could not be started again for `timeout` seconds."""
    down = status.down_seconds(now)
    if down <= timeout:
        return PlainTextResponse("alive\n")
    return PlainTextResponse(f"The engine has been down for {down:.0f} s: {status.reason}\n", status_code=503)


def starting_response(status: EngineStatus, now: float) -> JSONResponse:
    """The response of /readyz while the engine starts or restarts, and until the server is connected to it."""
    seconds = status.retry_after(now)
    body = {
        "status": EngineState.STARTING if status.running else status.state,
        "problem": status.reason or status.describe(),
        "stage": status.stage or None,
        "progress": round(status.progress, 3),
        "retry_after": round(seconds, 1),
    }
    return JSONResponse(body, status_code=503, headers={"retry-after": str(math.ceil(seconds))})


def capacity_fields(stats: Mapping[str, float]) -> dict[str, object]:
    """For /readyz: streams that run in real time, and what limits them."""
    return {"capacity": int(stats.get("capacity", 0)), "capacity_limit": find_limit(stats)}


class EngineHealth:
    """The health of one engine: its statistics, and the problem that keeps it from being ready."""

    def __init__(self, engine: AsyncEngine, synthesis: SynthesisService, info: ModelInfo) -> None:
        self.engine, self._synthesis, self._info = engine, synthesis, info
        self._log_fields = {} if engine.replica is None else {"replica": engine.replica}
        self.stats: dict[str, float] = {}  # from the last check
        self.problem: str | None = "The trial utterance has not finished."  # None when ready
        self._logged_problem: str | None = None

    @property
    def ready(self) -> bool:
        return self.problem is None and self.engine.status().running

    def metrics(self) -> dict[str, float]:
        """The statistics, with the restarts, while the engine runs."""
        status = self.engine.status()
        stats = self.stats if status.running else {}
        return {**stats, "restarts": float(status.num_restarts), "ready": float(self.ready)}

    def as_dict(self) -> dict[str, object]:
        """For /readyz, if there are several engines."""
        status = self.engine.status()
        state = "ready" if self.ready else "not ready" if status.running else status.state
        return {
            "replica": self.engine.replica,
            "status": state,
            "problem": None if self.ready else status.reason or self.problem,
            "streams": int(self.stats.get("streams", 0)) if status.running else 0,
            **capacity_fields(self.stats if status.running else {}),
            "restarts": status.num_restarts,
            "pid": status.pid or None,
        }

    async def check(self) -> None:
        """Queries the engine's statistics; after a failure, and at first, synthesises a trial utterance too."""
        try:
            try:
                async with asyncio.timeout(STATS_TIMEOUT):
                    self.stats = await self.engine.stats()
            except TimeoutError:
                raise PolyvoxError(f"The engine did not answer within {STATS_TIMEOUT:g} s.") from None
            if self.problem is not None:
                try:
                    async with asyncio.timeout(TRIAL_TIMEOUT):
                        await self._synthesise_trial()
                except TimeoutError:
                    raise PolyvoxError(f"The trial utterance took longer than {TRIAL_TIMEOUT:g} s.") from None
                self.problem = self._logged_problem = None
        except PolyvoxError as error:
            # The message of a restart contains its progress, which would be a line in every second.
            logged = error.code if isinstance(error, EngineDown) else str(error)
            if self._logged_problem != logged:
                log.warning("server not ready", extra={**self._log_fields, "error": str(error)})
            self.problem, self._logged_problem = str(error), logged

    async def _synthesise_trial(self) -> None:
        voice = ClonedVoice(np.zeros(self._info.hidden_size, np.float32)) if self._info.can_clone else None
        instructions = "A calm voice." if self._info.designs_voices else None
        options = SynthesisOptions(TRIAL_TEXT, voice, instructions=instructions, max_frames=TRIAL_FRAMES, format="pcm")
        start = time.monotonic()
        stream = await self._synthesis.submit_trial(options, self.engine)
        num_samples = 0
        async for chunk in stream:
            num_samples += len(chunk.audio)
        if stream.result is None or stream.result.finish_reason in ("cancelled", "error"):
            raise PolyvoxError("The trial utterance did not finish.")
        fields = {"seconds": round(time.monotonic() - start, 3), "samples": num_samples}
        log.info("server ready", extra={**self._log_fields, **fields})

    async def check_forever(self) -> None:
        while True:
            try:
                await self.check()
            except Exception:
                log.exception("health check failed", extra=self._log_fields)
                self.problem = "The health check failed."
            await asyncio.sleep(CHECK_INTERVAL)


class HealthMonitor:
    """Checks each engine and the event loop, and collects garbage, in background tasks.

    The server is ready while one engine is.
    """

    def __init__(self, synthesis: SynthesisService, info: ModelInfo, metrics: Metrics) -> None:
        self._synthesis, self._metrics = synthesis, metrics
        self.engines = [EngineHealth(engine, synthesis, info) for engine in synthesis.engine.replicas]
        self._tasks: list[asyncio.Task[None]] = []
        self._collections = FullCollections()

    @property
    def problem(self) -> str | None:
        """Why no engine is ready; None if one is."""
        problems = [engine.problem for engine in self.engines]
        return None if None in problems else problems[0]

    @property
    def ready(self) -> bool:
        return self.problem is None and not self._synthesis.draining

    @property
    def stats(self) -> dict[str, float]:
        """The last statistics of all engines that run."""
        return merge_stats([one.stats for one in self.engines if one.engine.status().running])

    def start(self) -> None:
        checks = [engine.check_forever() for engine in self.engines]
        self._collections.start()
        self._tasks = [asyncio.create_task(each) for each in (*checks, self._measure_lag(), self._collect_garbage())]

    async def stop(self) -> None:
        self._collections.stop()
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _collect_garbage(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            self._collections.collect_if_due(len(self._synthesis.active))

    async def _measure_lag(self) -> None:
        largest, since = 0.0, time.monotonic()
        while True:
            start = time.monotonic()
            await asyncio.sleep(LAG_INTERVAL)
            now = time.monotonic()
            lag = now - start - LAG_INTERVAL
            if lag >= largest or now - since > LAG_WINDOW:
                largest, since = max(lag, 0.0), now
                self._metrics.lag.set(largest)
            self._metrics.active.set(len(self._synthesis.active))
            self._metrics.spool_bytes.set(self._synthesis.spool.num_bytes)
