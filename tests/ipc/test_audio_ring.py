"""The ring: what is written is read, in order, whatever the sizes; never more than there is room for."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyvox.audio.pcm import from_pcm, to_pcm
from polyvox.ipc.audio_ring import AudioRing, shared_file

CAPACITY = 64


@pytest.fixture
def ends() -> Iterator[tuple[AudioRing, AudioRing]]:
    pair = make_ends()
    yield pair
    for ring in pair:
        ring.close()


def make_ends() -> tuple[AudioRing, AudioRing]:
    file = shared_file(CAPACITY)
    writer, reader = AudioRing(file), AudioRing(file)
    os.close(file)
    return writer, reader


@given(st.lists(st.integers(0, CAPACITY), max_size=50))
def test_samples_are_read_as_they_were_written_over_any_number_of_turns(sizes: list[int]) -> None:
    writer, reader = make_ends()
    position = 0
    for size in sizes:
        pcm = np.arange(position, position + size).astype(np.float32)
        writer.write(pcm)
        np.testing.assert_array_equal(reader.read(size), pcm)
        writer.release(reader.taken)
        position += size
    assert writer.written == reader.taken == position
    assert writer.room == CAPACITY
    writer.close()
    reader.close()


def test_a_full_ring_takes_nothing_until_the_reader_has_let_go(ends: tuple[AudioRing, AudioRing]) -> None:
    writer, reader = ends
    writer.write(np.ones(CAPACITY, np.float32))
    with pytest.raises(ValueError, match="do not fit"):
        writer.write(np.ones(1, np.float32))
    reader.read(10)
    assert writer.room == 0
    writer.release(reader.taken)
    writer.write(np.full(10, 2, np.float32))
    assert writer.room == 0
    np.testing.assert_array_equal(reader.read(CAPACITY), [1] * (CAPACITY - 10) + [2] * 10)


def test_what_was_read_does_not_change_when_its_place_is_written_again(ends: tuple[AudioRing, AudioRing]) -> None:
    writer, reader = ends
    writer.write(np.ones(CAPACITY, np.float32))
    read = reader.read(CAPACITY)
    writer.release(reader.taken)
    writer.write(np.full(CAPACITY, 2, np.float32))
    assert set(read) == {1}


def test_positions_that_were_never_written_are_refused_and_old_ones_change_nothing(
    ends: tuple[AudioRing, AudioRing],
) -> None:
    writer, _ = ends
    writer.write(np.ones(8, np.float32))
    writer.release(8)
    writer.release(4)
    assert writer.room == CAPACITY
    with pytest.raises(ValueError, match="never written"):
        writer.release(9)


def test_sixteen_bits_and_back_lose_nothing_and_what_is_too_loud_is_clipped() -> None:
    every = np.arange(-32767, 32768).astype(np.int16)
    np.testing.assert_array_equal(to_pcm(from_pcm(every)), every)
    np.testing.assert_array_equal(to_pcm(np.array([2.0, -2.0], np.float32)), [32767, -32767])


def test_the_memory_of_a_ring_has_no_name(ends: tuple[AudioRing, AudioRing]) -> None:
    assert not [entry for entry in Path("/dev/shm").glob("*") if "polyvox" in entry.name]
    for ring in ends:
        ring.close()
        ring.close()
    assert "polyvox-ring" not in Path("/proc/self/maps").read_text()
