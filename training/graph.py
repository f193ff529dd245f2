"""A training step as one CUDA graph: small models are thousands of launches, which cost more than the work."""

from collections.abc import Callable

import torch

WARM_UP = 3


class Captured:
    """Calls a function without arguments; on a GPU its work is recorded once and then replayed.

    Shapes must not change, randomness must come from the device's default generator, and all that changes between
    calls must be tensors that stay where they are.
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
    """bfloat16 for matrix products on a GPU; without autocast's cache, which a graph must not keep."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False)
