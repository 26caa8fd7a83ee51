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
from helpers.plain_bundles import packed_bytes, random_bundle
from helpers.small_bundles import pack_small

from e2e.cluster.commands import run
from e2e.cluster.nodes import Node
from e2e.cluster.settings import Settings
from e2e.demo import client, steps
from e2e.demo.kube import condition

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NAMESPACE = "ballast-host-pool"
STORE = steps.MODELS / "e2e-host-pool"
MIB = 1 << 20
MODELS = 10
WORKERS = 4
HOST_BUDGET = 128 * MIB
LARGE = 4 << 30  # more than /dev/shm of a node has
PROCESS = 2 << 30
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
        "resources": {"requests": {"cpu": "20m", "memory": "256Mi"}, "limits": {"memory": f"{PROCESS // MIB}Mi"}},
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


def on_node(number):
    return {"nodeSelector": {"kubernetes.io/hostname": f"ballast-{number}"}}


def pools_on(number):
    """Folders of host pools on a node, as the node sees them."""
    settings = Settings.from_environment()
    found = run(settings, *Node(settings, number).inside("ls", "/dev/shm/ballast"), check=False)
    return found.stdout.split() if found.returncode == 0 else []


@dataclass(frozen=True)
class Figures:
    """What the workers of the pool say, by pod, and what their control groups are charged with."""

    metrics: dict[str, dict[str, float]]
    shmem: dict[str, int]

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
            return found if all(m.get("worker_models_resident") == MODELS for m in found.values()) else None

        metrics = self.kube.wait_for(f"{count} workers hold {MODELS} models", figures, seconds=300)
        return Figures(metrics, {pod: int(self.exec(pod, INSIDE)) for pod in metrics})

    def gone(self):
        self.kube.wait_for(
            "no worker is left",
            lambda: not self.kube.get("pods", "-n", NAMESPACE, "-l", "ballast.dev/budget=shared")["items"],
            seconds=120,
        )


@pytest.fixture(scope="module")
def bundles():
    """Ten models of exactly 8 MiB, each with a factor of its own, and two versions of one that is only copied."""
    found = []
    for number in range(MODELS):
        path = STORE / f"times-{number}"
        if not path.exists():  # packed once: other digests would be compiled anew
            pack_small(path, mebibytes=8 - 256 / MIB, factor=number + 2, max_batch=1)
        found.append(pool_in_pod.open_bundle(path))
    for version in (0, 1):
        if not (STORE / f"version-{version}").exists():
            random_bundle(STORE / f"version-{version}", 10 * MIB, seed=version, name="versions")
    return found


@pytest.fixture(scope="module")
def scene(kube, images, bundles):
    steps.install(kube, images)
    steps.prepare_namespace(kube, images, namespace=NAMESPACE)
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
    steps.remove_namespace(kube, namespace=NAMESPACE)


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
def restarted(scene, four):
    """Four other workers in the place of these."""
    pods = scene.pods()
    names = [p["metadata"]["name"] for p in pods]
    scene.kube.kubectl("delete", "pod", "-n", NAMESPACE, *names, "--wait=false")
    return scene.loaded(WORKERS, avoid={p["metadata"]["uid"] for p in pods})


def live(metrics):
    return metrics['worker_host_weight_bytes{state="live"}']


def test_four_workers_of_a_node_keep_one_copy_of_each_model(scene, four):
    packed = sum(bundle.layout.nbytes for bundle in scene.bundles)
    for metrics in four.metrics.values():
        assert live(metrics) == pytest.approx(packed, rel=0.01)
    assert len(pools_on(1)) == 1


def test_each_file_was_read_once_by_all_of_them_together(four):
    assert four.total("worker_host_weight_misses_total") == MODELS
    assert four.total("worker_host_weight_fills_total") == MODELS
    assert four.total("worker_host_weight_hits_total") == (WORKERS - 1) * MODELS
    assert four.total("worker_host_weight_fallbacks_total") == 0


def test_every_worker_answers_rightly_for_every_model(scene, four):
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
    addresses = [p["status"]["podIP"] for p in scene.pods()]
    calls = [
        (f"http://{address}:8000/v2/models/times-{number}/infer", body)
        for address in addresses
        for number in range(MODELS)
    ]
    answers = client.call(scene.kube, NAMESPACE, calls)
    assert len(addresses) == WORKERS
    for index, answer in enumerate(answers):
        factor = index % MODELS + 2
        assert steps.outputs(answer) == [factor, 2 * factor, 3 * factor, 4 * factor]


def test_the_pages_of_the_pool_are_charged_to_the_worker_that_allocated_it_and_to_no_other(one, four):
    [writer] = one.shmem
    assert HOST_BUDGET <= four.shmem[writer] < HOST_BUDGET + 16 * MIB
    assert all(charged < 16 * MIB for pod, charged in four.shmem.items() if pod != writer)


def test_memory_is_limited_to_process_and_budget_and_requested_by_parts_of_it(scene, four):
    for pod in scene.pods():
        [worker] = pod["spec"]["containers"]
        assert worker["resources"]["limits"]["memory"] == f"{(PROCESS + HOST_BUDGET) // MIB}Mi"
    requests = {p["spec"]["containers"][0]["resources"]["requests"]["memory"] for p in scene.pods()}
    assert requests == {f"{256 + 128}Mi", f"{256 + 128 // WORKERS}Mi"}  # made when there was one, and four
    assert scene.status()["hostNodes"] == ["ballast-1"]


def test_restarted_workers_read_no_file_and_build_nothing(restarted):
    assert restarted.total("worker_host_weight_misses_total") == 0
    assert restarted.total("worker_host_weight_hits_total") == WORKERS * MODELS
    for metrics in restarted.metrics.values():
        assert metrics.get('worker_builds_total{result="built"}', 0) == 0
        assert live(metrics) == pytest.approx(MODELS * 8 * MIB, rel=0.01)


def test_the_pages_stay_when_the_worker_that_paid_for_them_is_gone_and_no_pod_pays(restarted):
    assert all(charged < 16 * MIB for charged in restarted.shmem.values())


def in_pod(scene, pod):
    """Kill fillers and rename files over others on the pool of a running worker."""
    script = Path(pool_in_pod.__file__).read_text()
    paths = [f"/models/models/{STORE.name}/version-{version}" for version in (0, 1)]
    return json.loads(scene.exec(pod, script, *paths))


def check_in_pod(found):
    old, new = (
        hashlib.sha256(packed_bytes(pool_in_pod.open_bundle(STORE / f"version-{version}"))).hexdigest()
        for version in (0, 1)
    )
    assert found["kills"]["wrong"] == []
    assert found["kills"]["killed"] >= 20
    assert found["rename"] == {"replaced": True, "during": old, "again": old, "after": new}


def test_killed_fillers_and_files_renamed_over_harm_no_shared_pool(scene, restarted):
    """B14 (c), B15, in a folder of the node."""
    check_in_pod(in_pod(scene, next(iter(restarted.metrics))))
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
    for number in (0, MODELS - 1):
        url = steps.infer_url("shared-pool", f"times-{number}", namespace=NAMESPACE)
        [answer] = client.call(scene.kube, NAMESPACE, [(url, body)])
        assert steps.outputs(answer)[0] == number + 2


def test_killed_fillers_and_files_renamed_over_harm_no_private_pool(scene):
    """B14 (c), B15, in a volume of the pod; there nothing is left on the node."""
    before = pools_on(2)
    scene.apply(budget("private", workers={"replicas": 1, **on_node(2)}, host={"budget": "64Mi", "sharing": "none"}))
    scene.kube.wait_for(
        "the worker of 'private' is ready", lambda: scene.status("private").get("readyReplicas") == 1, seconds=120
    )
    [pod] = scene.pods("private")
    assert "initContainers" not in pod["spec"]
    found = in_pod(scene, pod["metadata"]["name"])
    assert found["directory"].endswith(pod["metadata"]["name"])
    check_in_pod(found)
    scene.kube.kubectl("delete", "weightbudget.ballast.dev", "private", "-n", NAMESPACE, "--timeout=60s")
    assert pools_on(2) == before


def test_a_budget_larger_than_the_mount_is_refused_with_mount_size_need_and_field(scene):
    """B16."""
    host = {"budget": f"{LARGE >> 30}Gi", "sharing": "node"}
    scene.apply(budget("large", workers={"replicas": 1, **on_node(2)}, host=host))

    def refused():
        found = condition({"status": scene.status("large")}, "PlanFits")
        return found if found.get("reason") == "ShmTooSmall" else None

    message = scene.kube.wait_for("large: PlanFits=False, ShmTooSmall", refused, seconds=120)["message"]
    for part in ("/dev/shm/ballast", str(2 << 30), str(LARGE), "host.budget to 2048Mi", "at least 4096Mi"):
        assert part in message
    scene.kube.kubectl("delete", "weightbudget.ballast.dev", "large", "-n", NAMESPACE, "--timeout=60s")


def test_deletion_removes_the_pools_also_from_a_node_without_workers(scene, restarted):
    scene.patch(replicas=0)
    scene.gone()
    scene.patch(replicas=1, **on_node(2))
    scene.kube.wait_for("a pool on each node", lambda: pools_on(1) and pools_on(2), seconds=120)
    scene.kube.wait_for(
        "both are remembered", lambda: scene.status().get("hostNodes") == ["ballast-1", "ballast-2"], seconds=60
    )
    scene.kube.kubectl("delete", "weightbudget.ballast.dev", "shared", "-n", NAMESPACE, "--timeout=60s")
    assert (pools_on(1), pools_on(2)) == ([], [])
    events = scene.kube.get("events.events.k8s.io", "-n", NAMESPACE)["items"]
    assert not [e for e in events if e["reason"] == "HostPoolLeft"]
