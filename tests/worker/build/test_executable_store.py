# SPDX-License-Identifier: Apache-2.0
"""The executable store believes nothing but a record with the whole key and the digest of its file."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace

import pytest

from ballast_worker.build.errors import StoreError
from ballast_worker.build.record import Measured
from ballast_worker.build.store import ExecutableStore, Key, Runtime
from ballast_worker.build.sweep import ABANDONED_SECONDS, UNUSED_SECONDS

RUNTIME = Runtime("cpu", "x86_64-0", "0.10.2", "0.10.2", "", (("nvidia-cudnn", "9.1"),), (("XLA_FLAGS", "--a"),))
KEY = Key("sha256:" + "a" * 64, (("batch", 4),), RUNTIME)
MEASURED = Measured(scratch_bytes=5, io_bytes=6, code_bytes=7, run_seconds=0.25, context_bytes=8)


def test_what_was_stored_comes_back_with_its_measurements(store):
    written = store.put(KEY, b"code", MEASURED)
    entry = store.get(KEY)
    assert entry is not None
    assert entry.program == written
    assert written.file.read_bytes() == b"code"
    assert (written.scratch_bytes, written.io_bytes, written.code_bytes, written.run_seconds) == (5, 6, 7, 0.25)
    assert entry.context_bytes == 8


def test_another_process_finds_what_was_stored(store):
    store.put(KEY, b"code", MEASURED)
    assert ExecutableStore(store.root).get(KEY) is not None


@pytest.mark.parametrize(
    "other",
    [
        replace(KEY, bundle="sha256:" + "b" * 64),
        replace(KEY, dimensions=(("batch", 8),)),
        *(
            replace(KEY, runtime=replace(RUNTIME, **{field: value}))
            for field, value in (
                ("backend", "cuda"),
                ("device_kind", "x86_64-1"),
                ("jax", "0.11.0"),
                ("jaxlib", "0.11.0"),
                ("driver", "580"),
                ("libraries", (("nvidia-cudnn", "9.2"),)),
                ("flags", ()),
            )
        ),
    ],
    ids=lambda key: key.name()[:8],
)
def test_every_part_of_the_key_matters(store, other):
    store.put(KEY, b"code", MEASURED)
    assert store.get(other) is None


def test_a_file_with_other_bytes_is_removed_and_built_again(store):
    written = store.put(KEY, b"code", MEASURED)
    written.file.write_bytes(b"evil")
    assert store.get(KEY) is None
    assert list(store.root.iterdir()) == []


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b"5", b'"text"', b"\xff", b'{"version": 99}', b"x" * (1 << 17), b"[" * (1 << 15)]
)
def test_an_unreadable_record_is_removed(store, damage):
    store.put(KEY, b"code", MEASURED)
    record = next(store.root.glob("*.json"))
    record.write_bytes(damage)
    assert store.get(KEY) is None
    assert not record.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"digest": 5}, {"digest": "sha256:" + "0" * 63}, {"file": None}, {"key": None}, {"version": [1]},
        *({name: value} for name in ("scratch_bytes", "io_bytes", "code_bytes", "context_bytes")
          for value in (-1, 2**50 + 1, 2**70, 1.5, "5", True, None)),
        *({"run_seconds": value} for value in (-1.0, 2**70, "1", None)),
    ],
    ids=str,
)  # fmt: skip
def test_a_record_with_a_figure_that_cannot_be_is_removed(store, changes):
    store.put(KEY, b"code", MEASURED)
    record = next(store.root.glob("*.json"))
    record.write_text(json.dumps({**json.loads(record.read_text()), **changes}))
    assert store.get(KEY) is None
    assert not record.exists()


@pytest.mark.parametrize("figure", ["1e999", "-1e999", "NaN"])
def test_a_record_with_a_figure_that_is_no_number_is_removed(store, figure):
    store.put(KEY, b"code", MEASURED)
    record = next(store.root.glob("*.json"))
    for name, before in (("scratch_bytes", "5"), ("run_seconds", "0.25")):
        record.write_text(record.read_text().replace(f'"{name}": {before}', f'"{name}": {figure}'))
        assert store.get(KEY) is None
        store.put(KEY, b"code", MEASURED)


def pipe(path):
    os.mkfifo(path)


def link(path):
    path.symlink_to("/dev/zero")


def endless(path):
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize("pattern", ["*.json", "*.executable"])
@pytest.mark.parametrize("something", [pipe, link, endless])
def test_what_is_no_file_of_the_store_is_removed_unread(store, pattern, something):
    store.put(KEY, b"code", MEASURED)
    place = next(store.root.glob(pattern))
    place.unlink()
    something(place)
    assert store.get(KEY) is None
    assert not os.path.lexists(place)
    store.put(KEY, b"code", MEASURED)
    assert store.get(KEY) is not None


@pytest.mark.parametrize("pattern", ["*.json", "*.executable"])
def test_a_directory_in_the_place_of_a_file_is_told_in_words(store, pattern):
    store.put(KEY, b"code", MEASURED)
    place = next(store.root.glob(pattern))
    place.unlink()
    place.mkdir()
    assert store.get(KEY) is None
    with pytest.raises(StoreError) as caught:
        store.put(KEY, b"code", MEASURED)
    assert (
        f"'{store.root}' cannot be written: Is a directory: {place}; something else is in that place: remove it"
        in str(caught.value)
    )
    place.rmdir()
    store.put(KEY, b"code", MEASURED)
    assert store.get(KEY) is not None


def test_a_store_that_cannot_be_made_is_named_with_the_setting(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        StoreError, match=f"the executable store '{tmp_path}/file' cannot be written: .*executableStore"
    ):
        ExecutableStore(tmp_path / "file")


def test_a_record_may_not_point_to_another_file(store, tmp_path):
    store.put(KEY, b"code", MEASURED)
    record = next(store.root.glob("*.json"))
    fields = json.loads(record.read_text())
    record.write_text(json.dumps({**fields, "file": "../elsewhere"}))
    assert store.get(KEY) is None


def test_a_record_moved_to_another_key_is_not_believed(store):
    store.put(KEY, b"code", MEASURED)
    other = replace(KEY, dimensions=(("batch", 8),))
    record = next(store.root.glob("*.json"))
    record.rename(store.root / f"{other.name()}.json")
    assert store.get(other) is None


def test_a_second_writer_replaces_the_entry_as_a_whole(store):
    store.put(KEY, b"first", MEASURED)
    second = store.put(KEY, b"second", replace(MEASURED, scratch_bytes=9))
    entry = store.get(KEY)
    assert entry is not None
    assert entry.program == second
    assert entry.program.file.read_bytes() == b"second"


def test_files_are_closed_to_others(store):
    store.put(KEY, b"code", MEASURED)
    for file in store.root.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) & 0o137 == 0


def test_no_half_written_file_has_a_name_that_is_read(store, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(StoreError, match=r"No space left on device; make room, or set executableStore"):
        store.put(KEY, b"code", MEASURED)
    assert list(store.root.iterdir()) == []


def aged(path, moment: float) -> None:
    os.utime(path, (moment, moment))


def test_entries_that_nobody_used_for_long_are_swept_with_their_files(tmp_path):
    now = [1e9]
    store = ExecutableStore(tmp_path, clock=lambda: now[0])
    used, served, unused = (replace(KEY, bundle="sha256:" + letter * 64) for letter in "abc")
    programs = {key: store.put(key, b"code", MEASURED) for key in (used, served, unused)}
    for file in tmp_path.iterdir():
        aged(file, now[0])
    now[0] += UNUSED_SECONDS
    store.tend([])
    assert len(list(tmp_path.iterdir())) == 6
    assert store.get(used) is not None
    now[0] += 1.0
    store.tend([programs[served]])
    assert {file.name[:64] for file in tmp_path.iterdir()} == {used.name(), served.name()}
    assert store.get(used) is not None
    assert store.get(served) is not None
    assert store.get(unused) is None


def test_what_a_crash_left_is_swept_and_what_another_worker_may_be_writing_is_not(tmp_path):
    now = 1e9
    store = ExecutableStore(tmp_path, clock=lambda: now)
    writing = [f".{KEY.name()}.json.0123", f"{KEY.name()}-0123.executable"]
    left = [f".{KEY.name()}.json.4567", f"{KEY.name()}-4567.executable"]
    for names, moment in ((writing, now - ABANDONED_SECONDS), (left, now - ABANDONED_SECONDS - 1.0)):
        for name in names:
            (tmp_path / name).write_bytes(b"half")
            aged(tmp_path / name, moment)
    store.tend([])
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(writing)
