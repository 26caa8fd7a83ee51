# SPDX-License-Identifier: Apache-2.0
"""The table: two copies, of which one is always whole."""

from __future__ import annotations

import os
import random
import threading
from dataclasses import replace

import pytest

from ballast_worker.bundle.files import FileIdentity
from ballast_worker.host import table_file as module
from ballast_worker.host.errors import HostPoolError
from ballast_worker.host.pages import Run
from ballast_worker.host.table import EMPTY, Entry, State
from ballast_worker.host.table_file import MAX_COPY_BYTES, TableFile


@pytest.fixture
def fd(tmp_path):
    fd = os.open(tmp_path / "table", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


@pytest.fixture
def file(fd):
    made = TableFile(fd, "table")
    made.initialise(segment_bytes=4096, boot_id="b" * 36)
    return made


def entry(slot, *, runs=2, name="modèle/ä"):
    return Entry(
        slot=slot,
        state=State.READY,
        layout_version=1,
        digest=bytes([slot % 256]) * 32,
        nbytes=(1 << 40) + slot,
        identity=FileIdentity(1, 2, 3, -4, 5),
        name=name,
        runs=tuple(Run(1, 10 * i, 3) for i in range(runs)),
    )


def test_what_was_written_is_read_by_another(fd, file):
    written = file.write(replace(file.read(), segments=(1, 5), next_segment=6, entries=(entry(0), entry(9, runs=0))))
    other = TableFile(fd, "table")
    assert other.understood(boot_id="b" * 36) is None
    assert other.segment_bytes == 4096
    assert other.read() == written
    assert written.find(bytes([9]) * 32, 1).slot == 9
    assert written.find(bytes([9]) * 32, 2) is None


@pytest.mark.parametrize("changes", [1, 2, 3])
def test_whoever_has_read_a_table_sees_what_another_changed_since(fd, file, changes):
    reader = TableFile(fd, "table")
    for number in range(5):
        for step in range(changes):
            written = file.write(replace(file.read(), segments=(number, step)))
        assert reader.read() == reader.read() == written


def test_a_name_longer_than_fits_is_cut(fd, file):
    file.write(replace(file.read(), entries=(entry(0, name="x" * 300),)))
    assert len(TableFile(fd, "table").read().entries[0].name) == 255


def test_the_lowest_slot_is_used_again(file):
    table = replace(EMPTY, entries=(entry(0), entry(1), entry(3)))
    assert next(table.free_slots()) == 2


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda fd: os.ftruncate(fd, 0), "not a table"),
        (lambda fd: os.pwrite(fd, b"XX", 0), "not a table"),
        (lambda fd: os.pwrite(fd, b"\x07", 8), "its format is 7"),
        (lambda fd: os.pwrite(fd, b"\x07", 12), "header is damaged"),
        (lambda fd: os.ftruncate(fd, 4096), "both copies"),
    ],
)
def test_a_table_that_is_not_understood_says_why(fd, file, damage, reason):
    damage(fd)
    assert reason in TableFile(fd, "table").understood(boot_id="b" * 36)


def test_a_table_of_another_boot_is_not_understood(fd, file):
    assert "started anew" in TableFile(fd, "table").understood(boot_id="c" * 36)


def test_a_write_that_was_torn_anywhere_leaves_the_table_before_it(fd, file, monkeypatch):
    file.write(replace(file.read(), segments=(1,)))
    before = file.write(replace(file.read(), segments=(1, 2)))
    real = os.pwrite

    class Died(BaseException):
        pass

    for calls in (1, 2):
        left = [calls]

        def torn(fd, data, offset, left=left):
            left[0] -= 1
            if left[0] == 0:
                real(fd, data[: len(data) // 2], offset)
                raise Died
            return real(fd, data, offset)

        monkeypatch.setattr(os, "pwrite", torn)
        with pytest.raises(Died):
            file.write(replace(before, segments=(1, 2, 3)))
        monkeypatch.setattr(os, "pwrite", real)
        assert TableFile(fd, "table").read() == before
    assert file.write(replace(before, segments=(9,))).segments == (9,)
    assert TableFile(fd, "table").read().segments == (9,)


def test_one_damaged_copy_is_survived_and_two_are_not(fd, file):
    first = file.write(replace(file.read(), segments=(1,)))
    second = file.write(replace(first, segments=(1, 2)))
    newer = second.generation % 2
    os.pwrite(fd, b"\xff" * 8, module._COPIES + newer * MAX_COPY_BYTES)
    assert TableFile(fd, "table").read() == first
    os.pwrite(fd, b"\xff" * 8, module._COPIES + (1 - newer) * MAX_COPY_BYTES)
    with pytest.raises(HostPoolError, match="both copies"):
        TableFile(fd, "table").read()


def test_a_large_table_takes_more_space_when_it_needs_it(file):
    entries = tuple(entry(slot, runs=20) for slot in range(1000))
    assert file.write(replace(file.read(), entries=entries)).entries == entries
    assert file.read().entries == entries


def test_readers_without_a_lock_see_whole_tables_only(fd, file):
    """A table with n segments always has n entries here, whatever a reader catches."""
    stop = threading.Event()
    wrong = []

    def look():
        mine = TableFile(fd, "table")
        while not stop.is_set():
            seen = mine.read()
            if len(seen.segments) != len(seen.entries):
                wrong.append(seen)

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    source = random.Random(1)
    for _ in range(300):
        count = source.randrange(30)
        file.change(
            lambda now, count=count: replace(
                now, segments=tuple(range(count)), entries=tuple(entry(i) for i in range(count))
            )
        )
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []


def test_marks_are_per_slot_and_start_at_zero(file):
    assert file.marks(5) == (0, 0)
    file.mark(5, filled=7, loaded_ns=1 << 60)
    file.mark(6, filled=8, loaded_ns=9)
    assert file.marks(5) == (7, 1 << 60)
    assert file.last_loads([6, 5, 9, 2]) == {6: 9, 5: 1 << 60, 9: 0, 2: 0}
    assert file.last_loads([]) == {}
