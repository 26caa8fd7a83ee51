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

    def read(self, fd, offset, target):
        seen[0] += len(target)
        if seen[0] >= at and not done:
            done.append(1)
            action()
        real(self, fd, offset, target)

    monkeypatch.setattr(WeightsFile, "_read", read)


def cut(path, other):
    """As `truncate -s 0` changes it."""
    os.truncate(path, 0)


def copied_onto(path, other):
    """As `cp` of another file onto it changes it."""
    shutil.copyfile(other, path)


def written_into(path, other):
    """Into what has been read already, so that every byte that was read is right."""
    with path.open("r+b") as file:
        file.seek(2 * MIB)
        file.write(b"other")


def written_into_and_its_time_put_back(path, other):
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"other")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def written_into_what_was_read_and_its_time_put_back(path, other):
    before = path.stat()
    written_into(path, other)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def grown(path, other):
    with path.open("ab") as file:
        file.write(b"more")


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("budget", [32, 0], ids=["into a copy", "into a stream"])
@pytest.mark.parametrize(
    "changed",
    [
        cut,
        copied_onto,
        written_into,
        written_into_and_its_time_put_back,
        written_into_what_was_read_and_its_time_put_back,
        grown,
    ],
)
def test_a_file_changed_in_place_while_it_is_read_fails_that_load_and_leaves_nothing(
    pool, bundle, read, monkeypatch, changed, budget, threads
):
    """NVIDIA/TensorRT-LLM#17368, sgl-project/sglang#6083, huggingface/safetensors#762."""
    store, one, other = pool(budget=budget, file_threads=threads), bundle("a", 16), bundle("b", 16)
    path = one.path / one.manifest.weights.file
    before = path.read_bytes()
    paused_reads(monkeypatch, 8 * MIB, lambda: changed(path, other.path / "weights.safetensors"))
    with pytest.raises(BundleError) as caught:
        read(store.acquire(one, keep=False))
    assert caught.value.reason == "SourceChanged"
    assert not store.has(one)
    assert store.statistics().cached == 0
    (one.path / "new").write_bytes(before)
    (one.path / "new").rename(path)
    assert read(store.acquire(one, keep=False)) == packed_bytes(one)


def test_a_file_changed_in_place_after_it_was_read_leaves_the_copy_as_it_was(pool, bundle, read):
    store, one, other = pool(budget=32), bundle("a", 3), bundle("b", 3)
    expected = packed_bytes(one)
    read(store.acquire(one, keep=False))
    shutil.copyfile(other.path / "weights.safetensors", one.path / "weights.safetensors")
    assert read(store.acquire(one, keep=False)) == expected
    assert store.evict(one)
    with pytest.raises(BundleError) as caught:
        store.acquire(one, keep=False)
    assert caught.value.reason == "SourceChanged"
    assert not store.has(other)


def test_a_file_renamed_over_the_one_that_is_read_is_for_the_next_load(pool, bundle, tmp_path, monkeypatch, read):
    """The load that began has the old bytes, and so has every other before a reload; the next has the new ones."""
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
