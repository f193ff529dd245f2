"""Which tile a matrix product is cut into: from its shape and a table, never by trying out.

The time of a product is taken to be rounds of tiles over the multiprocessors, each as long as its tile is large divided
by how well such a tile uses the tensor cores. The shares are for sm_90 (`benchmarks/codec_kernels.py --parts tune`
measures them); a card with less shared memory does without the tiles that do not fit.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch

LEAST = 16  # rows, columns and depth of a tensor core's operands
SPARE = 2 << 10  # bytes of shared memory that a kernel may need beside its operands


@dataclass(frozen=True, slots=True)
class Card:
    """What tiles depend on of a device."""

    multiprocessors: int
    shared: int  # bytes of shared memory that one program can have


SM_90 = Card(132, 227 << 10)


@dataclass(frozen=True, slots=True)
class Tile:
    rows: int
    block: int  # columns, a power of 2
    extra: int  # and half as many again, or none: 96 and 192 are no powers of 2
    depth: int
    warps: int
    stages: int
    share: float  # of the tensor cores' rate, while every multiprocessor has one

    @property
    def columns(self) -> int:
        return self.block + self.extra

    @property
    def shared(self) -> int:
        """Bytes of the operands of all stages, in a type of 16 bits."""
        return self.stages * self.depth * (self.rows + self.columns) * 2


TILES = (
    Tile(128, 128, 64, 64, 8, 3, 1.00),
    Tile(128, 128, 0, 64, 8, 3, 0.90),
    Tile(128, 64, 32, 32, 4, 4, 0.80),
    Tile(128, 64, 0, 64, 4, 4, 0.65),
    Tile(64, 64, 0, 64, 4, 4, 0.45),
    Tile(64, 32, 0, 128, 4, 4, 0.28),
    Tile(32, 32, 0, 128, 4, 4, 0.15),
    Tile(16, 32, 0, 128, 4, 4, 0.08),
    Tile(128, 16, 0, 32, 4, 4, 0.25),
)


@cache
def card(device: torch.device) -> Card:
    """In the interpreter tiles are cut as for sm_90."""
    if device.type != "cuda":
        return SM_90
    from triton.runtime import driver

    facts = driver.active.utils.get_device_properties(device.index)
    return Card(facts["multiprocessor_count"], facts["max_shared_mem"])


def choose_tile(rows: int, columns: int, inputs: int, dtype: torch.dtype, on: Card = SM_90) -> Tile:
    """For a product of rows × columns whose sums go over channels, `inputs` at a time."""
    if dtype == torch.float32:
        # Twice the bytes, and no speed to be had: what fits everywhere.
        best = Tile(64, 32, 0, 32, 4, 2, 1.0)
    else:
        fitting = [tile for tile in TILES if tile.shared + SPARE <= on.shared]
        best = min(fitting, key=lambda tile: _rounds(tile, rows, columns, on) * tile.rows * tile.columns / tile.share)
    return replace(best, depth=_depth(best.depth, inputs))


def _rounds(tile: Tile, rows: int, columns: int, on: Card) -> int:
    tiles = -(-rows // tile.rows) * -(-columns // tile.columns)
    return -(-tiles // on.multiprocessors)


def _depth(most: int, inputs: int) -> int:
    """The largest power of 2 that divides the channels, within what the tile can hold."""
    return max(LEAST, min(most, inputs & -inputs))
