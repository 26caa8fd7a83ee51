# SPDX-License-Identifier: Apache-2.0
"""A pool of three workers with six small models under two operators, which the tests of faults call while things go wrong."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager

from helpers.cluster_faults import Machine
from helpers.truth import Statuses, untrue

from e2e.cluster.settings import Settings
from e2e.demo import installing, looking
from e2e.demo.kube import condition, local_environment
from e2e.load.calls import Target
from e2e.load.client import Client, Stream, summary

NAMESPACE = "ballast-faults"
STORE = "e2e-faults"
FACTORS = {f"m{number}": 1.0 + number for number in range(6)}
WORKERS = 3
CALLS_A_SECOND = 4.0
"""Of each model."""

OF_OPERATORS = "app.kubernetes.io/name=ballast,app.kubernetes.io/component=operator"
MODELS = "inferencemodels.ballast.dev"
EVICTED_AFTER = [
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
    for taint in ("not-ready", "unreachable")
]


def budget(name, **workers):
    return {
        "apiVersion": "ballast.dev/v1alpha1",
        "kind": "WeightBudget",
        "metadata": {"name": name},
        "spec": {
            "workers": {
                "backend": "cpu",
                "resources": {"requests": {"cpu": "50m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
                "executableStore": {"persistentVolumeClaim": {"claimName": "executables"}},
                "tolerations": EVICTED_AFTER,
                "terminationGracePeriodSeconds": 30,
                **workers,
            },
            "modelStores": [{"persistentVolumeClaim": {"claimName": "models"}}],
            "device": {"budget": "160Mi", "scratch": "32Mi"},
            "host": {"budget": "256Mi", "sharing": "none"},
        },
    }


def model(name, *, bundle=None, of="default"):
    spec = {"budgetRef": {"name": of}, "source": {"uri": f"pvc://models/{STORE}/{bundle or name}"}}
    return {"apiVersion": "ballast.dev/v1alpha1", "kind": "InferenceModel", "metadata": {"name": name}, "spec": spec}


class Scene:
    """A pool of three workers under two operators, and what a test does to them."""

    def __init__(self, kube):
        self.kube = kube
        self.machine = Machine(Settings.from_environment())

    def kubectl(self, *argv, **options):
        return self.kube.kubectl(*argv, "-n", NAMESPACE, **options)

    def apply(self, *objects):
        for obj in objects:
            self.kube.apply(json.dumps(obj), "-n", NAMESPACE)

    def models(self):
        return {m["metadata"]["name"]: m for m in looking.models(self.kube, namespace=NAMESPACE)}

    def workers(self):
        """Pods of the pool, those that end too, by name."""
        pods = self.kube.get("pods", "-n", NAMESPACE, "-l", "ballast.dev/budget=default")["items"]
        return {p["metadata"]["name"]: p for p in pods}

    def operators(self):
        """Pods of the operator, by name."""
        pods = self.kube.get("pods", "-n", installing.SYSTEM, "-l", f"{OF_OPERATORS}")["items"]
        return {p["metadata"]["name"]: p for p in pods}

    def lease(self):
        return self.kube.get("lease", "ballast", "-n", installing.SYSTEM)["spec"]

    def leader(self):
        """The pod that leads."""
        return self.operators()[self.lease()["holderIdentity"].split("_")[0]]

    def followed(self, before, *, seconds=60):
        """The Lease once another process than the one of a Lease before leads."""

        def other():
            found = self.lease()
            return found if found["holderIdentity"] not in ("", before["holderIdentity"]) else None

        return self.kube.wait_for("another leads", other, seconds=seconds)

    def settled(self, *, lost="", seconds=600):
        """Wait until every worker (but those on a lost node) and every model is Ready, on the workers that are assigned and
        no others; returns the pods.
        """

        def now():
            found = self.workers()
            but = {name for name, pod in found.items() if lost and pod["spec"].get("nodeName") == lost}
            pods = {name: pod for name, pod in found.items() if name not in but}
            if len(pods) != WORKERS or any(condition(p, "Ready").get("status") != "True" for p in pods.values()):
                return None
            for each in (self.models()[name] for name in FACTORS):
                held = {w["name"] for w in each["status"].get("workers", ())} - but
                right = held == set(each["status"]["assignment"]["workers"]) <= pods.keys()
                if condition(each, "Ready").get("status") != "True" or not right:
                    return None
            return pods

        return self.kube.wait_for(f"{WORKERS} workers hold what they are assigned", now, seconds=seconds)

    def served_without(self, gone):
        """Whether every model is Ready, and on a worker of another name than these."""
        found = [self.models()[name] for name in FACTORS]
        held = [{w["name"] for w in each["status"].get("workers", ())} for each in found]
        return all(condition(m, "Ready").get("status") == "True" and h - gone for m, h in zip(found, held, strict=True))

    def calls(self):
        """Each model by its own Service, over both protocols."""
        hosts = {name: self.kube.get("service", name, "-n", NAMESPACE)["spec"]["clusterIP"] for name in FACTORS}
        return [
            Stream(Target(hosts[name], name), protocol, factor)
            for name, factor in FACTORS.items()
            for protocol in ("http", "grpc")
        ]


def restarts(pod):
    return sum(status["restartCount"] for status in pod["status"].get("containerStatuses", ()))


def uids(pods):
    return {p["metadata"]["uid"] for p in pods.values()}


def holds(each):
    """Names of the workers that a model is assigned to."""
    return set(each["status"]["assignment"]["workers"])


@contextmanager
def under_load(scene, *, limit):
    """Calls of every model for a block, after which every status that could be read was true within `limit` seconds."""
    environment = os.environ | local_environment()
    with (
        Statuses(["kubectl"], environment, namespace=NAMESPACE) as statuses,
        Client(scene.calls(), rates=dict.fromkeys(FACTORS, CALLS_A_SECOND), phase="steady") as client,
    ):
        yield client
    print(json.dumps(summary(client.samples)))
    assert not untrue(statuses.said(), client.samples, limit=limit)


def failures(client, *, but=()):
    """Calls that failed in other phases than these, in words."""
    found = [s for s in client.samples if s.failure and s.phase not in but]
    return [
        (s.phase, s.stream.target.model, s.stream.protocol, s.failure, round(s.ended - s.due, 1)) for s in found[:20]
    ]
