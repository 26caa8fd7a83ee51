# SPDX-License-Identifier: Apache-2.0
"""Which pods are created, drained and deleted, and what is wrong with one."""

from __future__ import annotations

import dataclasses

import pytest
from helpers.reconcile_objects import Builder
from hypothesis import given
from hypothesis import strategies as st

from ballast_contract.reasons import Reason
from ballast_operator.cluster.resources import BUDGETS
from ballast_operator.reconcile import naming
from ballast_operator.reconcile.pods import Trouble, Wanted, plan, read, worst

WANTED = Wanted(replicas=2, spec_hash="spec", template_hash="template", update_token="")


def wanted(replicas: int, **fields: str) -> Wanted:
    return Wanted(
        **{"replicas": replicas, "spec_hash": "spec", "template_hash": "template", "update_token": "", **fields}
    )


def deleted(found) -> list[str]:
    return [pod.name for pod, _ in found.delete]


def test_missing_pods_are_created_and_terminating_and_finished_ones_do_not_count(build: Builder):
    pods = [build.pod("a"), build.pod("b", terminating=True), build.pod("c", finished=True, ready=False)]
    found = plan(wanted(3), pods, models={}, movable=True)
    assert found.create == 2
    assert deleted(found) == ["c"]


def test_nothing_is_done_when_all_is_as_wanted(build: Builder):
    assert plan(WANTED, [build.pod("a"), build.pod("b")], models={}, movable=True) == plan(
        wanted(0), [], models={}, movable=False
    )


def test_a_surplus_goes_unready_and_empty_first_and_busy_ones_are_drained(build: Builder):
    pods = [build.pod("a"), build.pod("b"), build.pod("c", ready=False), build.pod("d")]
    found = plan(wanted(1), pods, models={"uid-a": 5, "uid-b": 2, "uid-d": 0}, movable=True)
    assert deleted(found) == ["c", "d"]
    assert [pod.name for pod in found.drain] == ["b"]
    assert not found.updating


def test_a_drain_goes_on_with_the_worker_that_it_began_with(build: Builder):
    pods = [build.pod("a"), build.pod("b")]
    first = plan(wanted(1), pods, models={"uid-a": 5, "uid-b": 4}, movable=True)
    later = plan(wanted(1), pods, models={"uid-a": 7, "uid-b": 2}, movable=True)
    assert first.drain == later.drain == (pods[1],)
    done = plan(wanted(1), pods, models={"uid-a": 9}, movable=True)
    assert deleted(done) == ["b"]


def test_a_pool_that_is_scaled_to_nothing_moves_nothing(build: Builder):
    found = plan(wanted(0), [build.pod("a"), build.pod("b")], models={"uid-a": 5}, movable=True)
    assert sorted(deleted(found)) == ["a", "b"]


def test_a_changed_spec_drains_one_ready_worker_at_a_time(build: Builder):
    pods = [build.pod("a", spec_hash="old"), build.pod("b", spec_hash="old")]
    found = plan(WANTED, pods, models={"uid-a": 3, "uid-b": 1}, movable=True)
    assert [pod.name for pod in found.drain] == ["b"]
    assert found.updating
    assert not found.delete


def test_no_ready_worker_is_replaced_while_another_is_not_ready(build: Builder):
    pods = [build.pod("a", spec_hash="old"), build.pod("b", ready=False)]
    assert plan(WANTED, pods, models={"uid-a": 3}, movable=True) == plan(WANTED, [*pods], models={}, movable=False)
    assert not plan(WANTED, pods, models={}, movable=True).delete


def test_outdated_workers_that_are_not_ready_are_replaced_at_once(build: Builder):
    pods = [build.pod("a", spec_hash="old", ready=False), build.pod("b", spec_hash="old", ready=False), build.pod("c")]
    found = plan(wanted(3), pods, models={"uid-a": 3}, movable=True)
    assert deleted(found) == ["b", "a"]


def test_a_single_worker_is_replaced_without_moving_anything(build: Builder):
    found = plan(wanted(1), [build.pod("a", spec_hash="old")], models={"uid-a": 3}, movable=False)
    assert deleted(found) == ["a"]


def test_an_operator_s_new_template_alone_replaces_nothing(build: Builder):
    pods = [build.pod("a", template_hash="old"), build.pod("b", template_hash="old")]
    assert not plan(WANTED, pods, models={}, movable=True).delete
    asked = plan(wanted(2, update_token="now"), pods, models={}, movable=True)
    assert deleted(asked) == ["a"]


def test_an_update_that_was_asked_for_before_is_not_done_again(build: Builder):
    pods = [build.pod("a", template_hash="old", update_token="now"), build.pod("b")]
    assert not plan(wanted(2, update_token="now"), pods, models={}, movable=True).delete


def test_a_revert_replaces_only_what_was_changed(build: Builder):
    pods = [build.pod("a"), build.pod("b", spec_hash="tried")]
    found = plan(WANTED, pods, models={}, movable=True)
    assert deleted(found) == ["b"]


@given(
    st.lists(
        st.tuples(st.booleans(), st.booleans(), st.booleans(), st.sampled_from(["spec", "old"]), st.integers(0, 3)),
        max_size=7,
    ),
    st.integers(0, 4),
)
def test_ready_workers_never_fall_below_what_is_wanted_by_more_than_one(pods, replicas):
    build = Builder()
    made = [
        build.pod(f"p{n}", ready=ready and not finished, terminating=terminating, finished=finished, spec_hash=spec)
        for n, (ready, terminating, finished, spec, _) in enumerate(pods)
    ]
    models = {pod.uid: count for pod, (*_, count) in zip(made, pods, strict=True)}
    found = plan(wanted(replicas), made, models=models, movable=True)
    ready = [pod for pod in made if pod.live and pod.ready]
    lost = [pod for pod, _ in found.delete if pod in ready]
    assert len(ready) - len(lost) >= min(len(ready), replicas) - 1
    live = [pod for pod in made if pod.live]
    gone = [pod for pod, _ in found.delete if pod in live]
    assert len(live) - len(gone) + found.create <= max(len(live), replicas)
    if replicas:
        assert not [pod for pod, _ in found.delete if pod in ready and models[pod.uid] and len(ready) > 1 and pod.live]


def pod_object(**status) -> dict:
    return {"metadata": {"name": "p", "uid": "u", "annotations": {}}, "spec": {}, "status": status}


def container(**state) -> dict:
    return {"name": "worker", "image": "img:1", "ready": False, "restartCount": 4, **state}


@pytest.mark.parametrize(
    ("status", "reason", "text", "code"),
    [
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}
                ]
            },
            Reason.UNSCHEDULABLE,
            "pod p cannot be scheduled: no GPU",
            None,
        ),
        (
            {"containerStatuses": [container(state={"waiting": {"reason": "ErrImagePull", "message": "denied"}})]},
            Reason.IMAGE_PULL_FAILED,
            "pod p: image 'img:1' cannot be pulled: denied",
            None,
        ),
        (
            {
                "containerStatuses": [
                    container(state={"waiting": {"reason": "CreateContainerConfigError", "message": "x"}})
                ]
            },
            Reason.INVALID_POD_TEMPLATE,
            "CreateContainerConfigError: x",
            None,
        ),
        (
            {
                "containerStatuses": [
                    container(
                        state={"waiting": {"reason": "CrashLoopBackOff"}},
                        lastState={"terminated": {"exitCode": 2, "reason": "Error", "message": "no such option"}},
                    )
                ]
            },
            Reason.WORKER_CRASHED,
            "pod p: container 'worker' ended with exit code 2, restarted 4 times: no such option",
            2,
        ),
        (
            {"containerStatuses": [container(state={"terminated": {"exitCode": 137, "reason": "OOMKilled"}})]},
            Reason.WORKER_CRASHED,
            "exit code 137 (OOMKilled)",
            137,
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory"},
            Reason.WORKER_GONE,
            "pod p ended: The node was low on resource: memory",
            None,
        ),
    ],
)
def test_troubles_are_read_from_the_status(status, reason, text, code):
    trouble = read(pod_object(**status)).trouble
    assert trouble.reason is reason
    assert text in trouble.message
    assert trouble.exit_code == code


def test_a_container_that_restarted_once_and_runs_is_no_trouble():
    running = container(ready=True, state={"running": {}}, lastState={"terminated": {"exitCode": 1}})
    assert read(pod_object(phase="Running", containerStatuses=[running])).trouble is None


@pytest.mark.parametrize("lacking", ["ballast.dev/budget", "app.kubernetes.io/component"])
def test_a_pod_without_a_label_that_selects_it_stays_its_budgets_and_is_replaced(build: Builder, lacking):
    pod = pod_object()
    pod["metadata"] |= {
        "labels": naming.labels(component="worker", budget="default"),
        "annotations": {naming.ANNOTATION_SPEC_HASH: "spec"},
        "ownerReferences": naming.owner(BUDGETS, build.budget_object()),
    }
    assert not WANTED.outdated(dataclasses.replace(read(pod), template_hash="template"))
    del pod["metadata"]["labels"][lacking]
    assert WANTED.outdated(read(pod))
    assert naming.budget_of(pod) == "default"


@pytest.mark.parametrize(
    ("ready", "containers", "spec", "expected"),
    [
        ("False", "True", {}, True),
        ("True", "True", {}, False),
        ("False", "False", {}, False),
        ("False", "True", {"readinessGates": [{"conditionType": "balancer.example/registered"}]}, False),
    ],
    ids=["the node is not heard of", "ready", "the kubelet says so too", "something else is waited for"],
)
def test_a_pod_is_out_of_sight_when_it_is_not_ready_against_the_kubelets_word(ready, containers, spec, expected):
    conditions = [{"type": "Ready", "status": ready}, {"type": "ContainersReady", "status": containers}]
    found = read({**pod_object(conditions=conditions), "spec": spec})
    assert (found.out_of_sight, found.ready) == (expected, ready == "True")


def test_the_worst_trouble_is_told_first():
    found = [
        Trouble(Reason.UNSCHEDULABLE, "a"),
        Trouble(Reason.WORKER_CRASHED, "b"),
        Trouble(Reason.IMAGE_PULL_FAILED, "c"),
    ]
    assert worst(found).message == "c"
    assert worst([]) is None
