# SPDX-License-Identifier: Apache-2.0
"""Shuffles, exchanges between the threads of a warp, in the loop of attention of large batches.

    cd tests && python -m kernels.loop_shuffles    # compiles the kernel for two architectures, and prints the numbers

A score is added up over the threads that read the position; nothing else is exchanged. A layout of the compiler that
distributes the positions of a lane, too, exchanges sums of values, which made the loop longer by a third.
"""

import json
import re
import sys
from collections.abc import Iterator
from math import log2

import torch

from kernels.order_of_sums import constants_of
from polyvox.kernels import large_batch_attention
from polyvox.kernels.gpu import GPUS
from polyvox.kernels.kv_quantize import KVScales
from polyvox.kernels.large_batch_attention import THREADS, WARPS
from polyvox.kernels.launches import META, Launch, absent_gpu, compile_launch, record_launches
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.quantized_rows import is_quantized
from polyvox.kernels.rotary import HeadRotation

ARCHITECTURES = (80, 90)
TYPES = (torch.int8, torch.bfloat16)
POSITIONS = 2  # of a lane, per pass of the loop
ROWS, KV_HEADS, DIM, PAGES, PAGE = 64, 8, 128, 9, 16


def shuffles_in_loops(code: str) -> int:
    """The shuffles of the loop in PTX that has the most."""
    starts = {match[1]: match.start() for match in re.finditer(r"^(\$\w+):", code, re.MULTILINE)}
    branches = [(starts[match[1]], match.start()) for match in re.finditer(r"\bbra(?:\.uni)?\s+(\$\w+);", code)]
    return max((code.count("shfl.sync", *loop) for loop in branches if loop[0] < loop[1]), default=0)


def assert_few_shuffles(launch: Launch, code: str) -> None:
    constants = constants_of(launch)
    group, lanes = constants["GROUP"], constants["LANES"]
    assert isinstance(group, int)
    assert isinstance(lanes, int)
    max_shuffles = POSITIONS * group * round(log2(max(1, WARPS * THREADS // lanes)))
    assert shuffles_in_loops(code) <= max_shuffles, (launch, shuffles_in_loops(code), max_shuffles)


def launches(architecture: int, kv_dtype: torch.dtype, group: int) -> list[Launch]:
    dtype = torch.bfloat16 if is_quantized(kv_dtype) else kv_dtype

    def call() -> None:
        pool = torch.empty(8, KV_HEADS, PAGE, DIM, dtype=kv_dtype, device=META).transpose(1, 2)
        scales = torch.empty(8, KV_HEADS, PAGE, device=META)
        slots = torch.empty(ROWS, dtype=torch.int64, device=META)
        tables = torch.empty(ROWS, PAGES, dtype=torch.int64, device=META)
        cache = PagedRows(pool, pool, tables, slots, slots, KVScales(scales, scales) if kv_dtype != dtype else None)
        gain, angles = (torch.empty(*size, dtype=dtype, device=META) for size in ((DIM,), (PAGE * PAGES, DIM)))
        qkv = torch.empty(ROWS, (group + 2) * KV_HEADS * DIM, dtype=dtype, device=META)
        large_batch_attention.launch(qkv, HeadRotation(angles, angles, (gain, gain), 1e-6), cache)

    with torch.inference_mode(), absent_gpu(architecture):
        return record_launches([call], GPUS[architecture])


def counts() -> Iterator[dict[str, object]]:
    for architecture in ARCHITECTURES:
        for kv_dtype in TYPES:
            for launch in launches(architecture, kv_dtype, group=2):
                code = compile_launch(launch).asm["ptx"]
                assert_few_shuffles(launch, code)
                yield {"gpu": architecture, "cache": str(kv_dtype), "shuffles": shuffles_in_loops(code)}


if __name__ == "__main__":
    for line in counts():
        sys.stdout.write(json.dumps(line) + "\n")
