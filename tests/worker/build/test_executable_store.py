# SPDX-License-Identifier: Apache-2.0
"""The executable store believes nothing but a record with the whole key and the digest of its file."""

from __future__ import annotations

import json
import stat
from dataclasses import replace

import pytest

from ballast_worker.build.store import ExecutableStore, Key, Measured, Runtime

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


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"version": 99}', b"x" * (1 << 17)])
def test_an_unreadable_record_is_removed(store, damage):
    store.put(KEY, b"code", MEASURED)
    record = next(store.root.glob("*.json"))
    record.write_bytes(damage)
    assert store.get(KEY) is None
    assert not record.exists()


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
    with pytest.raises(OSError, match="No space left"):
        store.put(KEY, b"code", MEASURED)
    assert list(store.root.iterdir()) == []
