# SPDX-License-Identifier: Apache-2.0
"""Services and EndpointSlices of models."""

from __future__ import annotations

import dataclasses

from helpers.reconcile_objects import Builder

from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.reconcile import naming
from ballast_operator.reconcile.children import children
from ballast_operator.reconcile.endpoints import MAX_PER_SLICE, Ownership, exposed, ownership, plan_slices, service

OWNER = [{"kind": "InferenceModel", "name": "minilm", "uid": "model-minilm", "controller": True}]


def plan(model, workers, *, serve=None, existing=()):
    chosen = {w.uid for w in workers} if serve is None else serve
    return plan_slices(model, workers=workers, serve=chosen, existing=existing, owner=OWNER)


def endpoints(found) -> dict[str, dict]:
    return {e["targetRef"]["name"]: e["conditions"] for body in found.write for e in body["endpoints"]}


READY = {"ready": True, "serving": True, "terminating": False}


def test_exactly_the_workers_that_serve_have_an_endpoint(build: Builder):
    workers = [build.worker("a", build.state()), build.worker("b", build.state()), build.worker("c")]
    assert endpoints(plan(build.model(), workers, serve={"uid-a", "uid-c"})) == {"a": READY}


def test_a_terminating_worker_serves_and_is_not_ready(build: Builder):
    found = plan(build.model(), [build.worker("a", build.state(), terminating=True, ready=False)])
    assert endpoints(found) == {"a": {"ready": False, "serving": True, "terminating": True}}


def test_a_pod_that_is_not_ready_has_no_endpoint(build: Builder):
    assert plan(build.model(), [build.worker("a", build.state(), ready=False)]).write == ()


def test_a_silent_worker_keeps_the_endpoint_that_it_has_and_gets_no_new_one(build: Builder):
    model = build.model()
    [held] = plan(model, [build.worker("a", build.state())]).write
    silent = build.worker("a", build.state(), heard=0.0)
    assert plan(model, [silent], existing=[held]).write == ()
    assert plan(model, [silent], existing=[held]).delete == ()
    assert plan(model, [silent]).write == ()


def test_a_silent_worker_loses_its_endpoint_with_its_pod_s_readiness(build: Builder):
    model = build.model()
    [held] = plan(model, [build.worker("a", build.state())]).write
    found = plan(model, [build.worker("a", build.state(), heard=0.0, ready=False)], existing=[held])
    assert found.delete == (held,)


def test_another_pod_of_the_same_name_is_another_endpoint(build: Builder):
    model = build.model()
    [held] = plan(model, [build.worker("a", build.state())]).write
    silent = build.worker("a", build.state(), heard=0.0, uid="other")
    assert plan(model, [silent], serve={"other"}, existing=[held]).write == ()
    assert plan(model, [silent], serve={"other"}, existing=[held]).delete == (held,)


def test_what_is_already_so_is_not_written_again(build: Builder):
    model = build.model()
    worker = build.worker("a", build.state())
    [held] = plan(model, [worker]).write
    stored = {**held, "metadata": {**held["metadata"], "uid": "x", "resourceVersion": "1", "generation": 1}}
    assert plan(model, [worker], existing=[stored]).write == ()


def test_families_have_a_slice_each(build: Builder):
    workers = [build.worker("a", build.state()), build.worker("b", build.state(), ip="fd00::2")]
    found = {body["metadata"]["name"]: body["addressType"] for body in plan(build.model(), workers).write}
    assert found == {"minilm-ipv4": "IPv4", "minilm-ipv6": "IPv6"}


def test_many_endpoints_are_cut_into_slices_of_a_hundred(build: Builder):
    model = build.model(coverage="allWorkers")
    workers = [build.worker(f"w{n:03}", build.state()) for n in range(2 * MAX_PER_SLICE + 1)]
    found = plan(model, workers)
    assert [(b["metadata"]["name"], len(b["endpoints"])) for b in found.write] == [
        ("minilm-ipv4", 100),
        ("minilm-ipv4-1", 100),
        ("minilm-ipv4-2", 1),
    ]
    shrunk = plan(model, workers[:100], existing=found.write)
    assert [s["metadata"]["name"] for s in shrunk.delete] == ["minilm-ipv4-1", "minilm-ipv4-2"]


def test_a_slice_names_pod_node_owner_service_and_manager(build: Builder):
    [body] = plan(build.model(), [build.worker("a", build.state())]).write
    [endpoint] = body["endpoints"]
    assert endpoint["targetRef"] == {"kind": "Pod", "namespace": "ns", "name": "a", "uid": "uid-a"}
    assert endpoint["nodeName"] == "node-a"
    labels = body["metadata"]["labels"]
    assert labels["kubernetes.io/service-name"] == "minilm"
    assert labels["endpointslice.kubernetes.io/managed-by"] == "operator.ballast.dev"
    assert body["metadata"]["ownerReferences"] == OWNER
    assert [(p["name"], p["port"]) for p in body["ports"]] == [("http", 8000), ("grpc", 8001)]


def test_exposed_pods_are_those_called_ready(build: Builder):
    workers = [build.worker("a", build.state()), build.worker("b", build.state(), terminating=True)]
    assert exposed(plan(build.model(), workers).write) == {"uid-a"}


def test_a_worker_that_says_it_cannot_be_called_has_no_endpoint(build: Builder):
    refused = build.worker("a", build.state(phase=pb.MODEL_PHASE_REFUSED))
    assert plan(build.model(), [refused]).write == ()


def owned(uid: str, kind: str = "InferenceModel", *, ours: bool = True) -> dict:
    labels = {"app.kubernetes.io/managed-by": "ballast-operator"} if ours else {}
    return {"metadata": {"labels": labels, "ownerReferences": [{"kind": kind, "uid": uid, "controller": True}]}}


def test_whose_service_it_is():
    assert ownership(None, uid="me") is Ownership.NONE
    assert ownership(owned("me"), uid="me") is Ownership.OURS
    assert ownership(owned("before me"), uid="me") is Ownership.FORMER
    assert ownership(owned("me", ours=False), uid="me") is Ownership.FOREIGN
    assert ownership(owned("b", "WeightBudget"), uid="me") is Ownership.FOREIGN
    assert ownership({"metadata": {"labels": {"app.kubernetes.io/managed-by": "ballast-operator"}}}, uid="me") is (
        Ownership.FOREIGN
    )


def test_a_model_s_service_selects_nothing_and_a_pool_s_selects_its_workers(build: Builder):
    assert "selector" not in service(build.model(), OWNER)["spec"]
    found = {(r.kind, b["metadata"]["name"]): b["spec"] for r, b in children("default", "ns", OWNER)}
    selector = naming.worker_selector("default")
    assert found["Service", "default-pool"]["selector"] == selector
    assert found["Service", "default-workers"]["clusterIP"] == "None"
    disruption = found["PodDisruptionBudget", "default"]
    assert (disruption["maxUnavailable"], disruption["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert disruption["selector"] == {"matchLabels": selector}


def test_an_observed_object_may_say_more_than_is_wanted_but_not_otherwise():
    assert naming.contains({"a": 1, "b": [{"c": 2, "d": 3}]}, {"b": [{"c": 2}]})
    assert not naming.contains({"b": [{"c": 2}, {"c": 3}]}, {"b": [{"c": 2}]})
    assert not naming.contains({"a": 1}, {"a": 2})
    assert not naming.contains({}, {"a": {"b": 1}})


def test_an_endpoint_stays_while_a_new_leader_has_not_dialled_its_worker_yet(build: Builder):
    model = build.model()
    worker = dataclasses.replace(build.worker("a", build.state()), view=None)
    assert worker.can_call(model) is None
    unborn = dataclasses.replace(worker, pod=dataclasses.replace(worker.pod, ip=""))
    assert unborn.can_call(model) is False
