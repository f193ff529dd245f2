# SPDX-License-Identifier: Apache-2.0
"""How the launches of a CUDA graph divide a multiprocessor's memory between shared memory and L1 cache.

A multiprocessor changes this division only while it is idle. By default a launch prefers what its own shared memory
needs, so two launches that prefer different divisions cannot run at the same time, and a launch that starts early
(launch_overlap.py) waits all the same. All launches of a graph therefore prefer the same division. On an H200 a frame
step of 8 streams takes 2.72 instead of 2.87 ms. Other architectures were not measured, and their launches have the
default.
"""

import ctypes
import logging

import torch

from polyvox.kernels import cuda_driver
from polyvox.kernels.gpu import gpu_of

log = logging.getLogger(__name__)

ARCHITECTURE = 90
# The talker multiplies one row by loads that need a part of the memory as L1 cache (small_batch_linear.py).
PERCENT, PERCENT_OF_ONE_ROW = 100, 70
KERNEL_NODE = 0  # CU_GRAPH_NODE_TYPE_KERNEL
PREFERRED_SHARED_MEMORY = 14  # CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, in percent of the largest
ATTRIBUTE_WORDS = 16  # of 32 bits, of a CUlaunchAttributeValue


def prefer_shared_memory(graph: torch.cuda.CUDAGraph, device: torch.device, rows: int) -> None:
    """Sets the division for all launches of a captured graph that is not instantiated yet (keep_graph=True).

    rows: of a frame step; 0 for other calls. Logs a warning if the driver refuses it for all launches.
    """
    if gpu_of(device).architecture != ARCHITECTURE:
        return
    handle, count = ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.c_size_t()
    cuda_driver.call("cuGraphGetNodes", handle, None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    cuda_driver.call("cuGraphGetNodes", handle, nodes, ctypes.byref(count))
    value = (ctypes.c_uint32 * ATTRIBUTE_WORDS)(PERCENT_OF_ONE_ROW if rows == 1 else PERCENT)
    errors = []
    for node in map(ctypes.c_void_p, nodes):
        kind = ctypes.c_int()
        cuda_driver.call("cuGraphNodeGetType", node, ctypes.byref(kind))
        if kind.value == KERNEL_NODE:
            # A launch that needs more refuses, and keeps what it needs.
            errors.append(cuda_driver.driver().cuGraphKernelNodeSetAttribute(node, PREFERRED_SHARED_MEMORY, value))
    if errors and all(errors):
        log.warning(
            "the driver sets no preferred shared memory; frame steps are slower launches=%d error=%d",
            len(errors), errors[0],
        )  # fmt: skip
