# SPDX-License-Identifier: Apache-2.0
"""Liveness is about threads that hang, and about nothing else."""

from __future__ import annotations

from ballast_worker.control.watchdog import STALL_SECONDS, Watchdog


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Inbox:
    """The device thread's inbox; nobody takes anything out of it but the test."""

    def __init__(self):
        self.actions = []

    def post(self, action):
        self.actions.append(action)


def test_a_loop_that_turns_is_alive_however_long_it_lives():
    clock = Clock()
    watchdog = Watchdog(clock)
    for _ in range(10):
        clock.now += STALL_SECONDS
        watchdog.turned(None)
        assert watchdog.fault() is None


def test_a_loop_that_stands_still_is_a_fault():
    clock = Clock()
    watchdog = Watchdog(clock)
    clock.now += STALL_SECONDS + 1
    assert "control loop" in watchdog.fault()


def test_a_device_thread_that_answers_is_asked_again():
    clock, inbox = Clock(), Inbox()
    watchdog = Watchdog(clock)
    for _ in range(3):
        watchdog.turned(inbox)
        watchdog.turned(inbox)
        assert len(inbox.actions) == 1
        inbox.actions.pop()()
        clock.now += STALL_SECONDS
        watchdog.turned(None)
        assert watchdog.fault() is None


def test_a_device_thread_that_never_answers_is_a_fault():
    clock, inbox = Clock(), Inbox()
    watchdog = Watchdog(clock)
    watchdog.turned(inbox)
    clock.now += STALL_SECONDS + 1
    watchdog.turned(inbox)
    assert "device thread" in watchdog.fault()
