# SPDX-License-Identifier: Apache-2.0
"""The ring: PCM is read as it was written, for any sizes, and never beyond its capacity."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyvox.ipc.audio_ring import AudioRing, create_shared_memory

CAPACITY = 64


@pytest.fixture
def ends() -> Iterator[tuple[AudioRing, AudioRing]]:
    pair = make_ends()
    yield pair
    for ring in pair:
        ring.close()


def make_ends() -> tuple[AudioRing, AudioRing]:
    file = create_shared_memory(CAPACITY)
    writer, reader = AudioRing(file), AudioRing(file)
    os.close(file)
    return writer, reader


@given(st.lists(st.lists(st.integers(0, CAPACITY // 4), max_size=4), max_size=50))
def test_samples_are_read_as_they_were_written_however_often_the_ring_wraps(writes: list[list[int]]) -> None:
    writer, reader = make_ends()
    position = 0
    for sizes in writes:
        pcm = np.arange(position, position + sum(sizes)).astype(np.int16)
        parts = np.split(pcm, np.cumsum(sizes)[:-1]) if sizes else []
        writer.write(parts)
        for part in parts:
            np.testing.assert_array_equal(reader.read(len(part)), part)
        writer.release(reader.consumed)
        position += len(pcm)
    assert writer.written == reader.consumed == position
    assert writer.free == CAPACITY
    writer.close()
    reader.close()


def test_a_full_ring_rejects_samples_until_the_reader_has_released_some(ends: tuple[AudioRing, AudioRing]) -> None:
    writer, reader = ends
    writer.write([np.ones(CAPACITY, np.int16)])
    with pytest.raises(ValueError, match="do not fit"):
        writer.write([np.ones(1, np.int16)])
    reader.read(10)
    assert writer.free == 0
    writer.release(reader.consumed)
    writer.write([np.full(10, 2, np.int16)])
    assert writer.free == 0
    np.testing.assert_array_equal(reader.read(CAPACITY), [1] * (CAPACITY - 10) + [2] * 10)


def test_samples_that_were_read_do_not_change_when_they_are_overwritten(ends: tuple[AudioRing, AudioRing]) -> None:
    writer, reader = ends
    writer.write([np.ones(CAPACITY, np.int16)])
    read = reader.read(CAPACITY)
    writer.release(reader.consumed)
    writer.write([np.full(CAPACITY, 2, np.int16)])
    assert set(read) == {1}


def test_positions_that_were_never_written_are_rejected_and_old_ones_are_ignored(
    ends: tuple[AudioRing, AudioRing],
) -> None:
    writer, _ = ends
    writer.write([np.ones(8, np.int16)])
    writer.release(8)
    writer.release(4)
    assert writer.free == CAPACITY
    with pytest.raises(ValueError, match="beyond the 8 samples written"):
        writer.release(9)


def test_a_reader_cannot_read_more_than_the_ring_holds(ends: tuple[AudioRing, AudioRing]) -> None:
    with pytest.raises(ValueError, match="exceed the ring's capacity"):
        ends[1].read(CAPACITY + 1)


@pytest.mark.parametrize("size", [0, 2 * CAPACITY - 1, 4 * CAPACITY])
def test_a_peer_cannot_resize_the_memory(size: int) -> None:
    file = create_shared_memory(CAPACITY)
    with pytest.raises(PermissionError):
        os.ftruncate(file, size)
    os.close(file)


def test_the_memory_of_a_ring_has_no_name(ends: tuple[AudioRing, AudioRing]) -> None:
    assert not [entry for entry in Path("/dev/shm").glob("*") if "polyvox" in entry.name]
    for ring in ends:
        ring.close()
        ring.close()
    assert "polyvox-ring" not in Path("/proc/self/maps").read_text()
