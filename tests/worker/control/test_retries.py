# SPDX-License-Identifier: Apache-2.0
"""When what failed is tried again."""

from __future__ import annotations

import pytest

from ballast_worker.control.retries import Retries


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def retries(clock):
    return Retries(clock)


def pause(retries, clock) -> float:
    """Seconds until `m` is due."""
    began = clock.now
    while list(retries.due()) != ["m"]:
        clock.now += 1.0
    return clock.now - began


def test_each_attempt_that_fails_doubles_the_pause_up_to_five_minutes(retries, clock):
    pauses = []
    for _ in range(11):
        retries.failed("m")
        pauses.append(pause(retries, clock))
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_what_is_tried_is_not_due_again_before_it_has_failed(retries, clock):
    retries.failed("m")
    clock.now = 1.0
    assert list(retries.due()) == ["m"]
    clock.now = 1e9
    assert list(retries.due()) == []
    assert "m" in retries


def test_what_is_forgotten_begins_with_the_shortest_pause(retries, clock):
    for _ in range(5):
        retries.failed("m")
    retries.forget("m")
    assert "m" not in retries
    retries.failed("m")
    assert pause(retries, clock) == 1.0
