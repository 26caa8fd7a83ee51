# SPDX-License-Identifier: Apache-2.0
"""One host copy per node, from the first read to the deletion of the budget, on nodes with a /dev/shm of their own."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers import pool_in_pod
from helpers.plain_bundles import packed_bytes, random_bundle, usable
from helpers.small_bundles import pack_small

from ballast_contract import quantities
from e2e.cluster.commands import run
from e2e.cluster.nodes import Node
from e2e.cluster.settings import Settings
from e2e.demo import calling, client, installing
from e2e.demo.kube import condition

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

NAMESPACE = "ballast-host-pool"
STORE = installing.MODELS / "e2e-host-pool"
MIB = 1 << 20
MODELS = 10
WORKERS = 4
HOST_BUDGET = 128 * MIB
LARGE = 4 << 30  # more than /dev/shm of a node has
PROCESS, REQUEST = 2 << 30, 256 * MIB
BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
INSIDE = """
import re
for path, key in (("/sys/fs/cgroup/memory.stat", "shmem"), ("/sys/fs/cgroup/memory/memory.stat", "total_shmem")):
    try:
        text = open(path).read()
    except OSError:
        continue
    print(re.search(rf"^{key} (\\d+)", text, re.M)[1])
    break
"""


def budget(name, *, workers, host, **spec):
    pods = {
        "backend": "cpu",
        "terminationGracePeriodSeconds": 30,
        "resources": {
            "requests": {"cpu": "20m", "memory": f"{REQUEST // MIB}Mi"},
            "limits": {"memory": f"{PROCESS // MIB}Mi"},
        },
        "executableStore": {"persistentVolumeClaim": {"claimName": "executables"}},
        **workers,
    }
    return {
        "apiVersion": "ballast.dev/v1alpha1",
        "kind": "WeightBudget",
        "metadata": {"name": name},
        "spec": {
            "workers": pods,
            "modelStores": [{"persistentVolumeClaim": {"claimName": "models"}}],
            "device": {"budget": "192Mi", "scratch": "32Mi"},
            "placement": {"mode": "all"},
            "host": host,
            **spec,
        },
    }


def node_name(number):
    return Settings.from_environment().node_name(number)


def on_node(number):
    return {"nodeSelector": {"kubernetes.io/hostname": node_name(number)}}


def folders(name, number):
    """Folders of a budget's host pools on a node, as the node sees them."""
    settings = Settings.from_environment()
    found = run(settings, *Node(settings, number).inside("ls", "/dev/shm/ballast"), check=False)
    return [folder for folder in found.stdout.split() if folder.startswith(f"{NAMESPACE}.{name}.")]


@dataclass(frozen=True)
class Figures:
    """The workers of a pool at one moment: by pod what they say, what their control groups are charged with, and their
    containers.
    """

    metrics: dict[str, dict[str, float]]
    shmem: dict[str, int]
    containers: dict[str, dict]
    status: dict

    def total(self, name):
        return sum(metrics[name] for metrics in self.metrics.values())


class Scene:
    """The namespace with its budget `shared`, and what a test does to it."""

    def __init__(self, kube, bundles):
        self.kube = kube
        self.bundles = bundles

    def apply(self, obj):
        self.kube.apply(json.dumps(obj), "-n", NAMESPACE)

    def patch(self, **workers):
        body = json.dumps({"spec": {"workers": workers}})
        self.kube.kubectl("patch", "weightbudget.ballast.dev", "shared", "-n", NAMESPACE, "--type=merge", "-p", body)

    def status(self, name="shared"):
        return self.kube.get("weightbudgets.ballast.dev", name, "-n", NAMESPACE).get("status", {})

    def pods(self, name="shared"):
        found = self.kube.get("pods", "-n", NAMESPACE, "-l", f"ballast.dev/budget={name}")["items"]
        return [p for p in found if "deletionTimestamp" not in p["metadata"]]

    def metrics(self, pod):
        text = self.kube.kubectl("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8002/proxy/metrics")
        return {
            name: float(value) for name, value in re.findall(r"^(\w+(?:\{[^}]*\})?) ([0-9.e+-]+)$", text, re.MULTILINE)
        }

    def exec(self, pod, script, *argv):
        return self.kube.kubectl(
            "exec", "-i", "-n", NAMESPACE, pod, "-c", "worker", "--", "python3", "-", *argv, stdin=script, seconds=180
        )

    def loaded(self, count, *, name="shared", avoid=()):
        """Wait until so many workers, none of them of these uids, have every model on the device."""

        def figures():
            pods = [p for p in self.pods(name) if p["metadata"]["uid"] not in avoid]
            if len(pods) != count or any(condition(p, "Ready").get("status") != "True" for p in pods):
                return None
            found = {p["metadata"]["name"]: self.metrics(p["metadata"]["name"]) for p in pods}
            whole = all(m.get("worker_models_resident") == MODELS for m in found.values())
            return (pods, found) if whole else None

        pods, metrics = self.kube.wait_for(f"{count} workers hold {MODELS} models", figures, seconds=600)
        return Figures(
            metrics=metrics,
            shmem={pod: int(self.exec(pod, INSIDE)) for pod in metrics},
            containers={p["metadata"]["name"]: p["spec"]["containers"][0] for p in pods},
            status=self.status(name),
        )

    def answers(self):
        """What every worker answers for every model, by model."""
        addresses = [p["status"]["podIP"] for p in self.pods()]
        urls = [
            (number, f"http://{address}:8000/v2/models/times-{number}/infer")
            for address in addresses
            for number in range(MODELS)
        ]
        answers = client.call(self.kube, NAMESPACE, [(url, BODY) for _, url in urls])
        return [(number, calling.outputs(answer)) for (number, _), answer in zip(urls, answers, strict=True)]

    def strike(self, name):
        """Kill fillers and rename files over others, on the pool of a running worker."""
        pod = self.pods(name)[0]["metadata"]["name"]
        script = Path(pool_in_pod.__file__).read_text()
        paths = [f"/models/models/{STORE.name}/version-{version}" for version in (0, 1)]
        return pod, json.loads(self.exec(pod, script, *paths))

    def gone(self):
        self.kube.wait_for(
            "no worker is left",
            lambda: not self.kube.get("pods", "-n", NAMESPACE, "-l", "ballast.dev/budget=shared")["items"],
            seconds=600,
        )


@pytest.fixture(scope="module")
def bundles():
    """Ten models of exactly 8 MiB, each with a factor of its own, and two versions of one that is only copied."""
    found = []
    for number in range(MODELS):
        path = STORE / f"times-{number}"
        if not usable(path):  # packed once: other digests would be compiled anew
            pack_small(path, mebibytes=8 - 256 / MIB, factor=number + 2, max_batch=1)
        found.append(pool_in_pod.open_bundle(path))
    for version in (0, 1):
        if not usable(STORE / f"version-{version}"):
            random_bundle(STORE / f"version-{version}", 10 * MIB, seed=version, name="versions")
    return found


@pytest.fixture(scope="module")
def scene(kube, images, bundles):
    installing.install(kube, images)
    installing.prepare_namespace(kube, images, namespace=NAMESPACE)
    label = "pod-security.kubernetes.io/enforce=privileged"
    kube.kubectl("label", "namespace", NAMESPACE, "--overwrite", label)
    found = Scene(kube, bundles)
    host = {"budget": f"{HOST_BUDGET // MIB}Mi", "sharing": "node"}
    found.apply(budget("shared", workers={"replicas": 1, **on_node(1)}, host=host))
    for number, bundle in enumerate(bundles):
        source = {"uri": f"pvc://models/{STORE.name}/{bundle.path.name}"}
        spec = {"budgetRef": {"name": "shared"}, "source": source}
        metadata = {"name": f"times-{number}"}
        found.apply(
            {"apiVersion": "ballast.dev/v1alpha1", "kind": "InferenceModel", "metadata": metadata, "spec": spec}
        )
    yield found
    installing.remove_namespace(kube, namespace=NAMESPACE)


# The stages of one story, each seen once: tests may come in any order.


@pytest.fixture(scope="module")
def one(scene):
    """The first worker alone: it allocates the pool and reads every file."""
    return scene.loaded(1)


@pytest.fixture(scope="module")
def four(scene, one):
    """Three more workers on its node."""
    scene.patch(replicas=WORKERS)
    return scene.loaded(WORKERS)


@pytest.fixture(scope="module")
def answers(scene, four):
    """What the four answer."""
    return scene.answers()


@pytest.fixture(scope="module")
def restarted(scene, answers):
    """Four other workers in the place of these."""
    pods = scene.pods()
    names = [p["metadata"]["name"] for p in pods]
    scene.kube.kubectl("delete", "pod", "-n", NAMESPACE, *names, "--wait=false")
    return scene.loaded(WORKERS, avoid={p["metadata"]["uid"] for p in pods})


@pytest.fixture(scope="module")
def struck(scene, restarted):
    """Killed fillers and replaced files on the pool of the four, and what they answer then."""
    _, found = scene.strike("shared")
    return found, scene.answers()


@pytest.fixture(scope="module")
def deleted(scene, struck):
    """The pool moves to another node, and its budget is deleted: the folders on both nodes before and after."""
    scene.patch(replicas=0)
    scene.gone()
    scene.patch(replicas=1, **on_node(2))
    nodes = [node_name(1), node_name(2)]
    scene.kube.wait_for("both nodes are known", lambda: scene.status().get("hostNodes") == nodes, seconds=600)
    scene.kube.wait_for("its worker is ready", lambda: scene.status().get("readyReplicas") == 1, seconds=600)
    before = [folders("shared", number) for number in (1, 2)]
    scene.kube.kubectl("delete", "weightbudget.ballast.dev", "shared", "-n", NAMESPACE, "--timeout=60s")
    events = scene.kube.get("events.events.k8s.io", "-n", NAMESPACE)["items"]
    return before, [folders("shared", number) for number in (1, 2)], [e["reason"] for e in events]


def live(metrics):
    return metrics['worker_host_weight_bytes{state="live"}']


def check_answers(answers):
    assert len(answers) == WORKERS * MODELS
    for number, outputs in answers:
        assert outputs == [(number + 2) * x for x in (1, 2, 3, 4)]


def check_strike(found):
    old, new = (
        hashlib.sha256(packed_bytes(pool_in_pod.open_bundle(STORE / f"version-{version}"))).hexdigest()
        for version in (0, 1)
    )
    assert found["kills"]["wrong"] == []
    assert found["kills"]["killed"] >= 20
    assert found["rename"] == {"replaced": True, "during": old, "again": old, "after": new}


def test_four_workers_of_a_node_keep_one_copy_of_each_model(scene, four):
    packed = sum(bundle.layout.nbytes for bundle in scene.bundles)
    for metrics in four.metrics.values():
        assert live(metrics) == pytest.approx(packed, rel=0.01)
    assert four.status["hostNodes"] == [node_name(1)]


def test_each_file_was_read_once_by_all_of_them_together(four):
    assert four.total("worker_host_weight_misses_total") == MODELS
    assert four.total("worker_host_weight_fills_total") == MODELS
    assert four.total("worker_host_weight_hits_total") == (WORKERS - 1) * MODELS
    assert four.total("worker_host_weight_fallbacks_total") == 0


def test_every_worker_answers_rightly_for_every_model(answers):
    check_answers(answers)


def test_the_pages_of_the_pool_are_charged_to_the_worker_that_allocated_it_and_to_no_other(one, four):
    [writer] = one.shmem
    assert HOST_BUDGET <= four.shmem[writer] < HOST_BUDGET + 16 * MIB
    assert all(charged < 16 * MIB for pod, charged in four.shmem.items() if pod != writer)


def test_memory_is_limited_to_process_and_budget_and_requested_by_parts_of_it(one, four):
    [writer] = one.containers
    for pod, container in four.containers.items():
        part = HOST_BUDGET if pod == writer else HOST_BUDGET // WORKERS  # made when there was one, and four
        resources = container["resources"]
        assert quantities.parse_api(resources["limits"]["memory"]) == PROCESS + HOST_BUDGET
        assert quantities.parse_api(resources["requests"]["memory"]) == REQUEST + part


def test_restarted_workers_read_no_file_and_build_nothing(restarted):
    assert restarted.total("worker_host_weight_misses_total") == 0
    assert restarted.total("worker_host_weight_hits_total") == WORKERS * MODELS
    for metrics in restarted.metrics.values():
        assert metrics.get('worker_builds_total{result="built"}', 0) == 0
        assert live(metrics) == pytest.approx(MODELS * 8 * MIB, rel=0.01)


def test_the_pages_stay_when_the_worker_that_paid_for_them_is_gone_and_no_pod_pays(restarted):
    assert all(charged < 16 * MIB for charged in restarted.shmem.values())


def test_killed_fillers_and_files_renamed_over_harm_no_shared_pool(struck):
    """In a folder of the node."""
    found, answers = struck
    assert found["directory"] == "/dev/shm/ballast"
    check_strike(found)
    check_answers(answers)


def test_killed_fillers_and_files_renamed_over_harm_no_private_pool(scene):
    """In a volume of the pod; there nothing is left on the node."""
    scene.apply(budget("private", workers={"replicas": 1, **on_node(2)}, host={"budget": "64Mi", "sharing": "none"}))
    scene.kube.wait_for(
        "the worker of 'private' is ready", lambda: scene.status("private").get("readyReplicas") == 1, seconds=600
    )
    assert "initContainers" not in scene.pods("private")[0]["spec"]
    pod, found = scene.strike("private")
    assert found["directory"] == f"/dev/shm/ballast/{pod}"
    check_strike(found)
    assert folders("private", 2) == []


def test_a_budget_larger_than_the_mount_is_refused_with_mount_size_need_and_field(scene):
    host = {"budget": f"{LARGE >> 30}Gi", "sharing": "node"}
    scene.apply(budget("large", workers={"replicas": 1, **on_node(2)}, host=host))

    def refused():
        found = condition({"status": scene.status("large")}, "PlanFits")
        return found if found.get("reason") == "ShmTooSmall" else None

    message = scene.kube.wait_for("large: PlanFits=False, ShmTooSmall", refused, seconds=600)["message"]
    for part in ("/dev/shm/ballast", str(2 << 30), str(LARGE), "host.budget=2048Mi", "the node's /dev/shm=4096Mi"):
        assert part in message
    scene.kube.kubectl("delete", "weightbudget.ballast.dev", "large", "-n", NAMESPACE, "--timeout=60s")


def test_deletion_removes_the_pools_also_from_a_node_without_workers(deleted):
    before, after, reasons = deleted
    assert [len(found) for found in before] == [1, 1]
    assert after == [[], []]
    assert "HostPoolLeft" not in reasons
