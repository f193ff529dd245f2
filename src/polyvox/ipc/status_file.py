# SPDX-License-Identifier: Apache-2.0
"""The status and the load of an engine's process for all server processes, in the folder of its endpoint."""

from dataclasses import replace
from pathlib import Path

from polyvox.engine.engine_load import EngineLoad
from polyvox.engine.engine_status import EngineState, EngineStatus
from polyvox.ipc.shared_record import SharedRecord

MAX_REASON_CHARS = 800  # at most 6 bytes each in JSON, which must fit into the record


class StatusFile(SharedRecord[EngineStatus]):
    """Written by the supervisor of the process."""

    def __init__(self, folder: Path, create: bool = False) -> None:
        """create: for the writer, whose first status is that of an engine that starts."""
        super().__init__(folder / "status", EngineStatus(EngineState.STARTING), create)

    def write(self, status: EngineStatus) -> None:
        reason = status.reason[:MAX_REASON_CHARS].encode(errors="replace").decode()  # it may name a path of any bytes
        super().write(replace(status, reason=reason))


class LoadFile(SharedRecord[EngineLoad]):
    """Written by the process itself. The supervisor creates it, because it outlives the process."""

    def __init__(self, folder: Path, create: bool = False) -> None:
        super().__init__(folder / "load", EngineLoad(taken_at=0.0, capacity=1, free=0), create)
