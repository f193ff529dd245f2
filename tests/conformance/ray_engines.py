# SPDX-License-Identifier: Apache-2.0
"""Engines of the replicas under test; the engine's process imports this module."""

from polyvox.engine.interface import InProcessEngine
from polyvox.server.settings import Settings
from server.paced_engine import PacedEngine

NUM_SLOTS, MAX_QUEUE = 16, 8


def build_paced_engine(settings: Settings) -> InProcessEngine:
    """An engine that only sleeps, for tests in which the load is the point: seven streams run in real time."""
    return PacedEngine(NUM_SLOTS, MAX_QUEUE, settings.max_queue_seconds)
