# SPDX-License-Identifier: Apache-2.0
"""Files that are overwritten, cut, replaced, gone or unreadable: that load fails, and nobody gets mixed bytes."""

from __future__ import annotations

import os
import shutil

import pytest
from helpers.plain_bundles import packed_bytes, random_bundle

from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.weights import WeightsFile

MIB = 1 << 20


def paused_reads(monkeypatch, at, action):
    """Run `action` once, when so many bytes have been read."""
    real, seen, done = WeightsFile._read, [0], []

    def read(self, offset, target):
        seen[0] += len(target)
        if seen[0] >= at and not done:
            done.append(1)
            action()
        real(self, offset, target)

    monkeypatch.setattr(WeightsFile, "_read", read)


def test_a_file_truncated_while_it_is_read_fails_that_load_and_leaves_nothing(pool, bundle, monkeypatch):
    """B14 (a)."""
    store, one = pool(budget=32, file_threads=1), bundle("a", 16)
    path = one.path / one.manifest.weights.file
    paused_reads(monkeypatch, 8 * MIB, lambda: os.truncate(path, 0))
    with pytest.raises(BundleError) as caught:
        store.acquire(one, keep=False)
    assert caught.value.reason == "SourceChanged"
    assert not store.has(one)
    assert store.statistics().cached == 0


def test_other_bytes_copied_onto_the_file_while_it_is_read_fail_that_load(pool, bundle, monkeypatch):
    """B14 (b)."""
    store, one, other = pool(budget=32, file_threads=1), bundle("a", 16), bundle("b", 16)
    source, path = other.path / "weights.safetensors", one.path / "weights.safetensors"
    paused_reads(monkeypatch, 8 * MIB, lambda: shutil.copyfile(source, path))
    with pytest.raises(BundleError) as caught:
        store.acquire(one, keep=False)
    assert caught.value.reason == "SourceChanged"
    assert not store.has(one)


def test_a_file_renamed_over_the_one_that_is_read_is_for_the_next_load(pool, bundle, tmp_path, monkeypatch, read):
    """B14 (c)."""
    store, one = pool(budget=64, file_threads=1), bundle("a", 16)
    expected = packed_bytes(one)
    path = one.path / one.manifest.weights.file
    newer = random_bundle(tmp_path / "models" / "newer", 16 * MIB, seed=99, pieces=2)

    def replace():
        for name in ("weights.safetensors", "manifest.yaml"):
            shutil.copyfile(newer.path / name, one.path / f"{name}.new")
            (one.path / f"{name}.new").rename(one.path / name)

    paused_reads(monkeypatch, 8 * MIB, replace)
    assert read(store.acquire(one, keep=False)) == expected
    assert path.stat().st_ino != one.weights_identity.inode
    assert read(store.acquire(one, keep=False)) == expected
    from ballast_worker.bundle.reader import open_bundle  # noqa: PLC0415

    reopened = open_bundle(one.path)
    assert read(store.acquire(reopened, keep=False)) == packed_bytes(newer)


def test_a_file_that_is_gone_fails_the_load_and_leaves_nothing(pool, bundle):
    store, one = pool(budget=16), bundle("a", 3)
    (one.path / one.manifest.weights.file).unlink()
    with pytest.raises(BundleError) as caught:
        store.acquire(one, keep=False)
    assert caught.value.reason == "SourceNotFound"
    assert store.statistics().cached == 0
    with pytest.raises(BundleError):
        pool(budget=0).acquire(one, keep=False)


def test_a_disk_that_fails_while_it_is_read_is_a_typed_error(pool, bundle, monkeypatch):
    store, one = pool(budget=16), bundle("a", 3)

    def broken(fd, buffers, offset):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(BundleError, match="Input/output error"):
        store.acquire(one, keep=False)
    assert store.statistics().cached == 0
