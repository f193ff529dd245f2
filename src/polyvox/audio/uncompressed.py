"""Sound as plain bytes: raw samples, WAV, and the telephone's eight bits. No library is asked."""

import struct
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from polyvox.audio.pcm import Pcm

UNKNOWN_SIZE = 0xFFFFFFFF  # what a WAV header says where the end is not known yet
_REST_OF_HEADER = 36  # bytes of the header that its own size counts


def pcm_bytes(pcm: Pcm) -> bytes:
    return pcm.astype("<i2", copy=False).tobytes()


def wav_header(sample_rate: int, data_bytes: int | None) -> bytes:
    """16 bits, mono; None for a stream whose length nobody knows yet."""
    whole = UNKNOWN_SIZE if data_bytes is None else min(_REST_OF_HEADER + data_bytes, UNKNOWN_SIZE)
    data = UNKNOWN_SIZE if data_bytes is None else min(data_bytes, UNKNOWN_SIZE)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    return struct.pack("<4sI4s", b"RIFF", whole, b"WAVE") + form + struct.pack("<4sI", b"data", data)


def ulaw_bytes(pcm: Pcm) -> bytes:
    return _table(_ulaw)[pcm.view(np.uint16)].tobytes()


def alaw_bytes(pcm: Pcm) -> bytes:
    return _table(_alaw)[pcm.view(np.uint16)].tobytes()


@cache
def _table(law: Callable[[NDArray[np.int32]], NDArray[np.int32]]) -> NDArray[np.uint8]:
    """The code of every 16-bit sample, indexed by the sample as an unsigned number."""
    return law(np.arange(1 << 16, dtype=np.uint16).view(np.int16).astype(np.int32)).astype(np.uint8)


def _ulaw(x: NDArray[np.int32]) -> NDArray[np.int32]:
    """G.711 μ-law: 14 bits, a bias of 33, segments that double, all bits inverted."""
    size = np.minimum(np.abs(x) >> 2, 8158) + 33
    segment = np.floor(np.log2(size)).astype(np.int32) - 5
    return ~((x < 0) * 0x80 | segment << 4 | (size >> (segment + 1)) & 15)


def _alaw(x: NDArray[np.int32]) -> NDArray[np.int32]:
    """G.711 A-law: 12 bits, segments that double from the second on, every other bit inverted."""
    size = np.where(x < 0, ~x, x) >> 4
    segment = np.maximum(np.floor(np.log2(np.maximum(size, 1))).astype(np.int32) - 3, 0)
    return ((x >= 0) * 0x80 | segment << 4 | (size >> np.maximum(segment - 1, 0)) & 15) ^ 0x55
