# SPDX-License-Identifier: Apache-2.0
"""The small-batch linear kernel on a GPU in bfloat16: checked against its reference, timed against separate kernels.

    python benchmarks/small_batch_linear.py [--rows 1,2,4,8,16,32,64] [--only talker] [--tune]

Shapes are those of the 1.7B model. Each line is a product with its norm, gate or sum. A cell is the time of the fused
kernel / of the separate ones (norm, F.linear, gate or sum) in µs: the median of CUDA graph replays over enough matrices
to exceed the GPU's cache. Rows above the kernel's MAX_ROWS show where it becomes slower. `error` is the largest
difference from the reference, relative to the reference's largest value. --tune tries other launch plans for each line
and number of rows (about two minutes per number of rows) and prints the best three as height × depth × warps.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox.bench.cuda_timing import median_replay_ms
from polyvox.kernels.norm import rms_norm
from polyvox.kernels.silu_mul import silu_mul
from polyvox.kernels.small_batch_linear import (
    LANES,
    VECTOR_ROWS,
    LaunchPlan,
    Norm,
    choose_plan,
    launch,
    project_reference,
)

REPLAYS = 30
MIN_BYTES = 256 << 20  # of matrices in one graph: several times the GPU's cache
DTYPE, DEVICE = torch.bfloat16, torch.device("cuda")
HEIGHTS, DEPTHS, WARPS = (4, 8, 16, 32), (512, 1024, 2048), (4, 8)


@dataclass(frozen=True, slots=True)
class Shape:
    height: int
    inputs: int
    norm: bool = False
    add: bool = False
    gated: bool = False


SHAPES = {
    "talker qkv": Shape(4096, 2048, norm=True),
    "talker o": Shape(2048, 2048, add=True),
    "talker gate and up": Shape(12288, 2048, norm=True, gated=True),
    "talker down": Shape(2048, 6144, add=True),
    "talker head": Shape(3072, 2048),
    "predictor qkv": Shape(4096, 1024, norm=True),
    "predictor o": Shape(1024, 2048, add=True),
    "predictor gate and up": Shape(6144, 1024, norm=True, gated=True),
    "predictor down": Shape(1024, 3072, add=True),
    "predictor head": Shape(2048, 1024, norm=True),
}


class Case:
    """One product, with enough matrices of its shape to exceed the cache."""

    def __init__(self, shape: Shape, rows: int) -> None:
        self.shape, self.rows = shape, rows
        count = max(1, MIN_BYTES // (shape.height * shape.inputs * DTYPE.itemsize))
        self.matrices = [normal(shape.height, shape.inputs) / shape.inputs**0.5 for _ in range(count)]
        self.x, gain = normal(rows, shape.inputs), 1 + normal(shape.inputs) / 4
        self.norm = Norm(gain, 1e-6) if shape.norm else None
        self.add = normal(rows, shape.height) if shape.add else None

    def fused(self, plan: LaunchPlan, matrix: Tensor) -> Tensor:
        return launch(self.x, matrix, self.norm, self.add, self.shape.gated, plan)

    def separate(self, matrix: Tensor) -> Tensor:
        x = self.x if self.norm is None else rms_norm(self.x, self.norm.gain, self.norm.eps)
        projected = F.linear(x, matrix)
        if self.shape.gated:
            return silu_mul(projected)
        return projected if self.add is None else self.add + projected

    def error(self, plan: LaunchPlan) -> float:
        matrix = self.matrices[0]
        reference = project_reference(self.x, matrix, self.norm, self.add, self.shape.gated).float()
        return float((self.fused(plan, matrix).float() - reference).abs().max() / reference.abs().max())

    def microseconds(self, call: Callable[[Tensor], Tensor]) -> float:
        """Time of one call, in a CUDA graph with one call per matrix."""

        def call_all() -> None:
            for matrix in self.matrices:
                call(matrix)

        return 1000 * median_replay_ms(call_all, REPLAYS) / len(self.matrices)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(DTYPE)


def compare(shape: Shape, counts: list[int]) -> str:
    cells, errors = [], []
    for rows in counts:
        case = Case(shape, rows)
        plan = choose_plan(rows, shape.height, shape.inputs)
        errors.append(case.error(plan))
        fused = case.microseconds(partial(case.fused, plan))
        cells.append(f"{fused:6.1f} /{case.microseconds(case.separate):5.1f}")
    return " ".join(cells) + f"  {max(errors):.0e}"


def plans(rows: int, shape: Shape) -> Iterator[LaunchPlan]:
    """Plans with at most 64 matrix elements per thread; tensor cores need 8 outputs and 16 columns per warp."""
    for height, depth, warps in product(HEIGHTS, DEPTHS, WARPS):
        fits = height * depth <= 64 * 32 * warps and depth <= max(LANES, shape.inputs)
        if fits and (rows <= VECTOR_ROWS or height >= 8 * (1 + shape.gated)) and height >= 2 * shape.gated:
            yield LaunchPlan(height, depth, warps)


def tune(shape: Shape, rows: int) -> str:
    case = Case(shape, rows)
    found = []
    for plan in plans(rows, shape):
        try:
            found.append((case.microseconds(partial(case.fused, plan)), plan))
        except Exception as error:
            sys.stderr.write(f"{plan}: {type(error).__name__}\n")
    best = sorted(found, key=lambda pair: pair[0])[:3]
    return "  ".join(f"{took:5.1f} {plan.height}×{plan.depth}×{plan.warps}" for took, plan in best)


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,2,4,8,16,32,64", help="comma-separated numbers of rows")
    parser.add_argument("--only", default="", help="comma-separated prefixes of the lines to run")
    parser.add_argument("--tune", action="store_true", help="search for the best launch plans")
    options = parser.parse_args()
    counts = [int(rows) for rows in options.rows.split(",")]
    failed = 0
    sys.stdout.write(f"{torch.cuda.get_device_name()}, {DTYPE}\n")
    if not options.tune:
        sys.stdout.write(f"{'':<22}" + " ".join(f"{f'M={rows}':>13}" for rows in counts) + "  error\n")
    for name, shape in SHAPES.items():
        if not name.startswith(tuple(options.only.split(","))):
            continue
        for chosen in [[rows] for rows in counts] if options.tune else [counts]:
            torch.manual_seed(0)
            try:
                line = f"M={chosen[0]:<3} {tune(shape, chosen[0])}" if options.tune else compare(shape, chosen)
            except Exception as error:
                failed += 1
                line = f"FAILED: {type(error).__name__}: {str(error).splitlines()[0][:120]}"
            sys.stdout.write(f"{name:<22}{line}\n")
            sys.stdout.flush()
            torch.cuda.empty_cache()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
