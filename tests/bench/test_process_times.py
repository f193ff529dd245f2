# SPDX-License-Identifier: Apache-2.0
"""CPU time, memory and connections of processes, as the load benchmarks report them."""

import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from benchmarks.process_times import (
    descendants,
    num_connections,
    process_seconds,
    resident_bytes,
    thread_seconds,
)

from ipc.engine_processes import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_cpu_time_is_counted_for_the_thread_that_used_it() -> None:
    stop, before = threading.Event(), thread_seconds()

    def work() -> None:
        while not stop.is_set():
            pass

    busy = threading.Thread(target=work, name="polyvox-engine")
    busy.start()
    eventually(lambda: thread_seconds()["engine"] - before["engine"] > 0.05)
    assert process_seconds(os.getpid()) >= thread_seconds()["engine"]
    stop.set()
    busy.join()


def test_descendants_have_memory_and_are_found_while_they_run() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as parent:
        eventually(lambda: len(descendants(parent.pid)) == 1)
        assert parent.pid in descendants(os.getpid())
        assert resident_bytes(parent.pid) > 0
        parent.communicate(b"\n")
    assert parent.pid not in descendants(os.getpid())


def test_connections_to_a_port_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        clients = [socket.create_connection(listener.getsockname()) for _ in range(3)]
        accepted = [listener.accept()[0] for _ in clients]
        assert num_connections(os.getpid(), port) == 3
        for each in (*clients, *accepted):
            each.close()
        deadline = time.monotonic() + 10
        while num_connections(os.getpid(), port) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert num_connections(os.getpid(), port) == 0
