# SPDX-License-Identifier: Apache-2.0
"""The small-batch linear kernel on a GPU in bfloat16: checked against its reference, timed against separate kernels.

    python benchmarks/small_batch_linear.py [--rows 1,2,4,8,16,32,64] [--only talker] [--weight-dtype int8] [--tune]

Shapes are those of the 1.7B model. Each line is a product with the norm before it, or with the gate or the sum after
it. A cell is the time of the fused kernel / of the separate ones (F.linear, and norm, gate or sum with norm) in µs: the
median of CUDA graph replays over enough matrices to exceed the GPU's cache. `error` is the largest difference from the
reference, relative to the reference's largest value. With --weight-dtype the matrices are quantised, and the separate
kernels include the conversion of the matrix. --tune tries other launch plans for each line and number of rows, which
are compiled in parallel before, and prints the time of the current plan and the best three as height × depth × warps ×
stages × splits.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.cuda_timing import median_replay_ms

from polyvox.engine.memory import machine_memory
from polyvox.engine.parallel_compiler import max_compilers
from polyvox.kernels.compiler_pool import CompilerPool
from polyvox.kernels.fused_linear import project, project_add, project_add_reference, project_reference
from polyvox.kernels.gpu import gpu_of
from polyvox.kernels.launches import record_launches
from polyvox.kernels.linear_plan import LANES, QUANTIZED_LANES, LaunchPlan, choose_plan, row_block
from polyvox.kernels.norm import add_rms_norm, rms_norm
from polyvox.kernels.pre_norm import Norm, pre_norm
from polyvox.kernels.quantized_matrix import Matrix, multiply, quantize_matrix
from polyvox.kernels.silu_mul import silu_mul
from polyvox.kernels.small_batch_linear import launch_add_plan, launch_plan
from polyvox.tts import QUANTIZED_DTYPES

REPLAYS = 30
MIN_BYTES = 256 << 20  # of matrices in one graph: several times the GPU's cache
DTYPE, DEVICE = torch.bfloat16, torch.device("cuda", 0)
VECTOR_HEIGHTS, VECTOR_DEPTHS, VECTOR_WARPS = (4, 8, 16), (512, 1024, 2048), (2, 4, 8)
MATRIX_HEIGHTS, MATRIX_DEPTHS, STAGES, SPLITS = (32, 64, 128), (64, 128, 256), (4, 6, 8), (1, 2, 4, 8)
MATRIX_WARPS = (2, 4)
MAX_SHARED = 200 << 10  # bytes of all stages


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

    def __init__(self, shape: Shape, rows: int, weights: str, min_bytes: int = MIN_BYTES) -> None:
        self.shape, self.rows = shape, rows
        stored = QUANTIZED_DTYPES.get(weights, DTYPE)
        count = max(1, min_bytes // (shape.height * shape.inputs * stored.itemsize))
        self.matrices: list[Matrix] = []
        for _ in range(count):
            matrix = normal(shape.height, shape.inputs) / shape.inputs**0.5
            self.matrices.append(matrix if stored == DTYPE else quantize_matrix(matrix, stored))
        x = normal(rows, shape.inputs)
        self.x = pre_norm(x, self.norm(shape.inputs)) if shape.norm else x
        self.add = normal(rows, shape.height) if shape.add else None
        self.next_norm = self.norm(shape.height)

    @staticmethod
    def norm(size: int) -> Norm:
        return Norm(1 + normal(size) / 4, 1e-6)

    def chosen(self, matrix: Matrix) -> Tensor:
        """As the model calls it, with the kernel that is chosen for these rows."""
        if self.add is not None:
            return project_add(self.rows_in, matrix, self.add, self.next_norm).rows
        return project(self.x, matrix, self.shape.gated)

    def fused(self, plan: LaunchPlan, matrix: Matrix) -> Tensor:
        if self.add is not None:
            return launch_add_plan(self.rows_in, matrix, self.add, self.next_norm, plan).rows
        return launch_plan(self.x, matrix, self.shape.gated, plan)

    @property
    def rows_in(self) -> Tensor:
        return self.x if isinstance(self.x, Tensor) else self.x.rows

    def separate(self, matrix: Matrix) -> Tensor:
        x = self.rows_in if isinstance(self.x, Tensor) else rms_norm(self.x.rows, self.x.norm.gain, self.x.norm.eps)
        projected = multiply(x, matrix)
        if self.shape.gated:
            return silu_mul(projected)
        if self.add is None:
            return projected
        return add_rms_norm(projected, self.add, self.next_norm.gain, self.next_norm.eps)[0]

    def error(self) -> float:
        matrix = self.matrices[0]
        if self.add is not None:
            reference = project_add_reference(self.rows_in, matrix, self.add, self.next_norm).rows
        else:
            reference = project_reference(self.x, matrix, self.shape.gated)
        wide = reference.float()
        return float((self.chosen(matrix).float() - wide).abs().max() / wide.abs().max())

    def microseconds(self, call: Callable[[Matrix], Tensor]) -> float:
        """Time of one call, in a CUDA graph with one call per matrix."""

        def call_all() -> None:
            for matrix in self.matrices:
                call(matrix)

        return 1000 * median_replay_ms(call_all, REPLAYS) / len(self.matrices)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(DTYPE)


def compare(shape: Shape, counts: list[int], weights: str) -> str:
    cells, errors = [], []
    for rows in counts:
        case = Case(shape, rows, weights)
        errors.append(case.error())
        cells.append(f"{case.microseconds(case.chosen):6.1f} /{case.microseconds(case.separate):5.1f}")
    return " ".join(cells) + f"  {max(errors):.0e}"


def plans(rows: int, shape: Shape, quantized: bool) -> Iterator[LaunchPlan]:
    """Plans of 64 (quantised: 128) weights or fewer per thread, or with tensor cores those that fit shared memory."""
    lanes = QUANTIZED_LANES if quantized else LANES
    max_elements, bytes_each = (128, 1) if quantized else (64, DTYPE.itemsize)
    if rows == 1:
        for height, depth, warps in product(VECTOR_HEIGHTS, VECTOR_DEPTHS, VECTOR_WARPS):
            if height * depth <= max_elements * 32 * warps and depth <= max(lanes, shape.inputs):
                yield LaunchPlan(height, depth, warps)
        return
    splits = SPLITS if shape.add else (1,)
    for height, depth, warps, stages, parts in product(MATRIX_HEIGHTS, MATRIX_DEPTHS, MATRIX_WARPS, STAGES, splits):
        if stages * depth * (row_block(rows) * DTYPE.itemsize + height * bytes_each) <= MAX_SHARED:
            yield LaunchPlan(height, depth, warps, stages, parts)


def compile_plans(shapes: Iterable[Shape], counts: list[int], weights: str) -> None:
    """Compiles all plans of these shapes and numbers of rows in parallel, into Triton's cache."""

    def call(shape: Shape, rows: int, plan: LaunchPlan) -> None:
        case = Case(shape, rows, weights, min_bytes=0)
        case.fused(plan, case.matrices[0])

    calls = [
        partial(call, shape, rows, plan)
        for shape in shapes
        for rows in counts
        for plan in plans(rows, shape, weights in QUANTIZED_DTYPES)
    ]
    launches = record_launches(calls, gpu_of(DEVICE))
    pool = CompilerPool(max_compilers(machine_memory()))
    try:
        errors = pool.compile(launches, lambda _: None)
    finally:
        pool.close()
    sys.stdout.write(f"{len(calls)} plans, {len(launches)} launches compiled, {len(errors)} errors\n")


def tune(shape: Shape, rows: int, weights: str) -> str:
    case = Case(shape, rows, weights)
    current = choose_plan(rows, case.matrices[0], shape.add, gpu=gpu_of(DEVICE))
    found = {}
    for plan in dict.fromkeys((current, *plans(rows, shape, weights in QUANTIZED_DTYPES))):
        try:
            found[plan] = case.microseconds(partial(case.fused, plan))
        except Exception as error:
            sys.stderr.write(f"{plan}: {type(error).__name__}\n")
    best = sorted(found, key=lambda plan: found[plan])[:3]
    return f"{show(current, found[current])}  best: " + "  ".join(show(plan, found[plan]) for plan in best)


def show(plan: LaunchPlan, took: float) -> str:
    return f"{took:5.1f} {plan.height}×{plan.depth}×{plan.warps}×{plan.stages}×{plan.splits}"


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,2,4,8,16,32,64", help="comma-separated numbers of rows")
    parser.add_argument("--only", default="", help="comma-separated prefixes of the lines to run")
    parser.add_argument("--weight-dtype", default="auto", choices=["auto", *QUANTIZED_DTYPES])
    parser.add_argument("--tune", action="store_true", help="search for the best launch plans")
    options = parser.parse_args()
    counts = [int(rows) for rows in options.rows.split(",")]
    failed = 0
    sys.stdout.write(f"{torch.cuda.get_device_name()}, {DTYPE}, weights {options.weight_dtype}\n")
    if not options.tune:
        sys.stdout.write(f"{'':<22}" + " ".join(f"{f'M={rows}':>13}" for rows in counts) + "  error\n")
    chosen_shapes = {name: shape for name, shape in SHAPES.items() if name.startswith(tuple(options.only.split(",")))}
    if options.tune:
        compile_plans(chosen_shapes.values(), counts, options.weight_dtype)
    for name, shape in chosen_shapes.items():
        for chosen in [[rows] for rows in counts] if options.tune else [counts]:
            torch.manual_seed(0)
            try:
                if options.tune:
                    line = f"M={chosen[0]:<3} {tune(shape, chosen[0], options.weight_dtype)}"
                else:
                    line = compare(shape, chosen, options.weight_dtype)
            except Exception as error:
                failed += 1
                line = f"FAILED: {' '.join(repr(error).split())[:120]}"
            sys.stdout.write(f"{name:<22}{line}\n")
            sys.stdout.flush()
            torch.cuda.empty_cache()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
