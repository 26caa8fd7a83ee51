# SPDX-License-Identifier: Apache-2.0
"""The device thread: answers, coalescing, deadlines, loads, refusals, failures, its journal and its end."""

from __future__ import annotations

import dataclasses
import os
import threading
from contextlib import contextmanager

import jax
import numpy as np
import pytest
from helpers.jax_events import heard

from ballast_contract.reasons import Reason
from ballast_worker.device.backend import DeviceLostError
from ballast_worker.residency.demand import Refusal
from ballast_worker.serving import executions
from ballast_worker.serving.call import Call

NO_ROOM = Refusal(Reason.INSUFFICIENT_DEVICE_MEMORY, "no room", retry_after_seconds=2.0)


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 8)).astype(np.float32)


@contextmanager
def held(rig):
    """Keep the device thread busy with something else, so that calls pile up."""
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert leave.wait(30)

    rig.engine.post(hold)
    assert entered.wait(30)
    try:
        yield
    finally:
        leave.set()


def check(answer, model, x) -> None:
    (y,) = answer.outputs()
    np.testing.assert_allclose(y, model.expected(x)[0], rtol=1e-6, atol=1e-6)


def test_an_answer_is_what_jax_computes_for_every_count_of_rows(rig, affine):
    assert rig.add("affine", affine) is None
    for count in range(1, 9):
        x = rows(count, count)
        answer = rig.submit("affine", x, batch=count)
        check(answer, affine, x)
        assert answer.outputs()[0].shape == (count, 4)
    assert rig.residency.held == 0


def test_several_dimensions_are_padded_to_the_smallest_program_and_cut_back(rig, sequence):
    rig.add("sequence", sequence)
    random = np.random.default_rng(0)
    for batch, length in ((1, 16), (3, 5), (2, 40), (1, 63)):
        inputs = [random.normal(size=(batch, length)).astype(np.float32) for _ in range(2)]
        answer = rig.submit("sequence", *inputs, batch=batch, length=length)
        for got, expected in zip(answer.outputs(), sequence.expected(*inputs), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_64_bit_inputs_are_not_narrowed(rig, typed):
    rig.add("typed", typed)
    inputs = []
    for port in typed.bundle.manifest.inputs:
        dtype = jax.numpy.bfloat16 if port.dtype == "bfloat16" else np.dtype(port.dtype)
        inputs.append(np.ones((2, 3), dtype))
    inputs[4][:] = 2**40
    inputs[11][:] = 1.0 + 2**-40
    names = [port.name for port in typed.bundle.manifest.outputs]
    outputs = dict(zip(names, rig.submit("typed", *inputs).outputs(), strict=True))
    assert outputs["out_int64"][0, 0] == 2**40 + 1
    assert outputs["out_float64"].dtype == np.float64
    assert outputs["out_float64"][0, 0] == 2.0 + 2**-40


def test_calls_that_pile_up_while_the_device_is_busy_run_together_and_each_gets_its_own_rows(rig, affine):
    rig.add("affine", affine)
    with held(rig):
        inputs = [rows(2, seed) for seed in range(4)]
        answers = [rig.submit("affine", x, batch=2) for x in inputs]
    for answer, x in zip(answers, inputs, strict=True):
        check(answer, affine, x)
    load = rig.engine.loads()["affine"]
    assert (load.requests, load.rows, load.dispatches, load.queued) == (4, 8, 1, 0)


def test_nothing_waits_for_company_while_the_device_is_idle(rig, affine):
    rig.add("affine", affine, max_delay_seconds=3600.0)
    check(rig.submit("affine", rows(1), batch=1), affine, rows(1))


def test_the_limit_of_the_spec_bounds_rows_put_together(rig, affine):
    rig.add("affine", affine, max_batch=4)
    with held(rig):
        answers = [rig.submit("affine", rows(2), batch=2) for _ in range(4)]
    for answer in answers:
        check(answer, affine, rows(2))
    assert rig.engine.loads()["affine"].dispatches == 2


def test_a_full_queue_refuses_one_more_and_names_the_limit(make_rig, affine):
    rig = make_rig(max_queue=2)
    rig.add("a", affine)
    rig.add("b", affine)
    with held(rig):
        waiting = [rig.submit("a", rows(1), batch=1) for _ in range(2)]
        third = rig.submit("a", rows(1), batch=1)
        other = rig.submit("b", rows(1), batch=1)
    refusal = third.refusal()
    assert refusal.reason is Reason.QUEUE_FULL
    assert "has 2 requests waiting, which is serving.maxQueue" in refusal.message
    for answer in (*waiting, other):
        check(answer, affine, rows(1))


def test_a_call_whose_deadline_passed_is_refused_and_not_executed(rig, affine):
    rig.add("affine", affine)
    with held(rig):
        late = rig.submit("affine", rows(1), seconds=5.0, batch=1)
        patient = rig.submit("affine", rows(1), seconds=50.0, batch=1)
        rig.clock.now += 10.0
    refusal = late.refusal()
    assert refusal.reason is Reason.DEADLINE_EXCEEDED
    assert "after it had waited 10.000 s" in refusal.message
    check(patient, affine, rows(1))
    assert rig.engine.loads()["affine"].requests == 1


def test_a_model_that_is_not_served_is_refused(rig):
    assert rig.submit("nobody", rows(1), batch=1).refusal().reason is Reason.NOT_REQUESTED


def test_a_cold_model_is_loaded_for_its_caller_while_others_are_answered(make_rig, affine, affine_v2):
    rig = make_rig(automatic=False)
    rig.add("warm", affine)
    rig.add("cold", affine_v2)
    rig.on_device(lambda: rig.residency.complete("warm"))
    cold = rig.submit("cold", rows(1), batch=1)
    check(rig.submit("warm", rows(1), batch=1), affine, rows(1))
    assert not cold.arrived
    assert rig.on_device(lambda: rig.engine.queued("cold")) == 1
    rig.on_device(lambda: rig.residency.complete("cold"))
    check(cold, affine_v2, rows(1))


def test_the_weights_of_every_cold_model_are_asked_for_at_once(make_rig, affine):
    """Loads of different models overlap, and no model is asked for twice by its second caller."""
    rig = make_rig(automatic=False)
    for name in ("a", "b", "c"):
        rig.add(name, affine)
    answers = [rig.submit(name, rows(1), batch=1) for name in ("a", "b", "c", "a", "b", "c")]
    rig.settle()
    assert rig.residency.wanted == ["a", "b", "c"]
    for name in ("c", "a", "b"):
        rig.on_device(lambda name=name: rig.residency.complete(name))
    for answer in answers:
        check(answer, affine, rows(1))
    assert [rig.engine.loads()[name].dispatches for name in ("a", "b", "c")] == [1, 1, 1]


def test_a_load_that_is_refused_refuses_those_who_wait_for_it_and_nobody_else(make_rig, affine):
    rig = make_rig(automatic=False)
    rig.add("cold", affine)
    rig.add("warm", affine)
    rig.on_device(lambda: rig.residency.complete("warm"))
    waiting = [rig.submit("cold", rows(1), batch=1) for _ in range(3)]
    rig.settle()
    rig.on_device(lambda: rig.engine.refused("cold", NO_ROOM))
    assert [answer.refusal() for answer in waiting] == [NO_ROOM] * 3
    rig.on_device(lambda: rig.engine.refused("warm", NO_ROOM))  # of a version that was to replace it
    check(rig.submit("warm", rows(1), batch=1), affine, rows(1))
    rig.residency.refusals["cold"] = NO_ROOM
    assert rig.submit("cold", rows(1), batch=1).refusal() is NO_ROOM


def test_a_load_that_takes_longer_than_the_caller_waits_is_refused_at_once_and_still_begun(make_rig, affine):
    rig = make_rig(automatic=False)
    rig.add("cold", affine)
    rig.residency.load_seconds["cold"] = 30.0
    short = rig.submit("cold", rows(1), seconds=10.0, batch=1)
    refusal = short.refusal()
    assert refusal.reason is Reason.LOADING
    assert refusal.retry_after_seconds == 30.0
    assert rig.residency.wanted == ["cold"]
    long = rig.submit("cold", rows(1), seconds=31.0, batch=1)
    rig.settle()
    rig.clock.now += 25.0
    check_later = rig.submit("cold", rows(1), seconds=6.0, batch=1)
    rig.settle()
    assert not long.arrived
    assert not check_later.arrived
    rig.on_device(lambda: rig.residency.complete("cold"))
    check(long, affine, rows(1))
    check(check_later, affine, rows(1))


def test_a_deadline_ends_the_wait_for_a_load(make_rig, affine):
    rig = make_rig(automatic=False)
    rig.add("cold", affine)
    answer = rig.submit("cold", rows(1), seconds=5.0, batch=1)
    rig.settle()
    rig.clock.now += 5.0
    rig.settle()
    assert answer.refusal().reason is Reason.DEADLINE_EXCEEDED
    rig.on_device(lambda: rig.residency.complete("cold"))
    check(rig.submit("cold", rows(1), batch=1), affine, rows(1))


def test_calls_that_race_with_evictions_of_their_model_are_all_answered(make_rig, affine):
    """A request at the moment of an eviction runs after a reload; none is lost or hangs.

    vllm-project/vllm#15483, vllm-project/vllm#45326.
    """
    rig = make_rig(max_queue=1000)
    rig.add("affine", affine)
    check(rig.submit("affine", rows(1), batch=1), affine, rows(1))

    def evict() -> None:
        if "affine" in rig.residency.resident and not rig.engine.executing("affine"):
            rig.residency.evict("affine")

    answers = []
    for _ in range(100):
        rig.engine.post(evict)
        answers.append(rig.submit("affine", rows(1), batch=1))
        rig.engine.post(evict)
    for answer in answers:
        check(answer, affine, rows(1))
    assert rig.residency.held == 0


def test_executing_is_told_from_the_lease_to_the_release(make_rig, affine):
    seen = []

    class Watch:
        def begin(self, model, program) -> None:
            seen.append(("begin", model, dict(program), rig.engine.executing(model), rig.residency.held))

        def end(self, model, program) -> None:
            seen.append(("end", model, dict(program), rig.engine.executing(model), rig.residency.held))

    rig = make_rig(journal=Watch())
    rig.add("affine", affine)
    check(rig.submit("affine", rows(3), batch=3), affine, rows(3))
    rig.settle()
    assert seen == [("begin", "affine", {"batch": 4}, True, 1), ("end", "affine", {"batch": 4}, True, 1)]
    assert not rig.on_device(lambda: rig.engine.executing("affine"))
    assert rig.residency.dispatches == ["affine"]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_several_executions_may_be_under_way_and_answers_are_the_same(make_rig, affine, affine_v2, depth):
    rig = make_rig(depth=depth)
    rig.add("a", affine)
    rig.add("b", affine_v2)
    with held(rig):
        calls = [(name, rig.submit(name, rows(8, seed), batch=8), seed) for seed in range(6) for name in ("a", "b")]
    for name, answer, seed in calls:
        check(answer, affine if name == "a" else affine_v2, rows(8, seed))
    assert rig.residency.held == 0


def test_an_execution_that_fails_refuses_its_calls_and_the_next_is_answered(make_rig, affine):
    rig = make_rig()
    rig.add("bad", affine)
    rig.add("good", affine)
    check(rig.submit("bad", rows(1), batch=1), affine, rows(1))
    bundle, arrays = rig.residency.resident["bad"]
    rig.on_device(lambda: rig.residency.resident.update(bad=(bundle, arrays[::-1])))  # the runtime refuses such shapes
    with held(rig):
        failing = rig.submit("bad", rows(1), batch=1)
        fine = rig.submit("good", rows(1), batch=1)
    refusal = failing.refusal()
    assert refusal.reason is Reason.EXECUTION_FAILED
    assert refusal.message.startswith("executing model 'bad' (batch=1) failed: ")
    check(fine, affine, rows(1))
    assert rig.residency.held == 0
    assert rig.fatal.messages == []
    rig.on_device(lambda: rig.residency.resident.update(bad=(bundle, arrays)))
    check(rig.submit("bad", rows(1), batch=1), affine, rows(1))


def test_a_device_that_takes_no_more_work_ends_the_process_with_the_culprit_still_in_the_journal(
    make_rig, affine, monkeypatch
):
    events = []

    class Journal:
        def begin(self, model, program) -> None:
            events.append("begin")

        def end(self, model, program) -> None:
            events.append("end")

    def fatal(message: str) -> None:
        events.append(message)

    # A sticky error of the device cannot be caused without one; what asks the device is told that it is gone.
    monkeypatch.setattr(executions, "device_works", lambda _: False)
    rig = make_rig(journal=Journal(), fatal=fatal)
    rig.add("bad", affine)
    rig.on_device(lambda: rig.residency.complete("bad"))
    bundle, arrays = rig.residency.resident["bad"]
    rig.on_device(lambda: rig.residency.resident.update(bad=(bundle, arrays[::-1])))
    rig.submit("bad", rows(1), batch=1).refusal()
    assert events[0] == "begin"
    assert events[1].startswith("the device takes no more work after model 'bad' (batch=1)")
    assert events[2] == "end"


def test_an_action_that_finds_the_device_lost_ends_the_process(make_rig, affine):
    messages = []
    rig = make_rig(fatal=messages.append)
    rig.add("affine", affine)

    def lost() -> None:
        raise DeviceLostError("a compaction failed half way")

    rig.engine.post(lost)
    rig.submit("affine", rows(1), batch=1).refusal()
    assert messages == ["the device is lost: a compaction failed half way"]


def test_a_device_thread_that_cannot_go_on_ends_the_process(make_rig, affine):
    messages = []
    rig = make_rig(fatal=messages.append)
    rig.add("affine", affine)
    rig.on_device(lambda: rig.residency.complete("affine"))

    def lease(name):
        raise MemoryError("no memory for a view")

    rig.residency.lease = lease
    with held(rig):
        rig.submit("affine", rows(1), batch=1)
        rig.engine.submit(Call("other", (rows(1),), {"batch": 1}, rig.clock() + 60, lambda _: None))
    rig.engine.stop()
    assert messages == ["the device thread cannot go on: MemoryError('no memory for a view')"]
    assert rig.submit("affine", rows(1), batch=1).refusal().reason is Reason.DRAINING


def test_a_caller_whose_answer_cannot_be_taken_harms_nobody(rig, affine):
    rig.add("affine", affine)

    def broken(outcome) -> None:
        raise RuntimeError("the client is gone")

    rig.engine.submit(Call("affine", (rows(1),), {"batch": 1}, rig.clock() + 60, broken))
    rig.engine.post(lambda: 1 / 0)
    check(rig.submit("affine", rows(1), batch=1), affine, rows(1))


def test_accounts_count_requests_rows_and_dispatches_and_survive_a_removal(rig, affine):
    rig.add("affine", affine)
    for count in (1, 3, 8):
        rig.submit("affine", rows(count), batch=count).outputs()
    rig.settle()
    load = rig.engine.loads()["affine"]
    assert (load.requests, load.rows, load.dispatches) == (3, 12, 3)
    assert load.queue_wait_p50 == load.queue_wait_p99 == 0.0
    gone = threading.Event()
    rig.engine.remove("affine", gone.set)
    assert gone.wait(30)
    assert rig.engine.loads() == {}
    rig.add("affine", affine)
    assert rig.engine.loads()["affine"].requests == 3


def test_a_stopping_engine_answers_or_refuses_every_call_and_takes_nothing_new(make_rig, affine):
    rig = make_rig()
    rig.add("affine", affine)
    with held(rig):
        waiting = [rig.submit("affine", rows(1), batch=1) for _ in range(3)]
        stopper = threading.Thread(target=rig.engine.stop)
        stopper.start()
        while rig.engine._admitting:
            pass
        late = rig.submit("affine", rows(1), batch=1)
    stopper.join(30)
    assert not stopper.is_alive()
    for answer in waiting:
        if isinstance(answer.outcome(), Refusal):
            assert answer.refusal().reason is Reason.DRAINING
        else:
            check(answer, affine, rows(1))
    assert late.refusal().reason is Reason.DRAINING
    assert rig.submit("affine", rows(1), batch=1).refusal().reason is Reason.DRAINING


def test_what_cannot_be_answered_before_the_end_is_refused(make_rig, affine):
    rig = make_rig(automatic=False)
    rig.add("cold", affine)
    answer = rig.submit("cold", rows(1), batch=1)
    rig.settle()
    rig.engine.stop()
    assert answer.refusal().reason is Reason.DRAINING
    assert rig.add("cold", affine).reason is Reason.DRAINING
    gone = threading.Event()
    rig.engine.remove("cold", gone.set)
    assert gone.is_set()


def test_a_damaged_executable_is_not_loaded(rig, affine, tmp_path):
    file = tmp_path / "x.executable"
    file.write_bytes(affine.programs[0].file.read_bytes() + b"x")
    damaged = dataclasses.replace(affine, programs=(dataclasses.replace(affine.programs[0], file=file),))
    refusal = rig.add("affine", damaged)
    assert refusal.reason is Reason.LOAD_FAILED_WILL_RETRY
    assert f"the builder wrote {affine.programs[0].digest}" in refusal.message
    file.unlink()
    assert "cannot be read: No such file" in rig.add("affine", damaged).message
    os.mkfifo(file)
    assert "x.executable is not a regular file" in rig.add("affine", damaged).message
    assert rig.serves("affine") is None


def test_loading_and_running_executables_compiles_nothing(make_rig, affine, sequence):
    x = rows(3)
    with heard() as events:
        rig = make_rig()
        assert rig.add("affine", affine) is None
        assert rig.add("sequence", sequence) is None
        answers = [
            rig.submit("affine", x, batch=3),
            rig.submit("sequence", np.ones((1, 5), np.float32), np.ones((1, 5), np.float32), batch=1, length=5),
        ]
        for answer in answers:
            answer.outputs()
        assert events == []
    check(answers[0], affine, x)
