# SPDX-License-Identifier: Apache-2.0
"""The free list against the obvious model: a set of free bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_worker.device.freelist import FreeList

SIZE = 24


def blocks_of(free: set[int]) -> list[tuple[int, int]]:
    blocks: list[tuple[int, int]] = []
    for byte in sorted(free):
        if blocks and blocks[-1][0] + blocks[-1][1] == byte:
            blocks[-1] = (blocks[-1][0], blocks[-1][1] + 1)
        else:
            blocks.append((byte, 1))
    return blocks


@given(st.lists(st.tuples(st.booleans(), st.integers(0, SIZE - 1), st.integers(1, 8)), max_size=60))
def test_it_agrees_with_a_set_of_free_bytes(steps: list[tuple[bool, int, int]]) -> None:
    blocks, free = FreeList(SIZE), set(range(SIZE))
    for taking, offset, nbytes in steps:
        wanted = set(range(offset, offset + nbytes))
        if taking and wanted <= free:
            blocks.take(offset, nbytes)
            free -= wanted
        elif taking:
            with pytest.raises(ValueError, match="not free"):
                blocks.take(offset, nbytes)
        elif not wanted & free and max(wanted) < SIZE:
            blocks.give(offset, nbytes)
            free |= wanted
        elif wanted & free:
            with pytest.raises(ValueError, match="free already"):
                blocks.give(offset, nbytes)
        expected = blocks_of(free)
        assert blocks.blocks() == expected
        assert blocks.total == len(free)
        assert blocks.largest == max((size for _, size in expected), default=0)
        for need in range(1, SIZE + 1):
            fitting = [(size, offset) for offset, size in expected if size >= need]
            assert blocks.best_fit(need) == (min(fitting)[1] if fitting else None)


def test_a_list_of_nothing_has_nothing() -> None:
    blocks = FreeList(0)
    assert (blocks.total, blocks.largest, blocks.blocks(), blocks.best_fit(1)) == (0, 0, [], None)
