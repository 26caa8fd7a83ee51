# SPDX-License-Identifier: Apache-2.0
"""The work queue: order, single flight, back-off, deadlines."""

from __future__ import annotations

import random
import sys
import threading
import time

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ballast_operator.cluster.queue import WorkQueue


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> WorkQueue[str]:
    return WorkQueue(clock=clock, rng=random.Random(1))


def test_keys_come_out_in_the_order_in_which_they_became_due(queue, clock):
    queue.add("late", after=5)
    queue.add("first")
    clock.now += 1
    queue.add("second")
    assert [queue.take(), queue.take(), queue.take()] == ["first", "second", None]
    clock.now += 5
    assert queue.take() == "late"


def test_a_key_is_in_flight_once_and_runs_again_when_it_was_added_meanwhile(queue):
    queue.add("a")
    assert queue.take() == "a"
    queue.add("a")
    queue.add("a")
    assert queue.take() is None
    queue.done("a")
    assert queue.take() == "a"
    queue.done("a")
    assert queue.take() is None


def test_an_earlier_due_time_wins_over_a_later_one(queue, clock):
    queue.add("a", after=60)
    queue.add("a", after=2)
    queue.add("a", after=30)
    assert queue.next_due() == clock.now + 2
    clock.now += 2
    assert queue.take() == "a"
    queue.done("a")
    assert queue.next_due() is None


def test_requeue_after_is_kept_beside_an_event_that_comes_first(queue, clock):
    queue.add("a")
    queue.take()
    queue.done("a", requeue_after=15)
    assert queue.next_due() == clock.now + 15
    queue.add("a")
    assert queue.take() == "a"


def test_failures_back_off_exponentially_with_jitter_up_to_the_limit(clock):
    queue: WorkQueue[str] = WorkQueue(clock=clock, rng=random.Random(7), base=0.01, limit=1.0)
    delays = []
    queue.add("a")
    for _ in range(12):
        clock.now = queue.next_due()
        assert queue.take() == "a"
        delays.append(queue.failed("a"))
    for index, delay in enumerate(delays):
        full = min(1.0, 0.01 * 2**index)
        assert full / 2 <= delay <= full


def test_success_forgets_failures(queue, clock):
    queue.add("a")
    for _ in range(10):
        clock.now = queue.next_due()
        queue.take()
        queue.failed("a")
    clock.now = queue.next_due()
    queue.take()
    queue.done("a")
    queue.add("a")
    clock.now = queue.next_due()
    queue.take()
    assert queue.failed("a") <= 0.005


def test_an_event_brings_a_failing_key_back_soon_but_not_at_once(queue, clock):
    queue.add("a")
    for _ in range(16):
        clock.now = queue.next_due()
        queue.take()
        queue.failed("a")
    waits = queue.next_due() - clock.now
    assert waits > 20
    queue.add("a")
    assert queue.next_due() == clock.now + 1.0


def test_a_key_that_failed_for_hours_is_tried_again_within_a_minute(queue, clock):
    """An API server that is back after minutes finds everybody at work within 90 s."""
    queue.add("a")
    for _ in range(200):
        clock.now = queue.next_due()
        queue.take()
        queue.failed("a")
    assert queue.next_due() - clock.now <= 60


def test_what_the_server_asks_to_wait_is_waited(queue, clock):
    queue.add("a")
    queue.take()
    assert 30 <= queue.failed("a", retry_after=30) <= 33


def test_spacing_takes_bursts_together(clock):
    queue: WorkQueue[str] = WorkQueue(clock=clock, rng=random.Random(1), spacing=lambda _: 0.5)
    queue.add("a")
    assert queue.take() == "a"
    queue.done("a")
    queue.add("a")
    assert queue.take() is None
    assert queue.next_due() == clock.now + 0.5


def test_a_lower_lane_goes_first_among_what_is_due(clock):
    queue: WorkQueue[str] = WorkQueue(clock=clock, rng=random.Random(1), lane=len)
    for key in ("long", "longer", "x"):
        queue.add(key)
    queue.add("y", after=5)
    assert [queue.take(), queue.take(), queue.take(), queue.take()] == ["x", "long", "longer", None]
    assert queue.next_due() == clock.now + 5


def test_keys_at_rest_are_forgotten(clock):
    queue: WorkQueue[int] = WorkQueue(clock=clock, rng=random.Random(1), spacing=lambda _: 0.5)
    for key in range(1000):
        queue.add(key)
        queue.take()
        queue.done(key)
        clock.now += 0.1
    assert len(queue._entries) < 50


@pytest.fixture
def eager_threads():
    """Threads take turns after every few steps."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_threads")
def test_the_depth_is_told_to_another_thread_while_keys_come():
    queue: WorkQueue[int] = WorkQueue(clock=time.monotonic, rng=random.Random(1))
    for key in range(2_000):
        queue.add(key)
    told: list[int] = []
    faults: list[Exception] = []

    def ask() -> None:
        try:
            told.extend(queue.depth() for _ in range(50))
        except RuntimeError as error:
            faults.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    key = 2_000
    while asking.is_alive():
        queue.add(key)
        assert queue.take() is not None
        queue.done(key - 2_000)
        key += 1
    asking.join()
    assert faults == []
    assert len(told) == 50


class QueueMachine(RuleBasedStateMachine):
    """Nothing that was added is ever lost, and nothing runs twice at once."""

    keys = st.sampled_from("abcd")

    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed):
        self.clock = Clock()
        self.queue: WorkQueue[str] = WorkQueue(clock=self.clock, rng=random.Random(seed), spacing=lambda _: 0.25)
        self.owed: set[str] = set()
        self.running: set[str] = set()

    @rule(key=keys, after=st.sampled_from([0.0, 1.0, 20.0]))
    def add(self, key, after):
        self.queue.add(key, after=after)
        self.owed.add(key)

    @rule()
    def take(self):
        key = self.queue.take()
        if key is not None:
            assert key not in self.running
            self.running.add(key)
            self.owed.discard(key)

    @rule(data=st.data(), good=st.booleans())
    def finish(self, data, good):
        if not self.running:
            return
        key = data.draw(st.sampled_from(sorted(self.running)))
        self.running.discard(key)
        if good:
            self.queue.done(key)
        else:
            self.queue.failed(key)
            self.owed.add(key)

    @rule(seconds=st.sampled_from([0.01, 0.5, 30.0]))
    def wait(self, seconds):
        self.clock.now += seconds

    @invariant()
    def what_is_owed_is_scheduled(self):
        if not hasattr(self, "queue"):
            return
        scheduled = {k for k, e in self.queue._entries.items() if e.due is not None}
        assert self.owed <= scheduled

    def teardown(self):
        if not hasattr(self, "queue"):
            return
        for key in list(self.running):
            self.queue.done(key)
        self.clock.now += 10_000
        seen = set()
        while (key := self.queue.take()) is not None:
            seen.add(key)
            self.queue.done(key)
        assert self.owed <= seen


TestQueueMachine = QueueMachine.TestCase
