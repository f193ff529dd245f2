# SPDX-License-Identifier: Apache-2.0
"""Tile sizes of matrix products, chosen from the shape and a table, never by autotuning.

The cost model is waves of tiles over the multiprocessors, each as long as the tile's area divided by how well such a
tile uses the tensor cores. The efficiencies are measured on sm_90 (`benchmarks/codec_kernels.py --parts tune`) and
assumed for other architectures, whose tiles have the stages that fit their shared memory.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch

from polyvox.kernels.gpu import GPUS, Gpu

MIN_TILE = 16  # minimum rows, columns and depth of a tensor core operand
SPARE = 2 << 10  # bytes of shared memory reserved beside the operands


@dataclass(frozen=True, slots=True)
class Tile:
    rows: int
    block: int  # columns, a power of 2
    extra: int  # half as many more columns, or 0: 96 and 192 are not powers of 2
    depth: int
    warps: int
    stages: int
    efficiency: float  # of peak tensor core throughput with one tile per multiprocessor

    @property
    def columns(self) -> int:
        return self.block + self.extra

    @property
    def shared(self) -> int:
        """Shared memory of all stages' operands in bytes, for a 16-bit type."""
        return self.stages * self.depth * (self.rows + self.columns) * 2


TILES = (
    Tile(128, 128, 64, 64, 8, 3, 1.00),
    Tile(128, 128, 0, 64, 8, 3, 0.90),
    Tile(128, 64, 32, 32, 4, 4, 0.80),
    Tile(128, 64, 0, 64, 4, 4, 0.65),
    Tile(64, 64, 0, 64, 4, 4, 0.45),
    Tile(64, 32, 0, 128, 4, 4, 0.31),
    Tile(32, 32, 0, 128, 4, 4, 0.15),
    Tile(16, 64, 0, 128, 4, 4, 0.12),
    Tile(16, 32, 0, 128, 4, 4, 0.08),
    Tile(128, 16, 0, 32, 4, 4, 0.25),
)


def choose_tile(rows: int, columns: int, inputs: int, dtype: torch.dtype, gpu: Gpu = GPUS[90]) -> Tile:
    """The tile of a product of rows × columns that reduces over `inputs` channels per tap."""
    if dtype == torch.float32:
        # float32 gains nothing from large tiles: use one that fits every GPU.
        best = Tile(64, 32, 0, 32, 4, 2, 1.0)
    else:
        best = min(
            fitting_tiles(gpu),
            key=lambda tile: _num_waves(tile, rows, columns, gpu) * tile.rows * tile.columns / tile.efficiency,
        )
    return replace(best, depth=_depth(best.depth, inputs))


@cache
def fitting_tiles(gpu: Gpu) -> tuple[Tile, ...]:
    """The tiles with as many stages as fit a GPU's shared memory, at least two."""
    tiles = []
    for tile in TILES:
        stages = min(tile.stages, (gpu.shared - SPARE) // (tile.shared // tile.stages))
        if stages >= 2:
            tiles.append(replace(tile, stages=stages))
    return tuple(tiles)


def _num_waves(tile: Tile, rows: int, columns: int, gpu: Gpu) -> int:
    tiles = -(-rows // tile.rows) * -(-columns // tile.columns)
    return -(-tiles // gpu.multiprocessors)


def _depth(max_depth: int, inputs: int) -> int:
    """The largest power of 2 that divides the channels, up to max_depth."""
    return max(MIN_TILE, min(max_depth, inputs & -inputs))
