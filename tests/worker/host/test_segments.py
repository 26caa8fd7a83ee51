# SPDX-License-Identifier: Apache-2.0
"""Segments in a process: read-only mappings, writable windows, page-locking."""

from __future__ import annotations

import ctypes
import stat
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from ballast_worker.host.directory import PoolDirectory
from ballast_worker.host.errors import HostPoolError
from ballast_worker.host.pages import PAGE_BYTES, Run
from ballast_worker.host.segments import PIECE_BYTES, PageLocker, Segments, map_at_once, unmap_early

SEGMENT = 20 * PAGE_BYTES


@pytest.fixture
def directory(tmp_path):
    made = PoolDirectory(tmp_path / "pool", segment_bytes=SEGMENT, mode=0o640)
    for number in (1, 2):
        made.create_segment(number, nbytes=SEGMENT)
    yield made
    made.close()


def pool_has(directory, *segments):
    with directory.locked():
        directory.table.change(lambda now: replace(now, segments=segments))


class Driver:
    """Remembers what is locked."""

    def __init__(self, *, most: int = 1 << 40):
        self.locked = {}
        self.most = most
        self.pauses = 0

    def lock(self, address, nbytes):
        if len(self.locked) >= self.most:
            return False
        self.locked[address] = nbytes
        return True

    def unlock(self, address):
        del self.locked[address]

    def segments(self, directory):
        def pause(_):
            self.pauses += 1

        return Segments(directory, locker=PageLocker(self.lock, self.unlock), pause=pause)


def test_a_window_on_scattered_pages_is_contiguous_and_seen_through_the_mapping(directory):
    segments = Segments(directory, locker=None)
    segments.map([1, 2], late=False)
    runs = [Run(2, 3, 2), Run(1, 0, 1)]
    with segments.window(runs) as memory:
        assert len(memory) == 3 * PAGE_BYTES
        memory[:] = bytes(range(256)) * (len(memory) // 256)
    data = b"".join(bytes(piece) for _, piece, _ in segments.pieces(runs, 3 * PAGE_BYTES))
    assert data == bytes(range(256)) * (3 * PAGE_BYTES // 256)
    segments.close()


def resident(address, nbytes):
    """Bytes of a range that this process has mapped, as the kernel says."""
    found = 0
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(address // 4096 * 8)
        for entry in struct.iter_unpack("<Q", file.read(nbytes // 4096 * 8)):
            found += 4096 * (entry[0] >> 63)
    return found


def test_what_is_to_be_written_next_is_mapped_at_once_and_the_rest_is_not(directory):
    segments = Segments(directory, locker=None)
    with segments.window([Run(2, 3, 1), Run(1, 0, 2)]) as memory:
        address = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
        assert resident(address, len(memory)) == 0
        map_at_once(memory[PAGE_BYTES - 1000 : PAGE_BYTES + 1000])
        map_at_once(memory[:0])
        assert 8192 <= resident(address, len(memory)) <= 4 * 65536
    segments.close()


def test_what_is_unmapped_early_keeps_its_bytes_and_those_of_its_neighbours(directory):
    segments = Segments(directory, locker=None)
    with segments.window([Run(1, 0, 1)]) as memory:
        address = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
        memory[:] = b"a" * PAGE_BYTES
        memory[1000:-1000] = b"b" * (PAGE_BYTES - 2000)
        unmap_early(memory[1000:-1000])
        unmap_early(memory[:0])
        assert resident(address, PAGE_BYTES) == 0
        memory[500:1000] = b"c" * 500
        assert memory[:] == b"a" * 500 + b"c" * 500 + b"b" * (PAGE_BYTES - 2000) + b"a" * 1000
    segments.close()


def test_the_long_lived_mapping_cannot_be_written_to(directory):
    segments = Segments(directory, locker=None)
    segments.map([1], late=False)
    _, piece, _ = next(segments.pieces([Run(1, 0, 1)], 100))
    assert piece.readonly
    assert len(piece) == 100
    with pytest.raises(TypeError):
        piece[0] = 1
    del piece
    segments.close()


def test_pieces_end_at_the_boundaries_of_late_locking(directory):
    segments = Segments(directory, locker=None)
    segments.map([1], late=False)
    start, pages = 5, 12
    pieces = list(segments.pieces([Run(1, start, pages)], pages * PAGE_BYTES - 1000))
    cursor = start * PAGE_BYTES
    for offset, data, _ in pieces:
        assert offset == cursor - start * PAGE_BYTES
        assert cursor // PIECE_BYTES == (cursor + len(data) - 1) // PIECE_BYTES
        cursor += len(data)
    assert cursor == (start + pages) * PAGE_BYTES - 1000
    del data, pieces
    segments.close()


def test_before_ready_a_segment_is_locked_by_one_call(directory):
    driver = Driver()
    segments = driver.segments(directory)
    segments.map([1, 2], late=False)
    segments.map([1, 2], late=False)
    assert list(driver.locked.values()) == [SEGMENT, SEGMENT]
    assert driver.pauses == 0
    ((offset, data, locked),) = segments.pieces([Run(1, 0, 20)], SEGMENT)  # and copied by one too
    assert (offset, len(data), locked) == (0, SEGMENT, True)
    del data
    segments.close()
    assert driver.locked == {}


def test_later_a_segment_is_locked_in_small_steps_with_pauses(directory):
    driver = Driver()
    segments = driver.segments(directory)
    segments.map([1], late=True)
    assert list(driver.locked.values()) == [PIECE_BYTES, PIECE_BYTES, SEGMENT - 2 * PIECE_BYTES]
    assert driver.pauses == 2
    segments.close()


def test_chunks_say_they_are_locked_only_where_the_driver_said_so(directory):
    driver = Driver(most=1)
    segments = driver.segments(directory)
    segments.map([1], late=True)
    assert [locked for _, _, locked in segments.pieces([Run(1, 0, 20)], SEGMENT)] == [True, False, False]
    segments.close()


def test_a_segment_that_the_pool_gave_up_is_unlocked_in_steps_with_pauses_and_unmapped(directory):
    driver = Driver()
    segments = driver.segments(directory)
    segments.map([1], late=False)
    segments.map([2], late=True)
    driver.pauses = 0
    pool_has(directory, 1)
    segments.forget()
    assert set(segments._mappings) == {1}
    assert list(driver.locked.values()) == [SEGMENT]
    assert driver.pauses == 3
    segments.forget()
    assert driver.pauses == 3
    segments.close()
    assert driver.locked == {}


def test_a_chunk_of_a_segment_that_was_given_up_stays_readable(directory):
    segments = Segments(directory, locker=None)
    segments.map([1], late=False)
    _, piece, _ = next(segments.pieces([Run(1, 0, 1)], 100))
    pool_has(directory)
    segments.forget()
    assert bytes(piece) == bytes(100)
    segments.close()


def test_files_have_the_mode_that_was_asked_for_whatever_the_umask(directory):
    assert stat.S_IMODE((directory.path / "segment-000001").stat().st_mode) == 0o640
    assert stat.S_IMODE((directory.path / "table").stat().st_mode) == 0o640
    assert stat.S_IMODE(directory.path.stat().st_mode) & 0o777 == 0o750


def test_all_memory_of_a_segment_is_there_from_the_start(directory):
    status = (directory.path / "segment-000001").stat()
    assert status.st_blocks * 512 >= SEGMENT


@pytest.mark.parametrize("fault", ["short", "link", "world", "missing"])
def test_a_segment_file_that_cannot_be_trusted_is_not_mapped(directory, fault):
    path = directory.path / "segment-000001"
    if fault == "short":
        with path.open("r+b") as file:
            file.truncate(PAGE_BYTES)
    elif fault == "world":
        path.chmod(0o666)
    else:
        path.unlink()
        if fault == "link":
            path.symlink_to(directory.path / "segment-000002")
    segments = Segments(directory, locker=None)
    with pytest.raises(HostPoolError, match="segment-000001"):
        segments.map([1], late=False)
