# SPDX-License-Identifier: Apache-2.0
"""Matrices as arguments of bulk tensor copies (sm_90): a description of 128 bytes that a kernel gets by value."""

import ctypes
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from polyvox.kernels import cuda_driver

# CU_TENSOR_MAP_DATA_TYPE_…; copies do not convert, so all types of one byte are UINT8.
BFLOAT16, UINT8 = 9, 0
DATA_TYPES = {torch.bfloat16: BFLOAT16, torch.int8: UINT8, torch.float8_e4m3fn: UINT8}
NO_SWIZZLE, SWIZZLE_128_BYTES = 0, 3  # CU_TENSOR_MAP_SWIZZLE_NONE, …_128B
PROMOTE_128_BYTES, PROMOTE_256_BYTES = 2, 3  # CU_TENSOR_MAP_L2_PROMOTION_L2_…: bytes that the L2 cache reads at once
COLUMNS = 64  # of a swizzled copy in bfloat16: 128 bytes
SIZE, ALIGNMENT = 128, 64  # bytes of CUtensorMap
MAX_KEPT = 4096


@dataclass(frozen=True, slots=True, eq=False)
class TensorMap:
    """A matrix [rows, columns] of one of DATA_TYPES whose copies have box_rows rows and box_columns columns.

    Copies of COLUMNS columns in bfloat16 are swizzled in shared memory: chunks of 16 bytes, within 8 rows of 128 bytes.
    Others are there row by row. Rows that do not exist are zero.
    """

    matrix: Tensor
    box_rows: int
    box_columns: int = COLUMNS
    promotion: int = PROMOTE_256_BYTES

    def encoded(self) -> ctypes.Array[ctypes.c_char]:
        """The description, which the driver writes on the host."""
        rows, columns = self.matrix.shape
        assert self.matrix.stride(1) == 1
        box, row_bytes = (self.box_columns, self.box_rows), self.matrix.itemsize * self.matrix.stride(0)
        data_type = DATA_TYPES[self.matrix.dtype]
        return _encode(self.matrix.data_ptr(), data_type, rows, columns, row_bytes, box, self.promotion)


@lru_cache(MAX_KEPT)
def _encode(
    address: int, data_type: int, rows: int, columns: int, row_bytes: int, box: tuple[int, int], promotion: int
) -> ctypes.Array[ctypes.c_char]:
    swizzle = SWIZZLE_128_BYTES if data_type == BFLOAT16 and box[0] == COLUMNS else NO_SWIZZLE
    buffer = ctypes.create_string_buffer(SIZE + ALIGNMENT)
    made = (ctypes.c_char * SIZE).from_buffer(buffer, -ctypes.addressof(buffer) % ALIGNMENT)
    cuda_driver.call(
        "cuTensorMapEncodeTiled", made, ctypes.c_int(data_type), ctypes.c_uint32(2), ctypes.c_void_p(address),
        (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(row_bytes),
        (ctypes.c_uint32 * 2)(*box), (ctypes.c_uint32 * 2)(1, 1), ctypes.c_int(0),
        ctypes.c_int(swizzle), ctypes.c_int(promotion), ctypes.c_int(0),
    )  # fmt: skip
    return made
