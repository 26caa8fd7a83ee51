# SPDX-License-Identifier: Apache-2.0
"""Whose the directory and its files are, and pools that are not understood."""

from __future__ import annotations

import os

import pytest
from helpers.plain_bundles import packed_bytes

from ballast_worker.host import directory
from ballast_worker.host.errors import HostPoolError
from ballast_worker.host.regions import drop_missing_segments

MIB = 1 << 20


def test_a_directory_that_everybody_may_write_to_is_refused(pool, tmp_path):
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool").chmod(0o777)
    with pytest.raises(HostPoolError, match="every user of the node could put weights there"):
        pool(budget=8)


def test_a_directory_of_somebody_else_is_refused(pool, tmp_path):
    (tmp_path / "pool").mkdir()
    os.chown(tmp_path / "pool", 4711, 4711)
    with pytest.raises(HostPoolError, match="belongs to user 4711"):
        pool(budget=8)


def test_a_link_in_place_of_the_directory_or_table_is_refused(pool, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "pool").symlink_to(tmp_path / "real")
    with pytest.raises(HostPoolError, match="must be a directory"):
        pool(budget=8)
    (tmp_path / "other").mkdir(mode=0o750)
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "other" / "table").symlink_to(tmp_path / "file")
    with pytest.raises(HostPoolError, match="cannot be opened"):
        pool(budget=8, directory=tmp_path / "other")


@pytest.mark.parametrize("mode", [0o660, 0o600, 0o640])
def test_a_file_that_everybody_may_write_to_is_refused(pool, mode):
    first = pool(budget=8, mode=mode)
    first.close()
    (first._path / "table").chmod(0o666)
    if os.geteuid() == 0:
        os.chown(first._path / "table", 0, 4712)
    with pytest.raises(HostPoolError, match="every user of the node may change it"):
        pool(budget=8, mode=mode)


def test_files_for_everybody_are_made_when_they_are_asked_for_and_warned_of(pool, bundle, read, caplog):
    store, one = pool(budget=8, mode=0o666), bundle("a", 3)
    read(store.acquire(one, keep=False))
    assert [record.getMessage() for record in caplog.records] == [
        f"file mode 0666 lets every user of the node change the weights in {store._path}: set host.fileMode to 0660 or 0600"
    ]
    assert {path.stat().st_mode & 0o777 for path in store._path.iterdir()} == {0o666}
    store.close()
    for path in (store._path, *store._path.iterdir()):
        if os.geteuid() == 0:
            os.chown(path, 4711, 4711)
    assert pool(budget=8, mode=0o666).has(one)


def test_files_of_the_group_of_a_shared_directory_are_trusted_and_those_of_strangers_are_not(pool, bundle, read):
    store, one = pool(budget=8, segment=4), bundle("a", 3)
    read(store.acquire(one, keep=False))
    store.close()
    for path in store._path.iterdir():
        os.chown(path, 4711, store._path.stat().st_gid)
    second = pool(budget=8, segment=4)
    assert second.has(one)
    second.close()
    os.chown(store._path / "table", 4711, 4711)
    with pytest.raises(HostPoolError, match="table belongs to user 4711 and group 4711"):
        pool(budget=8, segment=4)


def test_a_table_of_another_start_of_the_node_is_begun_anew(pool, bundle, read, monkeypatch):
    one = bundle("a", 3)
    first = pool(budget=8)
    read(first.acquire(one, keep=False))
    first.close()
    monkeypatch.setattr(directory, "boot_id", lambda: "0" * 36)
    second = pool(budget=8)
    assert not second.has(one)
    assert second.acquire(one, keep=False).kept


def test_a_table_of_another_format_is_begun_anew_when_nobody_uses_it(pool, bundle, read):
    one = bundle("a", 3)
    first = pool(budget=8)
    read(first.acquire(one, keep=False))
    table = first._path / "table"
    first.close()
    data = bytearray(table.read_bytes())
    data[8] = 77
    table.write_bytes(data)
    second = pool(budget=8)
    assert not second.has(one)
    assert second.acquire(one, keep=False).kept


def test_a_table_of_another_format_that_somebody_uses_is_refused(pool):
    first = pool(budget=8)
    with (first._path / "table").open("r+b") as file:
        file.seek(8)
        file.write(b"\x4d")
    with pytest.raises(HostPoolError, match=r"its format is 77, .* and other processes use it"):
        pool(budget=8)


def test_another_segment_size_begins_anew_alone_and_yields_to_others(pool, bundle, read):
    one = bundle("a", 3)
    first = pool(budget=16, segment=8)
    read(first.acquire(one, keep=False))
    second = pool(budget=16, segment=4)
    assert second.has(one)
    first.close()
    second.close()
    third = pool(budget=16, segment=4)
    assert not third.has(one)
    assert len(list(third._path.glob("segment-*"))) == 4


def test_a_missing_segment_costs_its_copies_only(pool, bundle, read):
    first = pool(budget=8, segment=4)
    a, b = bundle("a", 3), bundle("b", 3)
    read(first.acquire(a, keep=False))
    read(first.acquire(b, keep=False))
    first.close()
    (first._path / "segment-000001").unlink()
    second = pool(budget=8, segment=4)
    assert sorted([second.has(a), second.has(b)]) == [False, True]
    assert read(second.acquire(a, keep=False)) == packed_bytes(a)


def test_a_missing_segment_leaves_the_table_with_its_copies_by_one_change(pool, bundle, read):
    """Killed in between, nobody would find a copy without its segment in the table."""
    first = pool(budget=8, segment=4)
    a, b = bundle("a", 3), bundle("b", 3)
    read(first.acquire(a, keep=False))
    read(first.acquire(b, keep=False))
    (first._path / "segment-000001").unlink()
    found = first._opened._directory
    before = found.table.read().generation
    with found.locked():
        (lost,) = drop_missing_segments(found)
    now = found.table.read()
    assert now.generation == before + 1
    assert now.segments == (2,)
    assert {lost.name, *(entry.name for entry in now.entries)} == {"a", "b"}
    assert [run.segment for entry in now.entries for run in entry.runs] == [2]


def test_odd_segment_sizes_are_refused(pool):
    with pytest.raises(HostPoolError, match="multiple of 2097152"):
        pool(budget=8, segment=1)


def test_a_small_budget_makes_a_small_segment(pool, bundle, read):
    store = pool(budget=5, segment=64)
    assert [path.stat().st_size for path in store._path.glob("segment-*")] == [4 * MIB]
    assert store.acquire(bundle("a", 3), keep=False).kept
