# SPDX-License-Identifier: Apache-2.0
"""The host tier as a cache: what is kept, what goes, what is streamed, and what happens to files that change."""

from __future__ import annotations

import os
import shutil
import threading

import pytest
from helpers.plain_bundles import packed_bytes, random_bundle

from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.weights import WeightsFile
from ballast_worker.host.errors import HostPoolError
from ballast_worker.host.limits import Available

MIB = 1 << 20


def counts(store):
    statistics = store.statistics()
    return statistics.hits, statistics.misses, statistics.fallbacks


# Copies


def test_a_miss_fills_a_region_and_a_hit_reads_no_file(pool, bundle, read):
    """Facts 6 and 25 of the first system."""
    store, one = pool(budget=16), bundle("a", 3)
    transfer = store.acquire(one, keep=False)
    assert transfer.kept
    assert read(transfer) == packed_bytes(one)
    (one.path / one.manifest.weights.file).rename(one.path / "aside")
    expected = (one.path / "aside").read_bytes()[-3 * MIB :]
    assert read(store.acquire(one, keep=False)) == expected
    assert counts(store) == (1, 1, 0)
    assert store.has(one)


def test_progress_is_the_sum_of_bytes_read(pool, bundle, read):
    seen = []
    one = bundle("a", 6)
    read(pool(budget=16).acquire(one, keep=False, progress=seen.append))
    assert seen == sorted(seen)
    assert seen[-1] == 6 * MIB


def test_the_least_recently_loaded_copy_goes_first(pool, bundle, read):
    store = pool(budget=8)
    a, b, c, d, e = (bundle(name, 2) for name in "abcde")
    for one in (a, b, c, d, a):
        read(store.acquire(one, keep=False))
    read(store.acquire(e, keep=False))
    assert [store.has(one) for one in (a, b, c, d, e)] == [True, False, True, True, True]
    assert store.statistics().cached == 8 * MIB


def test_use_never_exceeds_the_budget(pool, bundle, read):
    store = pool(budget=12, segment=4)
    for index in range(20):
        read(store.acquire(bundle(f"m{index}", 1 + index % 5), keep=False))
        assert store.statistics().cached <= 12 * MIB
    assert sum(path.stat().st_size for path in store._path.glob("segment-*")) == 12 * MIB


def test_a_copy_in_transfer_does_not_go(pool, bundle, read):
    store = pool(budget=4, segment=4)
    a, b, c = bundle("a", 2), bundle("b", 2), bundle("c", 2)
    held = store.acquire(a, keep=False)
    read(store.acquire(b, keep=False))
    read(store.acquire(c, keep=False))
    assert store.has(a)
    assert not store.has(b)
    assert read(held) == packed_bytes(a)


def test_a_model_larger_than_what_may_go_is_streamed_and_nothing_goes_for_it(pool, bundle, read, caplog):
    store = pool(budget=8)
    a, big = bundle("a", 4), bundle("big", 9)
    read(store.acquire(a, keep=False))
    for _ in range(2):
        transfer = store.acquire(big, keep=False)
        assert not transfer.kept
        assert read(transfer) == packed_bytes(big)
    assert store.has(a)
    assert counts(store) == (0, 3, 2)
    message = store.trouble([a, big])
    assert "no host copy of 'big' (9 MiB) is kept: the budget of 8 MiB is taken" in message
    assert [record.getMessage() for record in caplog.records] == [message]


def test_scattered_free_pages_are_as_good_as_one_run(pool, bundle, read):
    store = pool(budget=16, segment=8)
    small = [bundle(f"s{i}", 2) for i in range(8)]
    for one in small:
        read(store.acquire(one, keep=False))
    for one in small[::2]:
        assert store.evict(one)
    large = bundle("large", 7)
    assert read(store.acquire(large, keep=False)) == packed_bytes(large)
    assert read(store.acquire(large, keep=False)) == packed_bytes(large)
    assert all(store.has(one) for one in small[1::2])


def test_models_with_the_same_weights_share_one_copy(pool, bundle, tmp_path, read):
    store = pool(budget=16)
    a = bundle("a", 2, seed=7)
    twin = random_bundle(tmp_path / "models" / "twin", 2 * MIB, seed=7, pieces=2, name="twin")
    read(store.acquire(a, keep=False))
    assert store.has(twin)
    read(store.acquire(twin, keep=False))
    assert counts(store) == (1, 1, 0)


def test_other_weights_shapes_names_or_types_are_other_copies(pool, bundle, tmp_path):
    """Fact 26."""
    store = pool(budget=16)
    one = bundle("a", 2, seed=7)
    store.acquire(one, keep=False).close()
    assert not store.has(random_bundle(tmp_path / "models" / "p", 2 * MIB, seed=7, pieces=4))
    assert not store.has(random_bundle(tmp_path / "models" / "s", 2 * MIB, seed=8, pieces=2))


def test_a_model_without_weights_needs_no_copy(pool, tmp_path, read):
    store = pool(budget=0)
    assert read(store.acquire(random_bundle(tmp_path / "empty", 0), keep=True)) == b""


def test_copies_survive_the_process(pool, bundle, read):
    one = bundle("a", 3)
    first = pool(budget=16)
    read(first.acquire(one, keep=False))
    first.close()
    second = pool(budget=16)
    assert second.has(one)
    assert read(second.acquire(one, keep=False)) == packed_bytes(one)
    assert counts(second) == (1, 0, 0)


def test_evict_drops_a_copy_unless_it_is_in_transfer(pool, bundle):
    store, one = pool(budget=16), bundle("a", 3)
    assert not store.evict(one)
    transfer = store.acquire(one, keep=False)
    assert not store.evict(one)
    transfer.close()
    transfer.close()
    assert store.evict(one)
    assert not store.has(one)


# Kept copies and budgets


def test_a_kept_copy_never_goes_until_it_is_let_go(pool, bundle, read):
    store = pool(budget=4, segment=4)
    kept, other, third = bundle("kept", 2), bundle("other", 2), bundle("third", 2)
    read(store.acquire(kept, keep=True))
    read(store.acquire(other, keep=False))
    read(store.acquire(third, keep=False))
    assert store.has(kept)
    assert not store.evict(kept)
    store.unkeep(kept)
    read(store.acquire(other, keep=False))
    assert not store.has(kept)


def test_a_copy_that_is_there_can_become_a_kept_one(pool, bundle, read):
    store, one = pool(budget=16), bundle("a", 2)
    read(store.acquire(one, keep=False))
    read(store.acquire(one, keep=True))
    assert not store.evict(one)


def test_kept_copies_may_exceed_the_budget_with_a_warning(pool, bundle, read, caplog):
    store = pool(budget=4, segment=4)
    for name in ("k1", "k2", "k3"):
        one = bundle(name, 3)
        transfer = store.acquire(one, keep=True)
        assert transfer.kept
        assert read(transfer) == packed_bytes(one)
    assert "kept copies exceed the host budget of 4 MiB" in caplog.text
    assert store.statistics().cached == 12 * MIB


def test_a_budget_of_zero_keeps_nothing_but_what_is_to_be_kept(pool, bundle, read):
    store = pool(budget=0)
    a, kept = bundle("a", 3), bundle("kept", 2)
    transfer = store.acquire(a, keep=False)
    assert not transfer.kept
    assert read(transfer) == packed_bytes(a)
    assert not store._path.exists()
    assert counts(store) == (0, 1, 0)
    assert read(store.acquire(kept, keep=True)) == packed_bytes(kept)
    assert store.has(kept)


def test_an_unlimited_budget_takes_segments_as_they_are_needed(pool, bundle, read):
    store = pool(budget=None, segment=4)
    assert store.statistics().budget is None
    for index in range(5):
        read(store.acquire(bundle(f"m{index}", 3), keep=False))
    assert all(store.has(bundle(f"m{index}", 3)) for index in range(5))
    assert len(list(store._path.glob("segment-*"))) == 5


def test_a_model_larger_than_a_segment_spans_several(pool, bundle, read):
    store, one = pool(budget=None, segment=4), bundle("a", 11)
    read(store.acquire(one, keep=False))
    assert read(store.acquire(one, keep=False)) == packed_bytes(one)


def test_each_start_trims_to_the_budget_the_least_recently_used_first(pool, bundle, read):
    """A15."""
    first = pool(budget=16, segment=4)
    names = [bundle(f"m{index}", 3) for index in range(4)]
    for one in names:
        read(first.acquire(one, keep=False))
    first.close()
    second = pool(budget=8, segment=4)
    assert sum(second.has(one) for one in names) == 2
    assert second.statistics().cached <= 8 * MIB
    assert len(list(second._path.glob("segment-*"))) == 2
    second.close()
    assert not any(pool(budget=0).has(one) for one in names)


def test_a_start_does_not_trim_what_another_worker_transfers_or_keeps(pool, bundle, read):
    first = pool(budget=12, segment=4)
    kept, held, idle = bundle("kept", 3), bundle("held", 3), bundle("idle", 3)
    read(first.acquire(kept, keep=True))
    transfer = first.acquire(held, keep=False)
    read(first.acquire(idle, keep=False))
    second = pool(budget=4, segment=4)
    assert [second.has(one) for one in (kept, held, idle)] == [True, True, False]
    assert read(transfer) == packed_bytes(held)


# No room


def test_a_budget_that_the_file_system_or_memory_limit_cannot_hold_gets_fewer_segments(pool, bundle, read):
    """B16: at run time the pool falls back, and says why."""
    room = [10 * MIB]

    def limits(_):
        return Available(room[0], "memory limit of the control group /x")

    def take(path):
        found = limits(path)
        room[0] = max(0, room[0] - 4 * MIB)
        return found

    store = pool(budget=64, segment=4, limits=take)
    assert len(list(store._path.glob("segment-*"))) == 2
    assert "2 of 16 segments of 4 MiB" in store.trouble([])
    assert "control group /x leaves" in store.trouble([])
    room[0] = 0
    big = bundle("big", 9)
    transfer = store.acquire(big, keep=False)
    assert not transfer.kept
    assert read(transfer) == packed_bytes(big)
    small = bundle("small", 3)
    assert store.acquire(small, keep=False).kept


def test_a_pool_that_was_short_at_its_start_grows_when_there_is_room(pool, bundle, read):
    room = [0]
    store = pool(budget=8, segment=4, limits=lambda _: Available(room[0], "x"))
    assert not store.acquire(bundle("a", 3), keep=False).kept
    room[0] = 1 << 30
    read(store.acquire(bundle("b", 3), keep=False))
    assert store.has(bundle("b", 3))


def test_trouble_passes_with_the_next_copy_that_is_kept_or_with_the_model(pool, bundle, read):
    room = [0]
    store = pool(budget=8, segment=4, limits=lambda _: Available(room[0], "x"))
    a, b = bundle("a", 3), bundle("b", 3)
    assert "0 of 2 segments" in store.trouble([a, b])
    for one in (a, b):
        read(store.acquire(one, keep=False))
        assert f"no host copy of '{one.manifest.name}'" in store.trouble([a, b])
    assert "no host copy of 'a'" in store.trouble([a])
    assert "0 of 2 segments" in store.trouble([])
    read(store.acquire(a, keep=False))
    room[0] = 1 << 30
    for one in (a, b, a):
        read(store.acquire(one, keep=False))
    assert store.trouble([a, b]) is None


def test_an_unlimited_pool_without_room_evicts_and_then_streams(pool, bundle, read):
    room = [1 << 30]
    store = pool(budget=None, segment=4, limits=lambda _: Available(room[0], "free space"))
    a, b, big = bundle("a", 3), bundle("b", 3), bundle("big", 5)
    read(store.acquire(a, keep=False))
    room[0] = 0
    read(store.acquire(b, keep=False))
    assert not store.has(a)
    assert not store.acquire(big, keep=True).kept
    assert store.has(b)


def test_a_full_file_system_is_a_fallback_and_no_error(pool, bundle, read, monkeypatch):
    store = pool(budget=None, segment=4)

    def full(fd, offset, length):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    one = bundle("a", 3)
    transfer = store.acquire(one, keep=False)
    assert not transfer.kept
    assert read(transfer) == packed_bytes(one)
    assert list(store._path.glob("segment-*")) == []


def test_a_table_that_cannot_be_written_is_a_fallback_and_no_error(pool, bundle, read, monkeypatch):
    store, one = pool(budget=8), bundle("a", 3)
    real = os.pwrite

    def full(fd, data, offset):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    transfer = store.acquire(one, keep=False)
    assert not transfer.kept
    assert read(transfer) == packed_bytes(one)
    monkeypatch.setattr(os, "pwrite", real)
    assert store.acquire(one, keep=False).kept


# Files that change


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


# One filler


def test_of_many_who_want_a_model_one_reads_it_and_the_others_see_its_progress(pool, bundle, read, monkeypatch):
    """B33, fact 30: the same model is read once."""
    store, one = pool(budget=32), bundle("a", 8)
    waiting = threading.Event()
    reads = []
    real = WeightsFile.read_into

    def slow(self, buffer, **options):
        reads.append(1)
        report = options["progress"]
        report(5 * MIB)
        assert waiting.wait(10), "nobody waits"
        report(-5 * MIB)
        real(self, buffer, **options)

    monkeypatch.setattr(WeightsFile, "read_into", slow)
    results = []

    def want(progress=None):
        results.append(read(store.acquire(one, keep=False, progress=progress)))

    filler = threading.Thread(target=want)
    filler.start()
    while not reads:
        pass
    seen = []

    def progress(done):
        seen.append(done)
        waiting.set()

    others = [threading.Thread(target=want, args=(progress,)) for _ in range(2)]
    for other in others:
        other.start()
    for thread in (filler, *others):
        thread.join(20)
    assert len(reads) == 1
    assert results == [packed_bytes(one)] * 3
    assert 5 * MIB in seen
    assert counts(store) == (2, 1, 0)


def test_a_fill_that_fails_is_taken_over_by_one_who_waited(pool, bundle, read, monkeypatch):
    store, one = pool(budget=32), bundle("a", 8)
    waiting, reads, failures, results = threading.Event(), [], [], []
    real = WeightsFile.read_into

    def flaky(self, buffer, **options):
        reads.append(1)
        if len(reads) == 1:
            waiting.wait(10)
            raise BundleError("SourceChanged", "for once")
        real(self, buffer, **options)

    monkeypatch.setattr(WeightsFile, "read_into", flaky)

    def first():
        try:
            store.acquire(one, keep=False)
        except BundleError as error:
            failures.append(error)

    filler = threading.Thread(target=first)
    filler.start()
    while not reads:
        pass
    other = threading.Thread(
        target=lambda: results.append(read(store.acquire(one, keep=False, progress=lambda _: waiting.set())))
    )
    other.start()
    filler.join(20)
    other.join(20)
    assert len(failures) == 1
    assert results == [packed_bytes(one)]


def test_a_filler_without_progress_is_not_waited_for_for_ever(pool, bundle, read, monkeypatch):
    now = [0.0]

    def pause(seconds):
        now[0] += max(seconds, 1.0)

    store = pool(budget=32, clock=lambda: now[0], pause=pause)
    one = bundle("a", 8)
    stuck, go = threading.Event(), threading.Event()
    real = WeightsFile.read_into

    def hang(self, buffer, **options):
        stuck.set()
        go.wait(10)
        real(self, buffer, **options)

    monkeypatch.setattr(WeightsFile, "read_into", hang)
    filler = threading.Thread(target=lambda: store.acquire(one, keep=False).close())
    filler.start()
    stuck.wait(10)
    transfer = store.acquire(one, keep=False)
    assert not transfer.kept
    assert "has made no progress" in store.trouble([one])
    go.set()
    filler.join(20)
    assert read(transfer) == packed_bytes(one)


# Trust


def test_a_directory_that_everybody_may_write_to_is_refused(pool, tmp_path):
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool").chmod(0o777)
    with pytest.raises(HostPoolError, match="every user of the node could put weights there"):
        pool(budget=8)


def test_a_directory_of_somebody_else_is_refused(pool, tmp_path):
    (tmp_path / "pool").mkdir()
    try:
        os.chown(tmp_path / "pool", 4711, 4711)
    except PermissionError:
        pytest.skip("only root can give a directory away")
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


def test_files_that_everybody_may_write_to_are_refused_and_never_made(pool, tmp_path):
    with pytest.raises(HostPoolError, match=r"file mode 0666 .* set host.fileMode"):
        pool(budget=8, mode=0o666)


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


def test_odd_segment_sizes_are_refused(pool):
    with pytest.raises(HostPoolError, match="multiple of 2097152"):
        pool(budget=8, segment=1)


def test_a_small_budget_makes_a_small_segment(pool, bundle, read):
    store = pool(budget=5, segment=64)
    assert [path.stat().st_size for path in store._path.glob("segment-*")] == [4 * MIB]
    assert store.acquire(bundle("a", 3), keep=False).kept
