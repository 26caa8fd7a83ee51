# SPDX-License-Identifier: Apache-2.0
"""Byte locks of open file descriptions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ballast_worker.host.locks import Holding, Locks, held_by_others


@pytest.fixture
def fd(tmp_path):
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def test_an_exclusive_byte_is_nobody_elses_and_its_neighbour_is_free(fd):
    with Locks(fd) as mine, Locks(fd) as yours:
        assert mine.try_exclusive(1 << 40)
        assert not yours.try_exclusive(1 << 40)
        assert not yours.try_shared(1 << 40)
        assert yours.try_exclusive((1 << 40) + 1)
        assert held_by_others(fd, 1 << 40) is Holding.EXCLUSIVE


def test_a_shared_byte_is_for_many_but_nobody_alone(fd):
    with Locks(fd) as mine, Locks(fd) as yours:
        assert mine.try_shared(3)
        assert yours.try_shared(3)
        assert not yours.try_exclusive(3)
        assert held_by_others(fd, 3) is Holding.SHARED
        mine.unlock(3)
        assert yours.try_exclusive(3)


def test_an_exclusive_lock_becomes_a_shared_one_without_a_gap(fd):
    with Locks(fd) as mine, Locks(fd) as yours:
        mine.try_exclusive(3)
        assert mine.try_shared(3)
        assert yours.try_shared(3)


def test_closing_gives_everything_back(fd):
    mine = Locks(fd)
    mine.try_exclusive(3)
    mine.close()
    mine.close()
    with Locks(fd) as yours:
        assert yours.try_exclusive(3)
    assert held_by_others(fd, 3) is Holding.FREE


def test_the_kernel_gives_back_what_a_killed_process_held(fd, tmp_path):
    script = (
        "import os, sys\n"
        "from ballast_worker.host.locks import Locks\n"
        "locks = Locks(os.open(sys.argv[1], os.O_RDWR))\n"
        "locks.try_exclusive(3)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "file")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "held\n"
        with Locks(fd) as mine:
            assert not mine.try_shared(3)
            child.send_signal(signal.SIGKILL)
            child.wait()
            assert mine.try_exclusive(3)
