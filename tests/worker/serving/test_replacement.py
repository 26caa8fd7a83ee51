# SPDX-License-Identifier: Apache-2.0
"""Models that come, change and go while they are called."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np

from ballast_contract.config import ResidencyWish
from ballast_contract.reasons import Reason
from ballast_worker.residency.demand import Refusal


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, 8)).astype(np.float32)


def check(answer, model, x) -> None:
    np.testing.assert_allclose(answer.outputs()[0], model.expected(x)[0], rtol=1e-6, atol=1e-6)


def test_the_old_version_serves_until_the_weights_of_the_new_one_are_there(make_rig, affine, affine_v2):
    rig = make_rig(automatic=False)
    rig.add("m", affine)
    rig.on_device(lambda: rig.residency.complete("m"))
    assert rig.add("m", affine_v2) is None
    assert rig.serves("m") is affine.bundle.manifest
    check(rig.submit("m", rows(2), batch=2), affine, rows(2))
    rig.on_device(lambda: rig.residency.complete("m"))
    assert rig.serves("m") is affine_v2.bundle.manifest
    check(rig.submit("m", rows(2), batch=2), affine_v2, rows(2))


def test_a_version_that_was_replaced_before_it_served_never_serves(make_rig, affine, affine_v2, sequence):
    rig = make_rig(automatic=False)
    rig.add("m", affine)
    rig.on_device(lambda: rig.residency.complete("m"))
    rig.add("m", sequence)
    rig.add("m", affine_v2)
    rig.on_device(lambda: rig.residency.complete("m"))
    check(rig.submit("m", rows(1), batch=1), affine_v2, rows(1))


def test_calls_that_wait_go_over_to_the_new_version(make_rig, affine, affine_v2):
    rig = make_rig(automatic=False)
    rig.add("m", affine)
    waiting = [rig.submit("m", rows(count), batch=count) for count in (1, 2, 3)]
    rig.settle()
    rig.add("m", affine_v2)
    rig.on_device(lambda: rig.residency.complete("m"))
    for answer, count in zip(waiting, (1, 2, 3), strict=True):
        check(answer, affine_v2, rows(count))


def test_calls_that_do_not_fit_the_new_version_are_told_to_look_again(make_rig, affine, sequence):
    rig = make_rig(automatic=False)
    rig.add("m", affine)
    waiting = rig.submit("m", rows(1), batch=1)
    rig.settle()
    rig.add("m", sequence)
    rig.on_device(lambda: rig.residency.complete("m"))
    refusal = waiting.refusal()
    assert refusal.reason is Reason.SOURCE_CHANGED
    assert "send the request again" in refusal.message
    assert rig.submit("m", rows(1), batch=1).refusal().reason is Reason.SOURCE_CHANGED


def test_another_wish_for_the_same_bundle_loads_no_executable_again(rig, affine):
    rig.add("m", affine)
    before = rig.engine._dispatcher.served["m"].current
    assert rig.add("m", affine, wish=ResidencyWish.DEVICE, max_batch=1) is None
    after = rig.engine._dispatcher.served["m"].current
    assert after is not before
    assert all(after.files[digest] is program for digest, program in before.files.items())
    assert rig.residency.known["m"].wish is ResidencyWish.DEVICE
    check(rig.submit("m", rows(2), batch=2), affine, rows(2))


def test_what_residency_refuses_is_not_served_and_leaves_the_old_version_alone(rig, affine, affine_v2):
    rig.residency.register_refusal = Refusal(Reason.INSUFFICIENT_DEVICE_MEMORY, "too large for this device")
    assert rig.add("m", affine).message == "too large for this device"
    assert rig.serves("m") is None
    rig.residency.register_refusal = None
    rig.add("m", affine)
    rig.residency.register_refusal = Refusal(Reason.INSUFFICIENT_DEVICE_MEMORY, "too large for this device")
    assert rig.add("m", affine_v2).message == "too large for this device"
    rig.residency.register_refusal = None
    check(rig.submit("m", rows(1), batch=1), affine, rows(1))


def test_a_removed_model_refuses_those_who_wait_and_is_forgotten_when_nothing_executes(make_rig, affine):
    rig = make_rig(automatic=False)
    rig.add("m", affine)
    waiting = rig.submit("m", rows(1), batch=1)
    rig.settle()
    gone = threading.Event()
    rig.engine.remove("m", gone.set)
    assert gone.wait(30)
    assert waiting.refusal().reason is Reason.NOT_REQUESTED
    assert rig.submit("m", rows(1), batch=1).refusal().reason is Reason.NOT_REQUESTED
    assert rig.residency.known == {}


def test_a_model_removed_while_it_executes_answers_first(make_rig, affine):
    gone = threading.Event()

    class RemoveMeanwhile:
        def begin(self, model, program) -> None:
            rig.engine._dispatcher.remove("m", gone.set)
            assert not gone.is_set()

        def end(self, model, program) -> None:
            assert not gone.is_set()

    rig = make_rig(journal=RemoveMeanwhile())
    rig.add("m", affine)
    check(rig.submit("m", rows(1), batch=1), affine, rows(1))
    assert gone.wait(30)
    assert rig.residency.held == 0


def test_only_the_last_of_several_changes_counts(make_rig, affine, affine_v2):
    rig = make_rig()
    outcomes: list[tuple[str, Refusal | None]] = []
    ended = threading.Semaphore(0)

    def record(name: str):
        def done(refusal: Refusal | None = None) -> None:
            outcomes.append((name, refusal))
            ended.release()

        return done

    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert leave.wait(30)

    rig.engine.post(hold)
    assert entered.wait(30)
    rig.engine.add(affine.servable("m"), record("first"))
    rig.engine.remove("m", record("removed"))
    rig.engine.add(affine_v2.servable("m"), record("second"))
    leave.set()
    for _ in range(3):
        assert ended.acquire(timeout=30)
    results = dict(outcomes)
    assert results["first"].reason is Reason.NOT_REQUESTED
    assert results["second"] is None
    check(rig.submit("m", rows(1), batch=1), affine_v2, rows(1))
    assert rig.engine._loading == {}


def test_nothing_is_remembered_of_names_that_came_and_went(rig, affine, tmp_path):
    broken = replace(affine, programs=[replace(one, file=tmp_path / "gone") for one in affine.programs])
    for index in range(3):
        assert rig.add(f"good {index}", affine) is None
        assert rig.add(f"bad {index}", broken) is not None
        gone = threading.Event()
        rig.engine.remove(f"good {index}", gone.set)
        rig.engine.remove("never there", lambda: None)
        assert gone.wait(30)
    assert rig.engine._loading == {}
