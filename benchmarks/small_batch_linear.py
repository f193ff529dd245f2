"""Products of few rows on a GPU in bfloat16: held against their twin, and timed against one launch for each part.

    python benchmarks/skinny.py [--rows 1,2,4,8,16,32,64] [--only talker] [--tune]

Shapes are those of the 1.7B model. Each line is a product with what stands around it; a cell is ours / by parts (norm
kernel, F.linear, gate or sum), in µs, medians of replays of a graph that goes through as many matrices as the model has
of the kind, so that none is found in the card's cache. Rows beyond MAX_ROWS are timed to see where ours loses.
`error` is the largest difference from the twin against the twin's largest number. --tune tries other plans for each
line and number of rows (some two minutes for a number of rows), and names the three best, as height × depth × warps.
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

from polyvox.bench.summary import percentile
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
MIN_BYTES = 256 << 20  # of matrices in one graph: several times the card's cache
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
    """One product with so many matrices of its shape."""

    def __init__(self, shape: Shape, rows: int) -> None:
        self.shape, self.rows = shape, rows
        count = max(1, MIN_BYTES // (shape.height * shape.inputs * DTYPE.itemsize))
        self.matrices = [normal(shape.height, shape.inputs) / shape.inputs**0.5 for _ in range(count)]
        self.x, gain = normal(rows, shape.inputs), 1 + normal(shape.inputs) / 4
        self.norm = Norm(gain, 1e-6) if shape.norm else None
        self.add = normal(rows, shape.height) if shape.add else None

    def ours(self, plan: LaunchPlan, matrix: Tensor) -> Tensor:
        return launch(self.x, matrix, self.norm, self.add, self.shape.gated, plan)

    def by_parts(self, matrix: Tensor) -> Tensor:
        x = self.x if self.norm is None else rms_norm(self.x, self.norm.gain, self.norm.eps)
        made = F.linear(x, matrix)
        if self.shape.gated:
            return silu_mul(made)
        return made if self.add is None else self.add + made

    def error(self, plan: LaunchPlan) -> float:
        matrix = self.matrices[0]
        theirs = project_reference(self.x, matrix, self.norm, self.add, self.shape.gated).float()
        return float((self.ours(plan, matrix).float() - theirs).abs().max() / theirs.abs().max())

    def microseconds(self, call: Callable[[Tensor], Tensor]) -> float:
        """Of one call, when a graph of one for each matrix is replayed."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call(self.matrices[0])
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for matrix in self.matrices:
                call(matrix)
        times = []
        for _ in range(REPLAYS):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1000 / len(self.matrices))
        return percentile(times, 50)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(DTYPE)


def compared(shape: Shape, counts: list[int]) -> str:
    cells, errors = [], []
    for rows in counts:
        case = Case(shape, rows)
        plan = choose_plan(rows, shape.height, shape.inputs)
        errors.append(case.error(plan))
        ours = case.microseconds(partial(case.ours, plan))
        cells.append(f"{ours:6.1f} /{case.microseconds(case.by_parts):5.1f}")
    return " ".join(cells) + f"  {max(errors):.0e}"


def plans(rows: int, shape: Shape) -> Iterator[LaunchPlan]:
    """A thread holds at most 64 numbers of the matrix; tensor cores want 8 outputs and 16 columns a warp."""
    for height, depth, warps in product(HEIGHTS, DEPTHS, WARPS):
        fits = height * depth <= 64 * 32 * warps and depth <= max(LANES, shape.inputs)
        if fits and (rows <= VECTOR_ROWS or height >= 8 * (1 + shape.gated)) and height >= 2 * shape.gated:
            yield LaunchPlan(height, depth, warps)


def tuned(shape: Shape, rows: int) -> str:
    case = Case(shape, rows)
    found = []
    for plan in plans(rows, shape):
        try:
            found.append((case.microseconds(partial(case.ours, plan)), plan))
        except Exception as error:
            sys.stderr.write(f"{plan}: {type(error).__name__}\n")
    best = sorted(found, key=lambda pair: pair[0])[:3]
    return "  ".join(f"{took:5.1f} {plan.height}×{plan.depth}×{plan.warps}" for took, plan in best)


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,2,4,8,16,32,64")
    parser.add_argument("--only", default="", help="lines that begin with one of these, with commas")
    parser.add_argument("--tune", action="store_true")
    asked = parser.parse_args()
    counts = [int(rows) for rows in asked.rows.split(",")]
    failed = 0
    sys.stdout.write(f"{torch.cuda.get_device_name()}, {DTYPE}\n")
    if not asked.tune:
        sys.stdout.write(f"{'':<22}" + " ".join(f"{f'M={rows}':>13}" for rows in counts) + "  error\n")
    for name, shape in SHAPES.items():
        if not name.startswith(tuple(asked.only.split(","))):
            continue
        for some in [[rows] for rows in counts] if asked.tune else [counts]:
            torch.manual_seed(0)
            try:
                said = f"M={some[0]:<3} {tuned(shape, some[0])}" if asked.tune else compared(shape, some)
            except Exception as error:
                failed += 1
                said = f"FAILED: {type(error).__name__}: {str(error).splitlines()[0][:120]}"
            sys.stdout.write(f"{name:<22}{said}\n")
            sys.stdout.flush()
            torch.cuda.empty_cache()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
