# SPDX-License-Identifier: Apache-2.0
"""Times GPU work by replaying it as a CUDA graph."""

import statistics
from collections.abc import Callable

import torch

from polyvox.kernels.graph_memory import prefer_shared_memory

WARMUP_CALLS = 2  # kernels are compiled, libraries allocate their workspaces


def median_replay_ms(call: Callable[[], object], replays: int) -> float:
    """Median time in milliseconds of a call that is captured as a CUDA graph; the first replay is not counted."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARMUP_CALLS):
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, stream=stream):
        call()
    prefer_shared_memory(graph, stream.device, rows=0)  # as in the engine
    graph.instantiate()
    times = []
    for _ in range(replays + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[1:])
