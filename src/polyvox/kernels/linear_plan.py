# SPDX-License-Identifier: Apache-2.0
"""How small_batch_linear.py divides a product among programs, warps and iterations."""

from dataclasses import dataclass, replace

from torch import Tensor

from polyvox.kernels.gpu import Gpu
from polyvox.kernels.lazy_triton import largest_power_of_2, power_of_2
from polyvox.kernels.quantized_matrix import Matrix, QuantizedMatrix
from polyvox.kernels.tiles import SPARE

MAX_ROWS = 64  # of a tile
LANES = 256  # matrix columns per warp and load: 32 threads of 16 bytes, in a 16-bit type
QUANTIZED_LANES = 512  # in a type of one byte
MIN_TILE = 16  # minimum rows and depth of a tensor core operand
SPLIT_PROGRAMS = 128  # programs of a product that is divided by columns


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How a product is partitioned."""

    height: int  # matrix rows per program; a gated product takes half of them from each half
    depth: int  # columns per iteration
    warps: int
    stages: int = 1  # iterations whose loads are in flight; with tensor cores only
    splits: int = 1  # parts of the columns, each with its own programs; only for sums with a residual


# (minimum matrix rows, plan): the first match is used. Chosen for bfloat16 on sm_90, where the talker's gates need
# them; benchmarks/small_batch_linear.py --tune measures others.
VECTOR_PLANS = (
    (12288, LaunchPlan(8, 512, 2)),
    (6144, LaunchPlan(8, 1024, 4)),
    (4096, LaunchPlan(4, 1024, 4)),
    (0, LaunchPlan(8, 2048, 8)),
)
MATRIX_PLAN = LaunchPlan(64, 128, 4, 4)
SPLIT_PLAN = LaunchPlan(64, 64, 4, 6)
# (maximum rows of a tile, plan) for quantised weights: as many bytes in flight need more stages. Chosen by the
# instructions of the loop for sm_90: with two warps, 16 rows take 126 per 1,024 weights instead of 203.
QUANTIZED_PLANS = ((MIN_TILE, LaunchPlan(32, 128, 2, 8)), (MAX_ROWS, LaunchPlan(64, 128, 4, 8)))


def row_block(rows: int) -> int:
    """The rows of a tile: 1 without tensor cores, 16, 32 or 64 with them."""
    return 1 if rows == 1 else power_of_2(min(max(rows, MIN_TILE), MAX_ROWS))


def choose_plan(rows: int, weight: Matrix, add: bool = False, *, gpu: Gpu) -> LaunchPlan:
    """The launch plan, from rows, shape and type of the matrix; the GPU changes only the number of stages."""
    quantized = isinstance(weight, QuantizedMatrix)
    height, inputs = stored_values(weight).shape
    if rows == 1:
        plan = next(plan for min_height, plan in VECTOR_PLANS if height >= min_height)
        return replace(plan, depth=min(plan.depth, max(lanes(weight), power_of_2(inputs))))
    if quantized:
        plan = next(plan for max_rows, plan in QUANTIZED_PLANS if row_block(rows) <= max_rows)
    elif add:
        plan = SPLIT_PLAN
    else:
        plan = MATRIX_PLAN
    if add:
        programs = -(-height // plan.height) * -(-rows // row_block(rows))
        splits = largest_power_of_2(min(SPLIT_PROGRAMS // programs, -(-inputs // plan.depth) // 2))
        plan = replace(plan, splits=splits)
    stage = plan.depth * (plan.height * stored_values(weight).itemsize + row_block(rows) * 2)
    # Some architectures read converted weights from shared memory.
    spare = SPARE + (plan.depth * plan.height * 2 if quantized else 0)
    return replace(plan, stages=min(plan.stages, (gpu.shared - spare) // stage))


def stored_values(weight: Matrix) -> Tensor:
    """The elements [N, K] of a matrix, quantised or not."""
    return weight.values if isinstance(weight, QuantizedMatrix) else weight


def lanes(weight: Matrix) -> int:
    """Matrix columns per warp and load."""
    return QUANTIZED_LANES if isinstance(weight, QuantizedMatrix) else LANES
