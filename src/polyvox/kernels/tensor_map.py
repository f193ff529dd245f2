# SPDX-License-Identifier: Apache-2.0
"""Matrices as arguments of bulk tensor copies (sm_90): a description of 128 bytes that a kernel gets by value."""

import ctypes
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from polyvox.kernels import cuda_driver

BFLOAT16 = 9  # CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
SWIZZLE_128_BYTES = 3  # CU_TENSOR_MAP_SWIZZLE_128B
PROMOTE_128_BYTES, PROMOTE_256_BYTES = 2, 3  # CU_TENSOR_MAP_L2_PROMOTION_L2_…: bytes that the L2 cache reads at once
COLUMNS = 64  # of a copy: 128 bytes
SIZE, ALIGNMENT = 128, 64  # bytes of CUtensorMap
MAX_KEPT = 4096


@dataclass(frozen=True, slots=True, eq=False)
class TensorMap:
    """A matrix [rows, columns] in bfloat16 whose copies have box_rows rows and COLUMNS columns.

    Copies are swizzled in shared memory: chunks of 16 bytes, within 8 rows of 128 bytes. Rows that do not exist are
    zero.
    """

    matrix: Tensor
    box_rows: int
    promotion: int = PROMOTE_256_BYTES

    def encoded(self) -> ctypes.Array[ctypes.c_char]:
        """The description, which the driver writes on the host."""
        rows, columns = self.matrix.shape
        assert self.matrix.stride(1) == 1
        assert self.matrix.dtype == torch.bfloat16
        row_bytes = self.matrix.itemsize * self.matrix.stride(0)
        assert row_bytes % 16 == 0, row_bytes
        assert self.matrix.data_ptr() % 16 == 0
        return _encode(self.matrix.data_ptr(), rows, columns, row_bytes, self.box_rows, self.promotion)


@lru_cache(MAX_KEPT)
def _encode(
    address: int, rows: int, columns: int, row_bytes: int, box_rows: int, promotion: int
) -> ctypes.Array[ctypes.c_char]:
    buffer = ctypes.create_string_buffer(SIZE + ALIGNMENT)
    made = (ctypes.c_char * SIZE).from_buffer(buffer, -ctypes.addressof(buffer) % ALIGNMENT)
    cuda_driver.call(
        "cuTensorMapEncodeTiled", made, ctypes.c_int(BFLOAT16), ctypes.c_uint32(2), ctypes.c_void_p(address),
        (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(row_bytes),
        (ctypes.c_uint32 * 2)(COLUMNS, box_rows), (ctypes.c_uint32 * 2)(1, 1), ctypes.c_int(0),
        ctypes.c_int(SWIZZLE_128_BYTES), ctypes.c_int(promotion), ctypes.c_int(0),
    )  # fmt: skip
    return made
