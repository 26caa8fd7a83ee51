# SPDX-License-Identifier: Apache-2.0
"""What the arena's bookkeeping decides, one case at a time."""

from __future__ import annotations

import pytest

from ballast_worker.device import arena as arena_module
from ballast_worker.device.arena import Arena
from ballast_worker.device.memory import DeviceMemoryError

K = 256


def ready(arena: Arena, key: str, units: int) -> int:
    extent = arena.place(key, units * K, pinned=False)
    arena.activate(key)
    return extent.offset // K


def test_the_smallest_hole_that_fits_is_taken_and_the_lowest_among_equals() -> None:
    arena = Arena(20 * K)
    for key, units in {"a": 5, "w1": 1, "b": 3, "w2": 1, "c": 3, "w3": 1}.items():
        ready(arena, key, units)
    for key in "abc":
        arena.release(key)
    assert ready(arena, "x", 3) == 6
    assert ready(arena, "y", 3) == 10
    assert ready(arena, "z", 4) == 0


def test_the_previous_place_is_taken_when_that_cuts_no_hole_in_two() -> None:
    arena = Arena(12 * K)
    for key in "abcd":
        ready(arena, key, 3)
    for key in "dcb":
        arena.release(key)
    assert ready(arena, "d", 3) == 9
    assert ready(arena, "c", 3) == 6
    for key in "dc":
        arena.release(key)
    assert ready(arena, "c", 3) == 3, "its old place is in the middle of the hole: best fit instead"


def test_previous_places_are_forgotten_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "REMEMBERED", 2)
    arena = Arena(4 * K)
    for key in "abcd":
        ready(arena, key, 1)
    for key in "abcd":
        arena.release(key)
    assert list(arena._previous) == ["c", "d"]


@pytest.mark.parametrize("nbytes", [1, 255, 257, -256])
def test_sizes_that_are_no_multiples_of_256_are_refused(nbytes: int) -> None:
    with pytest.raises(DeviceMemoryError, match="multiples of 256"):
        Arena(4 * K).place("a", nbytes, pinned=False)


def test_a_capacity_that_is_no_multiple_of_256_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 256"):
        Arena(1000)
