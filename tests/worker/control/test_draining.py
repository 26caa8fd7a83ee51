# SPDX-License-Identifier: Apache-2.0
"""When a terminating worker ends."""

from __future__ import annotations

import pytest

from ballast_worker.control.draining import Draining


class Rig:
    """Admits for 100 s at most, and for 5 s at least once released."""

    def __init__(self) -> None:
        self.now, self.deserted = 0.0, False
        self.draining = Draining(100.0, linger_seconds=5.0, clock=lambda: self.now)

    def over(self, at: float) -> bool:
        self.now = at
        return self.draining.over(lambda: self.deserted)


@pytest.fixture
def rig():
    return Rig()


def test_a_worker_that_is_not_told_to_end_does_not(rig):
    rig.deserted = True
    assert not rig.over(1e9)
    assert not rig.draining.begun


def test_one_that_is_never_released_ends_when_its_time_is_up(rig):
    rig.draining.begin(serving=True)
    rig.deserted = True
    assert not rig.over(99.0)
    assert rig.over(100.0)


def test_one_that_does_not_serve_yet_ends_at_once(rig):
    rig.draining.begin(serving=False)
    assert rig.over(0.0)


def test_a_released_one_stays_for_those_who_learn_of_the_move_late_and_as_long_as_clients_are_there(rig):
    rig.draining.begin(serving=True)
    rig.now = 10.0
    assert rig.draining.release()
    rig.deserted = True
    assert not rig.over(14.0)
    rig.deserted = False
    assert not rig.over(50.0)
    rig.deserted = True
    assert rig.over(50.0)


def test_a_second_release_changes_nothing(rig):
    rig.draining.begin(serving=True)
    rig.deserted = True
    assert rig.draining.release()
    rig.now = 4.0
    assert not rig.draining.release()
    assert rig.over(5.0)


def test_clients_that_stay_do_not_keep_a_released_one_beyond_its_time(rig):
    rig.draining.begin(serving=True)
    rig.draining.release()
    assert not rig.over(99.0)
    assert rig.over(100.0)
