# SPDX-License-Identifier: Apache-2.0
"""What a worker's messages change."""

from __future__ import annotations

import pytest

from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.fleet.channel import Member
from ballast_operator.fleet.view import OutOfOrder, View

MEMBER = Member("ns", "default", "default-1", "uid-1", "10.0.0.1")


def model(name: str, phase=pb.MODEL_PHASE_LOADED, tier=pb.TIER_DEVICE, **fields) -> pb.ModelState:
    fields.setdefault("residency", pb.RESIDENCY_DEVICE)
    return pb.ModelState(name=name, object=f"ns/{name}", phase=phase, tier=tier, **fields)


def full(
    *models: pb.ModelState, instance: str = "i", sequence: int = 5, phase=pb.WORKER_PHASE_READY
) -> pb.WatchResponse:
    state = pb.WorkerState(condition=pb.WorkerCondition(phase=phase), models=models)
    return pb.WatchResponse(instance_id=instance, sequence=sequence, epoch=1, full=state)


def change(sequence: int, *models: pb.ModelState, instance: str = "i", **fields) -> pb.WatchResponse:
    return pb.WatchResponse(
        instance_id=instance, sequence=sequence, epoch=1, change=pb.StateChange(models=models, **fields)
    )


@pytest.fixture
def view() -> View:
    found = View(MEMBER, now=0.0)
    found.take(full(model("a"), model("b", residency=pb.RESIDENCY_UNPINNED)), now=1.0)
    return found


def test_before_the_first_report_a_worker_is_awaited_and_then_stale():
    view = View(MEMBER, now=100.0)
    assert view.awaited(109.9)  # noqa: PGH005 - no mock
    assert not view.stale(109.9)
    assert view.stale(110.0)
    assert not view.awaited(110.0)


def test_a_full_state_makes_it_known_and_every_model_of_it_urgent(view):
    assert view.known
    assert view.can_call("a")
    difference = view.take(full(model("c")), now=2.0)
    assert difference.urgent == {"ns/a", "ns/b", "ns/c"}
    assert difference.worker
    assert not view.can_call("a")


def test_another_instance_begins_a_new_sequence(view):
    view.take(full(model("a"), instance="other", sequence=0), now=3.0)
    assert (view.instance_id, view.sequence) == ("other", 0)


def test_a_heartbeat_changes_nothing_but_the_time(view):
    message = pb.WatchResponse(instance_id="i", sequence=5, epoch=1, heartbeat=pb.Heartbeat())
    difference = view.take(message, now=9.0)
    assert (difference.urgent, difference.figures, difference.worker, difference.device) == (set(), set(), False, False)
    assert view.heard_at == 9.0


def test_a_change_that_does_not_follow_is_refused(view):
    with pytest.raises(OutOfOrder, match="sequence 8 after 5"):
        view.take(change(8, model("a")), now=2.0)
    with pytest.raises(OutOfOrder):
        view.take(change(6, model("a"), instance="other"), now=2.0)


def test_a_swap_of_an_unpinned_model_is_a_figure_and_of_a_pinned_one_urgent(view):
    swapped = model("b", phase=pb.MODEL_PHASE_PREPARED, tier=pb.TIER_HOST, residency=pb.RESIDENCY_UNPINNED)
    difference = view.take(change(6, swapped), now=2.0)
    assert (difference.urgent, difference.figures) == (set(), {"ns/b"})
    difference = view.take(change(7, model("a", tier=pb.TIER_HOST)), now=2.0)
    assert (difference.urgent, difference.figures) == ({"ns/a"}, set())


def test_counters_alone_wake_nobody(view):
    busy = model("b", residency=pb.RESIDENCY_UNPINNED, requests_total=7, compute_seconds_total=1.0)
    difference = view.take(change(6, busy), now=2.0)
    assert (difference.urgent, difference.figures) == (set(), set())


def test_a_failure_is_urgent(view):
    failed = model("b", residency=pb.RESIDENCY_UNPINNED, failure=pb.Failure(reason="SourceChanged", message="x"))
    assert view.take(change(6, failed), now=2.0).urgent == {"ns/b"}


def test_a_model_that_is_gone_is_urgent_and_forgotten(view):
    difference = view.take(change(6, removed=["a"]), now=2.0)
    assert difference.urgent == {"ns/a"}
    assert "a" not in view.models


def test_a_change_of_phase_makes_every_model_of_the_worker_urgent(view):
    condition = pb.WorkerCondition(phase=pb.WORKER_PHASE_DRAINING)
    difference = view.take(change(6, condition=condition), now=2.0)
    assert difference.urgent == {"ns/a", "ns/b"}
    assert difference.worker
    assert view.can_call("a")


def test_a_name_that_passes_to_another_object_is_urgent_for_both(view):
    other = model("a")
    other.object = "ns/z"
    assert view.take(change(6, other), now=2.0).urgent == {"ns/a", "ns/z"}


def test_a_worker_that_does_not_serve_can_be_called_for_nothing():
    view = View(MEMBER, now=0.0)
    view.take(full(model("a"), phase=pb.WORKER_PHASE_REFUSED), now=1.0)
    assert not view.can_call("a")


@pytest.mark.parametrize("phase", [pb.MODEL_PHASE_PENDING, pb.MODEL_PHASE_BUILDING, pb.MODEL_PHASE_REFUSED])
def test_a_model_that_is_not_prepared_cannot_be_called(phase):
    view = View(MEMBER, now=0.0)
    view.take(full(model("a", phase=phase)), now=1.0)
    assert not view.can_call("a")


def test_an_ipv6_address_is_dialled_in_brackets():
    assert Member("ns", "b", "p", "u", "fd00::1").address == "[fd00::1]:8003"
    assert MEMBER.address == "10.0.0.1:8003"
