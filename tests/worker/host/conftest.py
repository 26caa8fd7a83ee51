# SPDX-License-Identifier: Apache-2.0
"""Host pools in a folder of the test; bundles with real weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.plain_bundles import random_bundle

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
        data = b""
        for offset in sorted(parts):
            assert offset == len(data), "chunks leave a gap or overlap"
            data += parts[offset]
        return data

    return take
