# SPDX-License-Identifier: Apache-2.0
"""The deployment on Ray Serve: one replica is the server's application with an engine process of its own."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, BackpressureConfig, RequestRouterConfig
from ray.serve.schema import LoggingConfig

from polyvox.engine.interface import AsyncEngine, InProcessEngine
from polyvox.errors import EngineDown
from polyvox.ipc.client import AsyncRemoteEngine
from polyvox.ipc.process import EngineProcessConfig
from polyvox.ipc.supervisor import EngineProcess
from polyvox.ray.autoscaling import CAPACITY, DEMAND
from polyvox.ray.connections import Connections, ConnectionsMiddleware
from polyvox.ray.key_actor import ClusterEngine, ClusterKeyCounts
from polyvox.ray.metrics import MetricsExporter
from polyvox.server.app import create_app
from polyvox.server.app_state import AppState
from polyvox.server.engine_builder import build_engine
from polyvox.server.logs import set_up_logs
from polyvox.server.malloc import limit_malloc
from polyvox.server.settings import Settings

log = logging.getLogger(__name__)

NAME = "polyvox"
REPORT_INTERVAL = 1.0  # seconds between two reports of a replica to the routers
READY_TIMEOUT = 120.0  # seconds for the trial utterance of a new replica
DRAIN_AFTER = 10.0  # seconds without a call of the controller, which calls a replica in service every REPORT_INTERVAL
NOT_SERVING_SECONDS = 60.0  # the reported wait of an engine that restarts or is stuck: other replicas come first
METRICS_INTERVAL = 5.0  # seconds
POLL_INTERVAL = 0.05  # seconds
# The engine's admission control rejects requests at its real-time capacity; these limits only bound the memory.
MAX_ONGOING_REQUESTS = 10_000  # of a replica, with idle WebSockets
MAX_QUEUED_REQUESTS = 200  # of a proxy while no replica is available


class SpeechReplica:
    """One replica. Ray Serve calls the methods; the application is that of `polyvox serve`."""

    async def __init__(self, settings: dict[str, Any], build: Callable[[Settings], InProcessEngine]) -> None:  # type: ignore[misc]
        self._settings = Settings(**settings)
        set_up_logs(self._settings)
        limit_malloc()
        self._replica = serve.get_replica_context().replica_id.unique_id
        self._connections = Connections()
        self._last_called = time.monotonic()
        self._last_report = (time.monotonic(), 0)  # time, number of ended requests
        self._app: FastAPI | None = None
        self._set_up_error: Exception | None = None
        self._was_ready = False
        config = EngineProcessConfig(restarts=self._settings.restart_policy())
        self._engine_process = await asyncio.to_thread(EngineProcess, partial(build, self._settings), config)
        log.info("replica started", extra={"replica": self._replica, "engine_pid": self._engine_process.pid})

    def __serve_build_asgi_app__(self) -> FastAPI:
        self._app = create_app(self._connect, self._settings, on_set_up=self._on_set_up)
        self._app.add_middleware(ConnectionsMiddleware, connections=self._connections)
        return self._app

    def _on_set_up(self, error: Exception | None) -> None:
        self._set_up_error = error

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[AsyncEngine]:
        """The engine, and the tasks of the replica while the application runs."""
        endpoint, limits = self._engine_process.endpoint, self._settings
        work: list[Coroutine[Any, Any, None]] = [self._export_metrics(), self._watch_controller()]
        self._engine = AsyncRemoteEngine(endpoint)
        if limits.max_streams_per_key is not None or limits.max_streams_per_address is not None:
            counts = await asyncio.to_thread(ClusterKeyCounts, self._replica)
            self._engine = ClusterEngine(endpoint, counts)
            work.append(counts.renew_forever())
        tasks = [asyncio.create_task(each) for each in work]
        try:
            yield self._engine
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._engine.close()
            await asyncio.to_thread(self._engine_process.close)

    async def check_health(self) -> None:
        """Raises an error if Ray Serve shall replace the replica. The first call waits until the engine is ready."""
        self._called()
        state = await self._state()
        if not self._was_ready:
            async with asyncio.timeout(READY_TIMEOUT):
                while not state.health.ready:
                    await asyncio.sleep(POLL_INTERVAL)
            self._was_ready = True
        down = self._engine_process.status.down_seconds(time.monotonic())
        if down > self._settings.engine_down_timeout:
            raise EngineDown(f"The engine has been down for {down:.0f} s.", 0)

    async def record_routing_stats(self) -> dict[str, float]:
        """The report to the routers, see CapacityRouter."""
        self._called()
        now, num_ended, load = time.monotonic(), self._connections.num_ended, self._engine.load()
        seconds = max(now - self._last_report[0], REPORT_INTERVAL / 10)
        turnover = (num_ended - self._last_report[1]) * REPORT_INTERVAL / seconds
        self._last_report = now, num_ended
        serves = self._engine.status().running and not load.is_stuck(now)
        return {
            "capacity": load.capacity,
            "free": load.free if serves else 0,
            "wait": load.wait if serves else NOT_SERVING_SECONDS,
            "turnover": turnover if serves else 0.0,
            "num_requests": self._connections.num_open,
        }

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """See autoscaling.py."""
        load = self._engine.load()
        return {DEMAND: load.num_streams, CAPACITY: load.capacity}

    def _called(self) -> None:
        """Notes a call of the controller."""
        self._last_called = time.monotonic()
        self._connections.draining.clear()

    async def _watch_controller(self) -> None:
        """Sets `draining` when the controller has stopped to call: it removes this replica, or is down itself.

        Ray Serve does not notify a replica that it is removed, before all its requests have ended.
        """
        while True:
            await asyncio.sleep(REPORT_INTERVAL)
            is_called = not self._was_ready or time.monotonic() - self._last_called <= DRAIN_AFTER
            if not is_called and not self._connections.draining.is_set():
                log.info("replica draining", extra={"replica": self._replica, "requests": self._connections.num_open})
                self._connections.draining.set()

    async def _export_metrics(self) -> None:
        exporter = MetricsExporter(self._replica)
        state = await self._state()
        while True:
            await asyncio.sleep(METRICS_INTERVAL)
            try:
                engines = [engine.metrics() for engine in state.health.engines]
                exporter.export(state.metrics.render(engines, state.health.ready))
            except Exception:
                log.exception("metrics not exported")

    async def _state(self) -> AppState:
        """The state of the application. Raises the error if it cannot be set up."""
        assert self._app is not None
        async with asyncio.timeout(READY_TIMEOUT):
            while (state := self._app.state.startup.state) is None:
                if self._set_up_error is not None:
                    raise self._set_up_error
                await asyncio.sleep(POLL_INTERVAL)
        assert isinstance(state, AppState)
        return state


def create_deployment(settings: Settings) -> serve.Deployment:
    """The deployment. A configuration file of Ray Serve, or `options`, overrides what is set here."""
    num_gpus = _num_gpus(settings)
    if "replicas" in settings.model_fields_set and settings.replicas != "auto":
        scaling: dict[str, Any] = {"num_replicas": settings.replicas}
    else:
        max_replicas = max(1, int(ray.cluster_resources().get("GPU", 0))) if num_gpus else 1
        scaling = {"autoscaling_config": capacity_autoscaling(1, max_replicas)}
    deployment = serve.deployment(
        name=NAME,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        max_queued_requests=MAX_QUEUED_REQUESTS,
        backpressure_config=BackpressureConfig(status_code=503, retry_after_s=1),
        **scaling,
        request_router_config=RequestRouterConfig(
            request_router_class="polyvox.ray.router:CapacityRouter",
            request_routing_stats_period_s=REPORT_INTERVAL,
            request_routing_stats_timeout_s=5,
        ),
        ray_actor_options={"num_gpus": num_gpus, "num_cpus": 1},
        health_check_period_s=2,
        health_check_timeout_s=10,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=600,
        logging_config=LoggingConfig(enable_access_log=False),  # the application writes a line for each request
    )
    return deployment(serve.ingress()(SpeechReplica))


def capacity_autoscaling(
    min_replicas: int, max_replicas: int, upscale_seconds: float = 5.0, downscale_seconds: float = 120.0
) -> AutoscalingConfig:
    """Autoscaling by real-time capacity, see autoscaling.py."""
    return AutoscalingConfig(
        min_replicas=min_replicas,
        max_replicas=max_replicas,
        policy=AutoscalingPolicy(policy_function="polyvox.ray.autoscaling:capacity_policy"),
        upscale_delay_s=upscale_seconds,
        downscale_delay_s=downscale_seconds,
        look_back_period_s=15,
    )


def bind(
    deployment: serve.Deployment, settings: Settings, build: Callable[[Settings], InProcessEngine] = build_engine
) -> serve.Application:
    """The application with this deployment. build: creates the engine, in its process."""
    return deployment.bind(settings.model_copy(update={"replicas": 1}).model_dump(mode="json"), build)


def _num_gpus(settings: Settings) -> int:
    """GPUs of a replica; with `device: auto` one if the cluster has any."""
    if settings.device == "auto":
        return int(ray.cluster_resources().get("GPU", 0) > 0)
    return int(settings.device != "cpu")
