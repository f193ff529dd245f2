# SPDX-License-Identifier: Apache-2.0
"""A training step as one CUDA graph, and parts of it on several streams: launches of small kernels are expensive."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

import torch

WARM_UP = 3
T = TypeVar("T")


class CapturedStep:
    """A function without arguments that is captured as a CUDA graph and replayed on a GPU.

    Shapes must be constant, random numbers must come from the device's default generator, and inputs that change
    between calls must be tensors with a fixed address.
    """

    def __init__(self, step: Callable[[], None], device: torch.device) -> None:
        self._step = step
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type != "cuda":
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            step()

    def __call__(self) -> None:
        if self._graph is None:
            self._step()
        else:
            self._graph.replay()


def half_precision(device: torch.device) -> torch.autocast:
    """bfloat16 autocast on a GPU, without its weight cache, which a CUDA graph must not capture."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False)


def side_by_side(parts: Sequence[Callable[[], T]], device: torch.device) -> list[T]:
    """The results of independent parts; on a GPU each has a stream of its own, so that small kernels run at once.

    The backward pass of a part has its stream, too. A result may be read on the current stream and by the same part of
    a later call, but by no other part: a part's stream waits for the current one before it uses freed memory again.
    """
    if device.type != "cuda":
        return [part() for part in parts]
    main, found = torch.cuda.current_stream(device), []
    streams = _streams(len(parts), device)
    for part, stream in zip(parts, streams, strict=True):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            found.append(part())
    for stream in streams:
        main.wait_stream(stream)
    return found


@cache
def _streams(count: int, device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(count)]
