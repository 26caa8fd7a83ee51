# SPDX-License-Identifier: Apache-2.0
"""Faults of everything around the workers: what the status says stays true, what can be answered is answered, and all is
right again by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import os
import signal
import time
from pathlib import Path

import pytest
from helpers.cluster_faults import kill, main_process, storm
from helpers.fault_scene import (
    FACTORS,
    MODELS,
    NAMESPACE,
    OF_OPERATORS,
    STORE,
    WORKERS,
    Scene,
    budget,
    failures,
    holds,
    model,
    restarts,
    uids,
    under_load,
)
from helpers.plain_bundles import usable
from helpers.small_bundles import pack_small

from ballast_operator.cluster import resources
from e2e.cluster.settings import Settings
from e2e.demo import installing
from e2e.demo.kube import StepError, condition, local_environment

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

LEFT = "ballast-faults-left"

FOLLOWED_SECONDS = 15
"""From the death of a leader to its follower."""
RIGHT_AGAIN_SECONDS = 90
"""From the return of the API server."""
AWAY_SECONDS = 180
NEAR, UNPLUGGED = 1, 2
"""Numbers of the node that stays, by which this machine reaches Services, and of the one that is lost."""
UNPLUGGED_SECONDS = 50
"""Before the API server's return."""
STOPPED_SECONDS = 40
DELETED_SECONDS = 30
HEARD_SECONDS = 10
"""How long the status may be wrong under a live leader, and when the leader died too."""
LEADERLESS_SECONDS = 25
LAG_SECONDS = 2
"""From a decision to the status."""
EVENTS = 1000


@pytest.fixture(scope="module")
def pool(kube, images):
    """Three workers with six small models."""
    installing.install(kube, images, replicas=2)
    installing.prepare_namespace(kube, images, namespace=NAMESPACE)
    for name, factor in FACTORS.items():
        path = installing.MODELS / STORE / name
        if not usable(path):
            pack_small(path, mebibytes=4, factor=factor, name="small")
    found = Scene(kube)
    found.apply(budget("default", replicas=WORKERS), *map(model, FACTORS))
    found.settled(seconds=600)
    yield found
    installing.remove_namespace(kube, namespace=NAMESPACE)


@pytest.fixture
def scene(pool):
    """The pool at rest, of operators and workers that were not restarted yet: the kubelet waits before it restarts one again,
    and the models of a worker that is gone for longer move.
    """
    pool.kube.kubectl("delete", "pods", "-n", installing.SYSTEM, "-l", OF_OPERATORS, "--timeout=60s")
    pool.kube.kubectl("rollout", "status", "deployment/ballast", "-n", installing.SYSTEM, "--timeout=600s", seconds=620)
    pool.kube.wait_for("one of them leads", pool.leader, seconds=600)
    if restarted := [name for name, pod in pool.workers().items() if restarts(pod)]:
        pool.kubectl("delete", "pods", *restarted, "--timeout=600s", seconds=620)
    pool.settled()
    return pool


@pytest.fixture
def machine(scene):
    """The machine under the cluster, whole again however the test ends."""
    yield scene.machine
    scene.machine.mend()
    scene.kube.kubectl("wait", "nodes", "--all", "--for=condition=Ready", "--timeout=120s")
    scene.kubectl("delete", f"{MODELS},weightbudgets.ballast.dev", "stray", "--ignore-not-found", "--timeout=60s")


def test_what_is_edited_by_force_comes_back_while_a_leader_is_stopped_and_another_leads(scene):
    """The one that was stopped ends when it goes on, and leads nobody."""
    kube, pods = scene.kube, scene.settled()
    before, leader = scene.lease(), scene.leader()
    with under_load(scene, limit=HEARD_SECONDS + LAG_SECONDS) as client:
        client.phase = "leader stopped"
        os.kill(main_process(leader, "ballast-operator"), signal.SIGSTOP)
        stopped = time.monotonic()
        wall = time.time()
        after = scene.followed(before)
        assert dt.datetime.fromisoformat(after["acquireTime"]).timestamp() <= wall + FOLLOWED_SECONDS
        assert after["leaseTransitions"] == before["leaseTransitions"] + 1
        client.phase = "edited by force"
        edit_by_force(scene)
        client.phase = "storm"
        blow(scene)
        client.phase = "worker killed"
        victim = scene.workers()[min(holds(scene.models()["m0"]))]
        kill(main_process(victim, "ballast-worker"))
        kube.wait_for(
            "its container starts again",
            lambda: restarts(scene.workers()[victim["metadata"]["name"]]) > restarts(victim),
            seconds=60,
        )
        scene.settled()
        client.phase = "leader goes on"
        time.sleep(
            max(0.0, stopped + STOPPED_SECONDS - time.monotonic())
        )  # so long is a leader stopped: that is the fault
        with contextlib.suppress(LookupError):  # the kubelet was quicker, since it did not answer its probe
            os.kill(main_process(leader, "ballast-operator"), signal.SIGCONT)
        name = leader["metadata"]["name"]
        kube.wait_for(
            "the stopped leader has ended", lambda: restarts(scene.operators()[name]) > restarts(leader), seconds=60
        )
        scene.settled()
    assert not failures(client, but={"worker killed"})
    now = scene.lease()
    assert (now["holderIdentity"], now["leaseTransitions"]) == (after["holderIdentity"], after["leaseTransitions"])
    assert uids(scene.workers()) == uids(pods)


def edit_by_force(scene):
    """Spoil status, endpoints and Services, and wait until each is as it was."""
    kube = scene.kube
    good = scene.models()["m1"]["status"]
    spoilt = {
        "status": {"readyReplicas": 77, "conditions": [{**condition({"status": good}, "Ready"), "status": "False"}]}
    }
    kube.kubectl(
        "patch", MODELS, "m1", "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", json.dumps(spoilt)
    )
    slices = ("endpointslices", "-n", NAMESPACE, "-l", "ballast.dev/model")

    def endpoints():
        return {
            s["metadata"]["name"]: [e["targetRef"]["uid"] for e in s.get("endpoints") or ()]
            for s in kube.get(*slices)["items"]
        }

    were = endpoints()
    scene.kubectl("delete", "endpointslice", "m2-ipv4", "--wait=false")
    scene.kubectl("patch", "endpointslice", "m3-ipv4", "--type=merge", "-p", '{"endpoints": []}')
    scene.kubectl("delete", "service", "default-pool", "--wait=false")
    scene.kubectl("delete", "poddisruptionbudget", "default", "--wait=false")

    def wrong():
        status = scene.models()["m1"]["status"]
        kept = "replicas", "readyReplicas", "assignment", "workers"
        found = [key for key in kept if status.get(key) != good.get(key)]
        found += [n for n, e in were.items() if endpoints().get(n) != e]
        found += [
            c["type"] for c in status["conditions"] if c["status"] != condition({"status": good}, c["type"])["status"]
        ]
        found += {"service/default-pool", "poddisruptionbudget.policy/default"} - set(
            scene.kubectl("get", "services,poddisruptionbudgets", "-o", "name").split()
        )
        return found

    try:
        kube.wait_for("what was edited is as it was", lambda: not wrong(), seconds=30)
    except StepError as error:
        raise AssertionError(f"still edited: {wrong()}") from error


def blow(scene):
    """A storm of events, in the middle of which a model is made, and served."""
    workers = [(resources.PODS, name) for name in scene.workers()]
    models = [(resources.MODELS, name) for name in FACTORS]
    slices = [(resources.ENDPOINT_SLICES, f"{name}-ipv4") for name in FACTORS]
    kubeconfig = Path(local_environment()["KUBECONFIG"])
    asyncio.run(storm(kubeconfig, NAMESPACE, [*workers, *models, *slices], events=EVENTS))
    scene.apply(model("late", bundle="m0"))
    scene.kube.wait_for(
        "a model of after the storm is Ready",
        lambda: condition(scene.models()["late"], "Ready").get("status") == "True",
        seconds=60,
    )
    scene.kubectl("delete", MODELS, "late", "--timeout=30s")


def test_operators_and_workers_that_are_killed_at_once_come_back_with_what_they_held(scene):
    """SeldonIO/seldon-core#5032."""
    pods, operators, before = scene.settled(), scene.operators(), scene.lease()
    assigned = {name: holds(each) for name, each in scene.models().items()}
    with under_load(scene, limit=LEADERLESS_SECONDS + LAG_SECONDS) as client:
        client.phase = "all killed"
        kill(
            *(main_process(pod, "ballast-operator") for pod in operators.values()),
            *(main_process(pod, "ballast-worker") for pod in pods.values()),
        )
        scene.kube.wait_for(
            "every worker has started again",
            lambda: all(restarts(pod) > restarts(pods[name]) for name, pod in scene.workers().items()),
            seconds=60,
        )
        scene.followed(before)
        scene.settled()
        client.phase = "after it"
        scene.settled()
    assert not failures(client, but={"all killed"})
    assert uids(scene.workers()) == uids(pods)
    assert {name: holds(each) for name, each in scene.models().items()} == assigned


@pytest.mark.outage
def test_an_api_server_that_was_away_and_a_node_lost_meanwhile_cost_no_restart_and_what_the_node_served_moves(
    scene, machine
):
    """The operators start without it, the store forgets what they had seen, and Kubernetes gives up the node that is there too:
    it hears of none for so long.
    """
    kube = scene.kube
    lost = Settings.from_environment().node_name(UNPLUGGED)
    scene.apply(
        budget("stray", replicas=1, nodeSelector={"kubernetes.io/hostname": lost}),
        model("stray", bundle="m0", of="stray"),
    )
    pods = scene.settled()
    gone = {name for name, pod in pods.items() if pod["spec"]["nodeName"] == lost}
    assert pods.keys() > gone > set()
    stranded = {name for name in FACTORS if holds(scene.models()[name]) & gone}
    near = next(pod for pod in scene.operators().values() if pod["spec"]["nodeName"] != lost)
    with under_load(scene, limit=RIGHT_AGAIN_SECONDS) as client:
        client.phase = "API away"
        away = time.monotonic()
        machine.stop_api_server()
        machine.compact()
        kill(main_process(near, "ballast-operator"))
        time.sleep(AWAY_SECONDS - UNPLUGGED_SECONDS)  # how long it is away is the fault
        unplugged = time.monotonic()
        with machine.unplugged(UNPLUGGED):
            client.phase = "node lost too"
            time.sleep(max(0.0, away + AWAY_SECONDS - time.monotonic()))
            waiting = main_process(near, "ballast-operator")
            client.phase = "API back"
            with machine.speechless(NEAR):
                machine.start_api_server()
                back = time.monotonic()
                kube.wait_for("Kubernetes has given up every node", lambda: not ready_nodes(kube), seconds=60)
            kube.wait_for(
                "every model is Ready elsewhere", lambda: scene.served_without(gone), seconds=RIGHT_AGAIN_SECONDS
            )
            print(json.dumps({"seconds_until_right_again": round(time.monotonic() - back, 1)}))
            assert main_process(near, "ballast-operator") == waiting
            client.phase = "pods replaced"  # when Kubernetes has given the node up
            replaced = scene.settled(lost=lost, seconds=150)
            scene.kubectl("delete", f"{MODELS},weightbudgets.ballast.dev", "stray", f"--timeout={DELETED_SECONDS}s")
        client.phase = "node back"
        kube.wait_for("the pods of the lost node are gone", lambda: not gone & scene.workers().keys(), seconds=90)
        assert uids(scene.settled()) == uids(replaced)

    def excused(sample):
        """Of what the node served; a gRPC channel without keepalive does not find out that its connection leads nowhere."""
        if sample.stream.target.model not in stranded or sample.ended < unplugged:
            return False
        return sample.due < back + RIGHT_AGAIN_SECONDS or sample.stream.protocol == "grpc"

    failed = [s for s in client.samples if s.failure and not excused(s)]
    assert not failed, [(s.phase, s.stream.target.model, s.stream.protocol, s.failure) for s in failed[:20]]


def ready_nodes(kube):
    """Names of the nodes of which Kubernetes has heard."""
    found = kube.get("nodes")["items"]
    return [node["metadata"]["name"] for node in found if condition(node, "Ready")["status"] == "True"]


def test_uninstalling_runs_its_hook_and_leaves_models_served_and_no_namespace_that_cannot_be_deleted(scene, images):
    """zalando-incubator/kopf#75, nolar/kopf#1104."""
    kube = scene.kube
    kube.apply(json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEFT}}))
    for obj in (budget("default", replicas=1), model("never-loaded")):
        kube.apply(json.dumps(obj), "-n", LEFT)

    def kept():
        """Finalizers of each budget of both namespaces."""
        found = kube.get("weightbudgets.ballast.dev", "--all-namespaces")["items"]
        budgets = [b for b in found if b["metadata"]["namespace"] in (NAMESPACE, LEFT)]
        return [b["metadata"].get("finalizers", []) for b in budgets]

    kube.wait_for("the operator holds the budgets", lambda: all(kept()), seconds=30)
    try:
        with under_load(scene, limit=HEARD_SECONDS + LAG_SECONDS) as client:
            client.phase = "uninstalled"
            kube.run("helm", "uninstall", "ballast", "--namespace", installing.SYSTEM, "--wait", "--timeout", "120s")
            assert not any(kept())
            kube.wait_for("every operator has ended", lambda: not scene.operators(), seconds=60)
            kube.kubectl("delete", "namespace", LEFT, f"--timeout={DELETED_SECONDS}s")
            assert not any(kept())
        assert not failures(client)
    finally:
        installing.install(kube, images, replicas=2)
        kube.kubectl("delete", "namespace", LEFT, "--ignore-not-found", "--timeout=60s")
