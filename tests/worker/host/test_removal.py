# SPDX-License-Identifier: Apache-2.0
"""A pool is removed from its node only when nobody uses it, whatever state it is in."""

from __future__ import annotations

import os
import threading

import pytest

from ballast_worker.control import main
from ballast_worker.host.directory import PoolDirectory
from ballast_worker.host.errors import HostPoolError
from ballast_worker.host.removal import remove

MIB = 1 << 20


def test_a_pool_that_somebody_uses_stays_as_it_is(pool, bundle, read):
    store, one = pool(budget=8, segment=4), bundle("a", 3)
    read(store.acquire(one, keep=False))
    assert not remove(store._path)
    assert store.has(one)
    store.close()
    assert remove(store._path)
    assert not store._path.exists()


def test_where_there_is_no_pool_there_is_nothing_to_do(tmp_path):
    assert remove(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    assert remove(tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


def test_a_pool_of_another_format_or_a_damaged_one_is_removed_too(pool):
    store = pool(budget=8, segment=4)
    path = store._path
    store.close()
    (path / "table").write_bytes(b"of a later release")
    (path / "segment-000001").unlink()
    assert remove(path)
    assert not path.exists()


def test_a_removal_that_was_killed_anywhere_is_finished_by_the_next(pool, tmp_path, monkeypatch):
    real, calls = os.unlink, []

    class Died(BaseException):
        pass

    def dies(number):
        def unlink(*args, **options):
            calls.append(args)
            if len(calls) == number:
                raise Died
            real(*args, **options)

        return unlink

    for number in (1, 2, 3):
        store = pool(budget=8, segment=4)
        store.close()
        calls.clear()
        monkeypatch.setattr(os, "unlink", dies(number))
        with pytest.raises(Died):
            remove(store._path)
        monkeypatch.setattr(os, "unlink", real)
        assert remove(store._path)
        assert not store._path.exists()


def test_a_directory_with_anything_else_in_it_is_left_alone(pool):
    store = pool(budget=8, segment=4)
    store.close()
    (store._path / "notes").write_text("mine")
    with pytest.raises(HostPoolError, match="it has notes; left alone"):
        remove(store._path)
    assert (store._path / "table").exists()


def test_a_link_is_not_followed(tmp_path, pool):
    store = pool(budget=8, segment=4)
    store.close()
    (tmp_path / "link").symlink_to(store._path)
    with pytest.raises(HostPoolError, match="must be a directory"):
        remove(tmp_path / "link")
    assert (store._path / "table").exists()


def test_a_worker_that_opens_the_pool_meanwhile_finds_it_gone_and_opens_it_anew_later(pool, tmp_path, monkeypatch):
    store = pool(budget=8, segment=4)
    store.close()
    path, unlinking, go_on, outcome = store._path, threading.Event(), threading.Event(), []
    real = os.unlink

    def unlink(name, **options):
        unlinking.set()
        assert go_on.wait(10)
        real(name, **options)

    monkeypatch.setattr(os, "unlink", unlink)
    remover = threading.Thread(target=lambda: outcome.append(remove(path)))
    remover.start()
    assert unlinking.wait(10)
    waits = threading.Event()
    recover = PoolDirectory.locked

    def locked(self):
        waits.set()
        return recover(self)

    monkeypatch.setattr(PoolDirectory, "locked", locked)

    def start():
        try:
            pool(budget=8, segment=4)
        except HostPoolError as error:
            outcome.append(str(error))

    worker = threading.Thread(target=start)
    worker.start()
    assert waits.wait(10)
    go_on.set()
    for thread in (remover, worker):
        thread.join(20)
    monkeypatch.setattr(os, "unlink", real)
    assert sorted(map(str, outcome)) == ["True", f"the host pool at {path} was removed meanwhile: try again"]
    pool(budget=8, segment=4)
    assert len(list(path.glob("segment-*"))) == 2


def test_the_command_line_says_what_became_of_it(pool, capsys):
    store = pool(budget=8, segment=4)
    path = str(store._path)
    assert main.main(["regions", "--remove", path]) == 1
    assert f"a process uses the host pool at {path}" in capsys.readouterr().err
    store.close()
    for _ in range(2):
        assert main.main(["regions", "--remove", path]) == 0
        assert capsys.readouterr().out == f"{path}: no host pool any more\n"
