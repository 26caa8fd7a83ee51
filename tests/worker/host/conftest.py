# SPDX-License-Identifier: Apache-2.0
"""Host pools in a folder of the test; bundles with real weights; other workers; small file systems in memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest
from helpers.plain_bundles import random_bundle
from helpers.pool_worker import Nursery, Worker

from ballast_worker.host.limits import Available
from ballast_worker.host.pool import HostPool

MIB = 1 << 20


@pytest.fixture
def bundle(tmp_path):
    """Makes bundles of so many MiB, by name; each name has weights of its own."""

    def make(name: str, mib: float, *, seed: int | None = None):
        seed = sum(name.encode()) if seed is None else seed
        return random_bundle(tmp_path / "models" / name, int(mib * MIB), seed=seed, pieces=2, name=name)

    (tmp_path / "models").mkdir()
    return make


@pytest.fixture
def pool(tmp_path):
    """Makes pools on one directory; sizes in MiB; nothing is ever short unless the test says so."""
    opened = []

    def make(*, budget: float | None, segment: int = 8, directory: Path | None = None, **options) -> HostPool:
        options.setdefault("limits", lambda _: Available(1 << 40, "nothing"))
        made = HostPool(
            directory=directory or tmp_path / "pool",
            budget=None if budget is None else int(budget * MIB),
            segment_bytes=segment * MIB,
            ring_bytes=4 * MIB,
            **options,
        )
        opened.append(made)
        return made

    yield make
    for one in opened:
        one.close()


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    """Makes other workers."""
    made = Nursery(tmp_path_factory.mktemp("nursery"))
    yield made
    made.close()


@pytest.fixture
def worker(nursery, tmp_path):
    """Starts other workers on the pool's directory; the budget is in MiB."""
    started = []

    def start(*, budget: float | None, wait: bool = True) -> Worker:
        started.append(nursery.worker(tmp_path / "pool", None if budget is None else int(budget * MIB)))
        if wait:
            assert started[-1].answer() == "ready"
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def read():
    """The bytes that a transfer brings; closes it."""

    def take(transfer) -> bytes:
        parts = {}
        for chunk in transfer.chunks():
            parts[chunk.offset] = bytes(chunk.data)
            if chunk.release is not None:
                chunk.release()
        transfer.close()
        end = 0
        for offset in sorted(parts):
            assert offset == end, "chunks leave a gap or overlap"
            end += len(parts[offset])
        return b"".join(parts[offset] for offset in sorted(parts))

    return take


@contextlib.contextmanager
def mounted(folder: Path, size: str):
    """A file system in memory."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0755", "none", folder], check=True)
    yield folder
    # Whoever still has a file open in it does not hold it up.
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def small_mount(tmp_path):
    """Shared memory of 64 MiB, as containers have it by default."""
    with mounted(tmp_path / "shm", "64m") as folder:
        yield folder


@pytest.fixture
def big_mount(tmp_path):
    """Shared memory in which only a memory limit is felt."""
    with mounted(tmp_path / "shm", "1g") as folder:
        yield folder
