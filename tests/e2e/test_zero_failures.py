# SPDX-License-Identifier: Apache-2.0
"""Constant traffic on twelve models while everything around them moves: no call fails that was not in a killed worker."""

from __future__ import annotations

import json
import socket
import time

import pytest
from helpers.plain_bundles import usable
from helpers.small_bundles import pack_small

from ballast_contract import names
from e2e.demo import installing, looking
from e2e.demo.kube import condition
from e2e.load.calls import Target
from e2e.load.client import Client, Stream, summary

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

NAMESPACE = "ballast-moves"
STORE = "e2e-moves-busy"
FACTORS = {f"m{number:02d}": 1.0 + number for number in range(12)}
CALLS_A_SECOND = 24.0
TURNS = 32
"""Of each call: so much work that where the calls go makes the load of a worker, and not the bytes that lie there."""
LABEL = "ballast-moves=worker"

BUDGET = {
    "apiVersion": "ballast.dev/v1alpha1",
    "kind": "WeightBudget",
    "metadata": {"name": "default"},
    "spec": {
        "workers": {
            "replicas": 3,
            "backend": "cpu",
            "podMetadata": {"labels": dict([LABEL.split("=")])},
            "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
            "executableStore": {"persistentVolumeClaim": {"claimName": "executables"}},
        },
        "modelStores": [{"persistentVolumeClaim": {"claimName": "models"}}],
        "device": {"budget": "160Mi", "scratch": "32Mi"},
        "host": {"budget": "256Mi", "sharing": "none"},
        "placement": {
            "hysteresisPercent": 0,
            "repack": {"firstAfterComputeSeconds": 1 << 30, "everyComputeSeconds": 1},
        },
    },
}


def zipf(order):
    """Calls a second of each model: the first of the order is called most."""
    weights = {name: 1 / (1 + rank) for rank, name in enumerate(order)}
    return {name: CALLS_A_SECOND * weight / sum(weights.values()) for name, weight in weights.items()}


@pytest.fixture(scope="module")
def pool(kube, images):
    """Three workers with twelve small models, Ready."""
    installing.install(kube, images)
    installing.prepare_namespace(kube, images, namespace=NAMESPACE)
    for number, (name, factor) in enumerate(FACTORS.items()):
        path = installing.MODELS / STORE / name
        if not usable(path):
            pack_small(path, mebibytes=1 + number % 3 / 2, factor=factor, name="small", turns=TURNS)
    kube.apply(json.dumps(BUDGET), "-n", NAMESPACE)
    for name in FACTORS:
        spec = {"budgetRef": {"name": "default"}, "source": {"uri": f"pvc://models/{STORE}/{name}"}}
        model = {"apiVersion": BUDGET["apiVersion"], "kind": "InferenceModel", "metadata": {"name": name}, "spec": spec}
        kube.apply(json.dumps(model), "-n", NAMESPACE)
    settled(kube)
    yield kube
    installing.remove_namespace(kube, namespace=NAMESPACE)


def settled(kube, *, workers=3):
    """Wait until every worker and model is Ready, on the workers that are assigned and no others."""

    def now():
        pods = kube.get("pods", "-n", NAMESPACE, "-l", LABEL)["items"]
        ready = [p for p in pods if condition(p, "Ready").get("status") == "True"]
        if len(ready) != workers or len(pods) != workers:
            return False
        models = looking.models(kube, namespace=NAMESPACE)
        present = {p["metadata"]["name"] for p in pods}
        return len(models) == len(FACTORS) and all(
            condition(m, "Ready").get("status") == "True"
            and {w["name"] for w in m["status"]["workers"]} == set(m["status"]["assignment"]["workers"]) <= present
            for m in models
        )

    kube.wait_for(f"{workers} workers hold what they are assigned", now, seconds=600)


def streams(kube):
    """Each model by its own Service and by the pool's, over both protocols."""

    def address(service):
        return kube.get("service", service, "-n", NAMESPACE)["spec"]["clusterIP"]

    pool = address("default-pool")
    return [
        Stream(Target(host, name), protocol, factor)
        for name, factor in FACTORS.items()
        for host in (address(name), pool)
        for protocol in ("http", "grpc")
    ]


def repack(kube):
    """Ask for one and wait until everything is where it put it; returns how many models it moved."""
    done = looking.command(kube, "repack", "lastRepack", namespace=NAMESPACE)
    assert done["trigger"] == "request"
    settled(kube)
    return done["modelsMoved"]


def compact(kube, mode):
    patch = {"spec": {"placement": {"compaction": {"mode": mode, "everyRepacks": 1000}}}}
    arguments = ("weightbudget.ballast.dev", "default", "-n", NAMESPACE, "--type=merge", "-p", json.dumps(patch))
    kube.kubectl("patch", *arguments)
    done = looking.command(kube, "compact", "lastCompaction", namespace=NAMESPACE)
    assert (done["mode"], done["workers"], done["failedWorkers"]) == (mode, 3, 0)


def drain_the_fullest_node(kube):
    nodes = [p["spec"]["nodeName"] for p in looking.worker_pods(kube, namespace=NAMESPACE)]
    node = max(sorted(set(nodes)), key=nodes.count)
    try:
        kube.kubectl("drain", node, f"--pod-selector={LABEL}", "--delete-emptydir-data", "--timeout=600s", seconds=620)
        assert all(p["spec"]["nodeName"] != node for p in looking.worker_pods(kube, namespace=NAMESPACE))
    finally:
        kube.kubectl("uncordon", node)


def take_a_label(kube):
    """Take the label away by which Services and status know a worker, and wait until it is replaced."""
    name = looking.worker_pods(kube, namespace=NAMESPACE)[0]["metadata"]["name"]
    kube.kubectl("label", "pod", name, "-n", NAMESPACE, f"{names.LABEL_BUDGET}-")
    kube.wait_for(
        "the worker without a label is gone",
        lambda: not kube.kubectl("get", "pod", name, "-n", NAMESPACE, "--ignore-not-found", "-o", "name"),
        seconds=600,
    )


def kill_a_worker(kube):
    """Returns when it was still alive, and when nobody could be connected to it any more."""
    pod = looking.worker_pods(kube, namespace=NAMESPACE)[0]
    before = time.monotonic()
    kube.kubectl("delete", "pod", pod["metadata"]["name"], "-n", NAMESPACE, "--grace-period=0", "--force")

    def dead():
        try:
            socket.create_connection((pod["status"]["podIP"], names.HTTP_PORT), timeout=1).close()
        except OSError:
            return True
        return False

    kube.wait_for("the killed worker is dead", dead, seconds=60)
    return before, time.monotonic()


def scale(kube, workers):
    """As an autoscaler would, by the scale subresource."""
    kube.kubectl("scale", "weightbudget.ballast.dev", "default", "-n", NAMESPACE, f"--replicas={workers}")


def moving(kube):
    """How many models are assigned to a worker that does not hold them yet."""
    models = looking.models(kube, namespace=NAMESPACE)
    held = [{w["name"] for w in m["status"]["workers"]} for m in models]
    return sum(set(m["status"]["assignment"]["workers"]) != on for m, on in zip(models, held, strict=True))


def kill_the_operator(kube):
    kube.kubectl("delete", "pod", "-n", installing.SYSTEM, "--all", "--grace-period=0", "--force")


def test_no_call_fails_while_models_move_workers_end_and_leaders_change(pool):
    """Those in flight on a killed worker excepted."""
    kube = pool
    popular, reversed_ = zipf(list(FACTORS)), zipf(list(reversed(FACTORS)))
    took, began = {}, time.monotonic()

    def ended(phase):
        """Remember how long a phase took."""
        nonlocal began
        took[phase], began = round(time.monotonic() - began, 1), time.monotonic()

    with Client(streams(kube), rates=popular, phase="steady") as client:
        time.sleep(8)  # traffic is the subject: so much of it, and demand is measured from it
        ended(client.phase)
        client.phase = "repack"
        moved = [repack(kube)]
        ended(client.phase)
        client.phase, client.rates = "demand reversed", reversed_
        time.sleep(8)
        ended(client.phase)
        client.phase = "repack after it"
        # How soon measured demand has turned depends on the seconds that calls take here.
        moved.append(kube.wait_for("a repack moves models after demand has turned", lambda: repack(kube), seconds=600))
        ended(client.phase)
        for mode in ("lazy", "preload", "move"):
            client.phase = f"compaction {mode}"
            compact(kube, mode)
            ended(client.phase)
        client.phase = "drain"
        drain_the_fullest_node(kube)
        settled(kube)
        ended(client.phase)
        client.phase = "label removed by force"
        take_a_label(kube)
        settled(kube)
        ended(client.phase)
        client.phase = "scaled to 1"
        scale(kube, 1)
        settled(kube, workers=1)
        ended(client.phase)
        client.phase, client.rates = "scaled to 3, operator killed in the repack", popular
        scale(kube, 3)
        moved.append(kube.wait_for("a repack has begun to move models", lambda: moving(kube), seconds=600))
        kill_the_operator(kube)
        moved.append(looking.command(kube, "repack", "lastRepack", namespace=NAMESPACE)["modelsMoved"])
        settled(kube)
        ended(client.phase)
        client.phase = "worker killed"
        killed_from, killed_to = kill_a_worker(kube)
        settled(kube)
        ended(client.phase)
    figures = summary(client.samples)
    for phase, seconds in took.items():
        figures[phase]["seconds"] = seconds
    print(json.dumps({"phases": figures, "models_moved": moved}))
    failed = [s for s in client.samples if s.failure and not (s.lost and s.due < killed_to and s.ended > killed_from)]
    assert not failed, [(s.phase, s.stream.protocol, s.stream.target, s.failure, s.ended - s.due) for s in failed[:20]]


def test_a_pool_scaled_to_nothing_says_so_and_answers_again_when_it_is_scaled_up(pool):
    """And the operator is not troubled by it."""
    kube = pool
    settled(kube)
    operators = kube.get("pods", "-n", installing.SYSTEM, "-l", "app.kubernetes.io/component=operator")["items"]
    scale(kube, 0)

    def nothing():
        """The statuses, once no worker is left and every model says so."""
        models, budget = looking.models(kube, namespace=NAMESPACE), looking.budget(kube, namespace=NAMESPACE)
        gone = not kube.get("pods", "-n", NAMESPACE, "-l", LABEL)["items"]
        reasons = {condition(found, "Ready").get("reason") for found in (*models, budget)}
        shown = {key for found in (*models, budget) for key, value in found["status"].items() if value}
        told = shown & {"workers", "workerNames", "residency", "device", "plan"}
        return (models, budget) if gone and reasons == {"NotRequested"} and not told else None

    models, budget = kube.wait_for("nothing is left, and nothing is said to be", nothing, seconds=600)
    assert (budget["status"]["replicas"], budget["status"]["readyReplicas"]) == (0, 0)
    for found in (*models, budget):
        assert condition(found, "Accepted")["status"] == "True"
        assert condition(found, "Ready")["status"] == condition(found, "Degraded")["status"] == "False"
    assert {m["status"]["readyReplicas"] for m in models} == {0}
    slices = kube.get("endpointslices", "-n", NAMESPACE, "-l", "ballast.dev/model")["items"]
    assert not [s["metadata"]["name"] for s in slices if s.get("endpoints")]
    scale(kube, 3)
    settled(kube)
    with Client(streams(kube), rates=zipf(list(FACTORS)), phase="scaled up") as client:
        kube.wait_for(
            "every model has answered",
            lambda: {s.stream.target.model for s in client.samples if not s.failure} == FACTORS.keys(),
            seconds=60,
        )
    assert not [s for s in client.samples if s.failure]
    now = kube.get("pods", "-n", installing.SYSTEM, "-l", "app.kubernetes.io/component=operator")["items"]
    assert [p["metadata"]["uid"] for p in now] == [p["metadata"]["uid"] for p in operators]
    assert not any(c["restartCount"] for p in now for c in p["status"]["containerStatuses"])
    log = kube.kubectl("logs", "-n", installing.SYSTEM, "deployment/ballast", "--tail=-1")
    assert "unexpectedly" not in log
