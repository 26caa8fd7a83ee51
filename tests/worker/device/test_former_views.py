# SPDX-License-Identifier: Apache-2.0
"""Views come back with the model that comes back to the same place, and only then."""

from __future__ import annotations

from ballast_worker.bundle.layout import TensorSpec, pack
from ballast_worker.device.former_views import DROPPED_AT_ONCE, FormerViews

LAYOUT = pack([TensorSpec("w", "float32", (4,))])


def test_views_are_taken_back_once() -> None:
    former, views = FormerViews(), [object()]
    former.put("a", 256, LAYOUT, views)
    assert former.take("a", 256, LAYOUT) is views
    assert former.take("a", 256, LAYOUT) is None


def test_another_place_or_another_layout_has_no_former_views() -> None:
    former = FormerViews()
    former.put("a", 256, LAYOUT, [object()])
    assert former.take("a", 512, LAYOUT) is None
    assert former.take("a", 256, pack([TensorSpec("w", "float32", (4,))])) is None
    assert former.take("b", 256, LAYOUT) is None


def test_the_last_place_of_a_model_counts() -> None:
    former, later = FormerViews(), [object()]
    former.put("a", 256, LAYOUT, [object()])
    former.put("a", 512, LAYOUT, later)
    assert former.take("a", 256, LAYOUT) is None
    assert former.take("a", 512, LAYOUT) is later


def test_the_oldest_go_when_there_are_too_many() -> None:
    former = FormerViews(most=4)
    for key in "abc":
        former.put(key, 0, LAYOUT, [object(), object()])
    assert former.take("a", 0, LAYOUT) is None
    assert former.take("b", 0, LAYOUT) is not None
    assert former.take("c", 0, LAYOUT) is not None


class Counted:
    alive = 0

    def __init__(self) -> None:
        Counted.alive += 1

    def __del__(self) -> None:
        Counted.alive -= 1


def test_views_are_dropped_a_few_at_a_time_and_never_by_whoever_frees_an_extent() -> None:
    many = DROPPED_AT_ONCE + 5
    former = FormerViews(most=many - 1)
    former.put("a", 0, LAYOUT, [Counted() for _ in range(many)])
    assert Counted.alive == many
    former.drain()
    assert Counted.alive == 5
    former.drain()
    former.drain()
    assert Counted.alive == 0


def test_views_that_come_faster_than_they_are_dropped_do_not_pile_up() -> None:
    """A model of many small tensors is copied in one piece, and so drained after once."""
    former, many = FormerViews(most=100), 600
    for _ in range(50):
        former.put("a", 0, LAYOUT, [Counted() for _ in range(many)])
        former.drain()
    assert Counted.alive == 100
    former.clear()


def test_clearing_drops_everything() -> None:
    former = FormerViews()
    former.put("a", 0, LAYOUT, [Counted()])
    former.clear()
    assert Counted.alive == 0
