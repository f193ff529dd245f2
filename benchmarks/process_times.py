# SPDX-License-Identifier: Apache-2.0
"""CPU time and memory of processes and of their threads, read from /proc (Linux), and memory of the GPU."""

import os
import subprocess
import threading
from pathlib import Path

# Names of threads in the engine's process, by the prefix of the thread's name.
GROUPS = {"MainThread": "io", "polyvox-engine": "engine", "polyvox-prepare": "prepare"}
NVIDIA_SMI_TIMEOUT = 10.0  # seconds


def thread_seconds() -> dict[str, float]:
    """CPU seconds of this process: of the engine's thread, the I/O loop, the preparation threads and all others."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = dict.fromkeys([*GROUPS.values(), "other"], 0.0)
    for task in Path("/proc/self/task").iterdir():
        name = names.get(int(task.name), "")
        group = next((group for prefix, group in GROUPS.items() if name.startswith(prefix)), "other")
        found[group] += _scheduled_seconds(task)
    return found


def process_seconds(pid: int) -> float:
    """CPU seconds of the live threads of a process."""
    return sum(_scheduled_seconds(task) for task in Path(f"/proc/{pid}/task").iterdir())


def descendants(pid: int) -> list[int]:
    """The processes below this one."""
    parents: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                parents[int(path.name)] = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:  # it has ended
                continue
    found, added = [pid], [pid]
    while added:
        added = [child for child, parent in parents.items() if parent in added]
        found += added
    return found[1:]


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def gpu_memory() -> float | None:
    """GB in use on the GPU by all processes; None without a GPU."""
    try:
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        output = subprocess.run(command, capture_output=True, check=True, text=True, timeout=NVIDIA_SMI_TIMEOUT).stdout
        return float(output.split()[0]) * 1.048576e-3  # MiB to GB
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def num_connections(pid: int, port: int) -> int:
    """Established TCP connections of a process to this local port."""
    established = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "01" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                established.add(fields[9])
    count = 0
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(file)
        except OSError:  # it was closed
            continue
        count += target.startswith("socket:[") and target[8:-1] in established
    return count


def _scheduled_seconds(task: Path) -> float:
    try:
        return int((task / "schedstat").read_text().split()[0]) / 1e9
    except OSError:  # the thread has ended
        return 0.0
