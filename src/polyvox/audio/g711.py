# SPDX-License-Identifier: Apache-2.0
"""G.711 telephone encodings: μ-law and A-law, 8 bits per sample."""

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from polyvox.audio.pcm import Pcm


def ulaw_bytes(pcm: Pcm) -> bytes:
    return _table(_ulaw)[pcm.view(np.uint16)].tobytes()


def alaw_bytes(pcm: Pcm) -> bytes:
    return _table(_alaw)[pcm.view(np.uint16)].tobytes()


def ulaw_samples(data: bytes) -> Pcm:
    return _ulaw_values()[np.frombuffer(data, np.uint8)]


def alaw_samples(data: bytes) -> Pcm:
    return _alaw_values()[np.frombuffer(data, np.uint8)]


@cache
def _ulaw_values() -> Pcm:
    """The sample of every μ-law code."""
    codes = ~np.arange(256)
    size = ((codes & 15) * 2 + 33 << (codes >> 4 & 7)) - 33 << 2
    return np.where(codes & 0x80, -size, size).astype(np.int16)


@cache
def _alaw_values() -> Pcm:
    """The sample of every A-law code."""
    codes = np.arange(256) ^ 0x55
    segment = codes >> 4 & 7
    size = ((codes & 15) << 4) + np.where(segment, 0x108, 8) << np.maximum(segment - 1, 0)
    return np.where(codes & 0x80, size, -size).astype(np.int16)


@cache
def _table(law: Callable[[NDArray[np.int32]], NDArray[np.int32]]) -> NDArray[np.uint8]:
    """The code of every 16-bit sample, indexed by the sample as an unsigned integer."""
    return law(np.arange(1 << 16, dtype=np.uint16).view(np.int16).astype(np.int32)).astype(np.uint8)


def _ulaw(x: NDArray[np.int32]) -> NDArray[np.int32]:
    """μ-law: 14-bit magnitude, a bias of 33, segments that double, all bits inverted."""
    size = np.minimum(np.abs(x) >> 2, 8158) + 33
    segment = np.floor(np.log2(size)).astype(np.int32) - 5
    return ~((x < 0) * 0x80 | segment << 4 | (size >> (segment + 1)) & 15)


def _alaw(x: NDArray[np.int32]) -> NDArray[np.int32]:
    """A-law: 12-bit magnitude, segments that double from the second on, every other bit inverted."""
    size = np.where(x < 0, ~x, x) >> 4
    segment = np.maximum(np.floor(np.log2(np.maximum(size, 1))).astype(np.int32) - 3, 0)
    return ((x >= 0) * 0x80 | segment << 4 | (size >> np.maximum(segment - 1, 0)) & 15) ^ 0x55
