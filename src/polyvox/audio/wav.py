# SPDX-License-Identifier: Apache-2.0
"""WAV headers."""

import struct

UNKNOWN_SIZE = 0xFFFFFFFF  # the size in the header of a stream
_HEADER_BYTES_IN_RIFF_SIZE = 36


def wav_header(sample_rate: int, data_bytes: int | None) -> bytes:
    """The header of a 16-bit mono WAV file. `data_bytes` is None for a stream of unknown length."""
    riff = UNKNOWN_SIZE if data_bytes is None else min(_HEADER_BYTES_IN_RIFF_SIZE + data_bytes, UNKNOWN_SIZE)
    data = UNKNOWN_SIZE if data_bytes is None else min(data_bytes, UNKNOWN_SIZE)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    return struct.pack("<4sI4s", b"RIFF", riff, b"WAVE") + form + struct.pack("<4sI", b"data", data)
