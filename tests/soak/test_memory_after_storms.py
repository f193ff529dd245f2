# SPDX-License-Identifier: Apache-2.0
"""Fifty thousand clients of all transports disconnect at random moments: the server's memory stays flat."""

import os
import sys
from functools import partial

from polyvox.server.settings import Settings
from server.abort_storm import measure_storm
from server.fakes import PausableEngine
from server.load_storms import seconds_until
from server.multi_worker import running_workers

NUM_CLIENTS = int(os.environ.get("POLYVOX_SOAK_ABORTS", "50000"))
NUM_MEASUREMENTS = 20
MAX_GROWTH = 50 << 20  # bytes, from the first measurement: before it codecs are loaded and caches filled
CONCURRENCY = 48
PAUSE_AFTER = 24  # chunks that are made of every stream


def test_fifty_thousand_aborted_requests_leave_the_memory_flat() -> None:
    def report(num_clients: int, num_bytes: int) -> None:
        sys.stdout.write(f"\n{num_clients:,} aborts: {num_bytes / 2**20:.0f} MiB")
        sys.stdout.flush()

    with running_workers(partial(PausableEngine, max_chunks=PAUSE_AFTER), Settings(workers=1)) as server:
        (worker,) = server.workers()
        sizes = measure_storm(server.port, worker, NUM_CLIENTS, NUM_CLIENTS // NUM_MEASUREMENTS, CONCURRENCY, report)
        seconds_until(lambda: server.num_streams() == 0)
        first, *later = (num_bytes for _, num_bytes in sizes)
        assert max(later) - first < MAX_GROWTH
