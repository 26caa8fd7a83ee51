# SPDX-License-Identifier: Apache-2.0
"""Queues and the choice of the next model: order, bounds, deadlines, fairness."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ballast_worker.build.builder import BuiltProgram
from ballast_worker.serving.call import Call
from ballast_worker.serving.programs import ProgramTable
from ballast_worker.serving.queues import ModelQueue, Waiting
from ballast_worker.serving.scheduler import Scheduler


def make_queue(*sizes: int, seconds: float = 0.001, limit: int = 100, max_delay: float = 0.0) -> ModelQueue:
    programs = [BuiltProgram((("batch", size),), Path("x"), "sha256:0", 0, 0, 0, seconds) for size in sizes]
    return ModelQueue(ProgramTable(programs, "batch", 0), limit, max_delay)


def waiting(
    queue: ModelQueue, sequence: int, *, rows: int = 1, deadline: float = 100.0, arrived: float = 0.0
) -> Waiting:
    bucket = queue.table.bucket({"batch": rows})
    assert bucket is not None
    return Waiting(Call("m", (), {"batch": rows}, deadline, lambda _: None), rows, arrived, bucket, sequence)


def test_calls_leave_in_order_of_arrival():
    queue = make_queue(1)
    for sequence in range(5):
        queue.put(waiting(queue, sequence))
    assert [queue.take().members[0].sequence for _ in range(5)] == [0, 1, 2, 3, 4]
    assert not queue


def test_a_call_that_has_left_is_not_kept_until_its_deadline():
    queue = make_queue(1)
    inputs = np.zeros(8)
    known = weakref.ref(inputs)
    queue.put(
        Waiting(Call("m", (inputs,), {"batch": 1}, 3600.0, lambda _: None), 1, 0.0, queue.table.bucket({"batch": 1}), 0)
    )
    del inputs
    queue.take()
    assert known() is None


def test_calls_of_different_programs_are_not_mixed_and_the_oldest_goes_first():
    programs = [
        BuiltProgram((("batch", 4), ("length", length)), Path("x"), "sha256:0", 0, 0, 0, 0.001) for length in (16, 64)
    ]
    queue = ModelQueue(ProgramTable(programs, "batch", 0), 100, 0.0)
    for sequence, length in enumerate((60, 10, 64, 16)):
        dimensions = {"batch": 1, "length": length}
        bucket = queue.table.bucket(dimensions)
        queue.put(Waiting(Call("m", (), dimensions, 9.0, lambda _: None), 1, 0.0, bucket, sequence))
    assert [member.sequence for member in queue.take().members] == [0, 2]
    assert [member.sequence for member in queue.take().members] == [1, 3]


def test_a_batch_that_is_not_full_lets_others_go_first_until_its_delay_is_over():
    patient, other = make_queue(4, max_delay=0.5), make_queue(1)
    scheduler = Scheduler()
    patient.put(waiting(patient, 1, arrived=10.0))
    other.put(waiting(other, 2, arrived=10.0))
    scheduler.enter("patient", patient)
    scheduler.enter("other", other)
    assert scheduler.next(10.1, busy=False) == "other"
    assert scheduler.next(10.5, busy=False) == "patient", "its delay is over and it came first"
    scheduler.leave("other")
    assert scheduler.next(10.1, busy=True) is None, "something executes, so company may still come"
    assert scheduler.next(10.1, busy=False) == "patient", "the device is idle"
    for sequence in range(3, 6):
        patient.put(waiting(patient, sequence, arrived=10.0))
    assert scheduler.next(10.1, busy=True) == "patient", "the batch is full"


def test_a_model_that_was_idle_gains_nothing_by_it():
    scheduler = Scheduler()
    busy, idle = make_queue(1, seconds=1.0), make_queue(1, seconds=1.0)
    for sequence in range(100):
        busy.put(waiting(busy, sequence))
    scheduler.enter("busy", busy)
    for _ in range(50):
        scheduler.take("busy")
    for sequence in range(100, 110):
        idle.put(waiting(idle, sequence))
    scheduler.enter("idle", idle)
    order = []
    for _ in range(10):
        name = scheduler.next(0.0, busy=False)
        order.append(name)
        scheduler.take(name)
    assert order.count("idle") == 5
    assert order[0] == "idle", "it did not have to wait for the backlog of the other"


@settings(max_examples=30)
@given(
    costs=st.lists(st.floats(0.001, 1.0), min_size=2, max_size=6),
    rounds=st.integers(10, 200),
)
def test_models_that_wait_get_equal_shares_of_the_device_whatever_they_cost(costs, rounds):
    scheduler = Scheduler()
    queues = {f"m{index}": make_queue(1, seconds=cost, limit=rounds) for index, cost in enumerate(costs)}
    sequence = 0
    for name, queue in queues.items():
        for _ in range(rounds):
            sequence += 1
            queue.put(waiting(queue, sequence))
        scheduler.enter(name, queue)
    used = dict.fromkeys(queues, 0.0)
    since = dict.fromkeys(queues, 0)
    for _ in range(rounds):
        name = scheduler.next(0.0, busy=False)
        used[name] += scheduler.take(name).program.seconds
        for other in queues:
            since[other] = 0 if other == name else since[other] + 1
        assert max(used.values()) - min(used.values()) <= 2 * max(costs) + 1e-9


class QueueMachine(RuleBasedStateMachine):
    """A queue against a list: sizes, order, deadlines."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = make_queue(1, 2, 8, limit=20)
        self.model: list[Waiting] = []
        self.sequence = 0
        self.now = 0.0

    @precondition(lambda self: not self.queue.full)
    @rule(rows=st.integers(1, 8), seconds=st.floats(0.1, 50))
    def put(self, rows, seconds) -> None:
        self.sequence += 1
        item = waiting(self.queue, self.sequence, rows=rows, deadline=self.now + seconds, arrived=self.now)
        self.queue.put(item)
        self.model.append(item)

    @precondition(lambda self: self.queue)
    @rule()
    def take(self) -> None:
        batch = self.queue.take()
        assert list(batch.members) == self.model[: len(batch.members)]
        assert batch.rows == sum(item.rows for item in batch.members) <= batch.program.rows
        del self.model[: len(batch.members)]

    @rule(seconds=st.floats(0, 30))
    def pass_time(self, seconds) -> None:
        self.now += seconds
        expired = self.queue.expire(self.now)
        gone = [item for item in self.model if item.call.deadline <= self.now]
        assert sorted(item.sequence for item in expired) == [item.sequence for item in gone]
        self.model = [item for item in self.model if item.call.deadline > self.now]

    @rule()
    def clear(self) -> None:
        assert self.queue.clear() == self.model
        self.model = []

    @invariant()
    def agrees(self) -> None:
        assert len(self.queue) == len(self.model)
        assert self.queue.full == (len(self.model) == 20)
        assert self.queue.deadline() == min((item.call.deadline for item in self.model), default=None)
        assert self.queue.oldest() is (self.model[0] if self.model else None)
        assert len(self.queue._deadlines) <= len(self.model) + self.sequence


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=30, stateful_step_count=30)
