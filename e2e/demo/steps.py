# SPDX-License-Identifier: Apache-2.0
"""The steps of the demo, each told apart from how it is shown: the end-to-end tests take the same ones."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ballast_contract import quantities
from e2e.demo import client
from e2e.demo.kube import CACHE, CLUSTER, ROOT, Kube, StepError, condition
from e2e.samples.models.wordpiece import WordPiece

SYSTEM = "ballast-system"
NAMESPACE = "ballast-demo"
SAMPLES = ROOT / "e2e" / "samples"
MODELS = CACHE / "models"
EXECUTABLES = CACHE / "executables"
SENTENCES = (
    "The cat sleeps on the sofa.",
    "A cat is napping on the couch.",
    "Interest rates rose again.",
)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Images:
    """References of the two product images."""

    worker: str
    operator: str


def images(*, local: bool = True) -> Images:
    """The images named by BALLAST_WORKER_IMAGE and BALLAST_OPERATOR_IMAGE, or those built from this tree.

    Raises:
        StepError: none are named for a cluster that is not on this machine, and could not pull what is built here.
    """
    named = os.environ.get("BALLAST_WORKER_IMAGE"), os.environ.get("BALLAST_OPERATOR_IMAGE")
    if named[0] and named[1]:
        return Images(worker=named[0], operator=named[1])
    if not local:
        raise StepError(
            f"BALLAST_WORKER_IMAGE is {named[0] or 'not set'} and BALLAST_OPERATOR_IMAGE {named[1] or 'not set'}: "
            "both must name images that the cluster of KUBECONFIG can pull"
        )
    command = [str(ROOT / "e2e" / "bootstrap" / "bootstrap"), "images", "--print"]
    refs = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return Images(worker=refs["worker"], operator=refs["operator"])


def _stream(say: Say, *command: str) -> None:
    """Run a command from the repository's root, saying each line that it prints.

    Raises:
        StepError: it failed; the message has its last lines.
    """
    tail: list[str] = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            tail = [*tail[-15:], line]
            say(line.rstrip())
    if process.returncode:
        raise StepError(f"{' '.join(command)} failed ({process.returncode}):\n{''.join(tail)}")


def build_models(say: Say) -> None:
    """Make the sample bundles from real weights; what is up to date is kept."""
    _stream(say, sys.executable, "-m", "e2e.samples.models.build", "--out", str(MODELS), "--variants", "8")


def start_cluster(say: Say) -> None:
    """Bring up the local cluster, two nodes, and the images on them."""
    _stream(say, str(CLUSTER), "up", "--nodes", "2", "--gpus", "4")


def install(kube: Kube, refs: Images, *, replicas: int = 1) -> None:
    """Install or upgrade the chart with Helm and wait for so many operators, of which one leads."""
    repository = {name: ref.rpartition(":") for name, ref in (("worker", refs.worker), ("operator", refs.operator))}
    sets = [
        f"image.repository={repository['operator'][0]}",
        f"image.tag={repository['operator'][2]}",
        f"worker.image.repository={repository['worker'][0]}",
        f"worker.image.tag={repository['worker'][2]}",
    ]
    arguments = [part for value in sets for part in ("--set-string", value)]
    kube.run(
        "helm", "upgrade", "--install", "ballast", str(ROOT / "charts" / "ballast"), "--namespace", SYSTEM,
        "--create-namespace", *arguments, "--set", f"replicas={replicas}", "--wait", "--timeout", "600s", seconds=620,
    )  # fmt: skip


def prepare_namespace(kube: Kube, refs: Images, *, namespace: str = NAMESPACE, local: bool = True) -> None:
    """Create the models' namespace (restricted Pod Security), the model store and the client's pod."""
    kube.wait_for(
        f"the namespace {namespace} of an earlier run is gone",
        lambda: (
            kube.kubectl("get", "namespace", namespace, "--ignore-not-found", "-o", "jsonpath={.status.phase}")
            != "Terminating"
        ),
        seconds=600,
    )
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kube.apply(json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}))
    _claim(kube, "models", "ReadOnlyMany", MODELS if local else None, namespace=namespace)
    if local:
        EXECUTABLES.mkdir(parents=True, exist_ok=True)
        EXECUTABLES.chmod(0o777)  # pods are not root, and a hostPath volume keeps the owner that it has
    _claim(kube, "executables", "ReadWriteMany", EXECUTABLES if local else None, namespace=namespace)
    if not kube.kubectl("get", "pod", client.POD, "-n", namespace, "--ignore-not-found").strip():
        kube.apply(json.dumps(client.pod(namespace, refs.worker)))
    kube.kubectl("wait", "-n", namespace, "pod", client.POD, "--for=condition=Ready", "--timeout=600s", seconds=620)


def _claim(kube: Kube, name: str, mode: str, path: Path | None, *, namespace: str) -> None:
    """A claim, bound to a directory of this machine when one is given, else to what the cluster provides."""
    if kube.kubectl("get", "pvc", name, "-n", namespace, "--ignore-not-found").strip():
        return
    spec: dict[str, Any] = {"accessModes": [mode], "resources": {"requests": {"storage": "4Gi"}}}
    if path is not None:
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"{namespace}-{name}"},
            "spec": {
                "capacity": {"storage": "4Gi"},
                "accessModes": [mode],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
                "hostPath": {"path": str(path), "type": "Directory"},
                "claimRef": {"namespace": namespace, "name": name},
            },
        }
        kube.kubectl("delete", "pv", f"{namespace}-{name}", "--ignore-not-found")
        kube.apply(json.dumps(volume))
        spec |= {"storageClassName": "", "volumeName": f"{namespace}-{name}"}
    kube.apply(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": namespace},
                "spec": spec,
            }
        )
    )


def apply_samples(kube: Kube, *, namespace: str = NAMESPACE) -> None:
    """Apply the WeightBudget and the InferenceModels."""
    for name in ("budget.yaml", "models.yaml"):
        kube.kubectl("apply", "-n", namespace, "-f", str(SAMPLES / name))


def models(kube: Kube, *, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
    """The InferenceModels as they are now."""
    found: list[dict[str, Any]] = kube.get("inferencemodels.ballast.dev", "-n", namespace)["items"]
    return found


def budget(kube: Kube, *, namespace: str = NAMESPACE) -> dict[str, Any]:
    """The WeightBudget as it is now."""
    found: dict[str, Any] = kube.get("weightbudgets.ballast.dev", "default", "-n", namespace)
    return found


def wait_ready(kube: Kube, say: Say, *, namespace: str = NAMESPACE, seconds: float = 900) -> float:
    """Wait until every model is Ready, saying what each waits for; returns the seconds it took."""
    started = time.monotonic()
    shown: dict[str, str] = {}

    def ready() -> bool:
        everything = models(kube, namespace=namespace)
        states = {m["metadata"]["name"]: condition(m, "Ready") for m in everything}
        for name, now in states.items():
            reason = "Ready" if now.get("status") == "True" else now.get("reason", "")
            if reason and shown.get(name) != reason:
                shown[name] = reason
                say(f"{name}: {reason}" + (f": {now['message']}" if reason != "Ready" else ""))
        return bool(states) and all(now.get("status") == "True" for now in states.values())

    kube.wait_for("every InferenceModel is Ready", ready, seconds=seconds)
    return time.monotonic() - started


def table(kube: Kube, *, namespace: str = NAMESPACE, wide: bool = False) -> str:
    """What `kubectl get inferencemodels,weightbudgets` prints."""
    kinds = "inferencemodels.ballast.dev,weightbudgets.ballast.dev"
    return kube.kubectl("get", kinds, "-n", namespace, *(("-o", "wide") if wide else ())).rstrip()


def infer_url(service: str, model: str, *, namespace: str = NAMESPACE) -> str:
    """URL of a model by the name of a Service, from inside the cluster."""
    return f"http://{service}.{namespace}:8000/v2/models/{quote(model, safe='')}/infer"


def embedding_request(sentences: Sequence[str]) -> dict[str, Any]:
    """An Open Inference Protocol request for sentence embeddings, tokenised for the MiniLM models."""
    ids, mask = WordPiece.from_file(MODELS / "minilm.vocab.txt").encode_batch(sentences)
    shape = [len(ids), len(ids[0])]
    return {
        "inputs": [
            {"name": "input_ids", "datatype": "INT32", "shape": shape, "data": ids},
            {"name": "attention_mask", "datatype": "INT32", "shape": shape, "data": mask},
        ]
    }


def pitch_request(hertz: float) -> dict[str, Any]:
    """A request for the pitch of one frame of a sine tone at 16 kHz, normalised as CREPE wants it."""
    wave = [math.sin(2 * math.pi * hertz * n / 16000) for n in range(1024)]
    deviation = math.sqrt(sum(x * x for x in wave) / len(wave))
    frame = [x / deviation for x in wave]
    return {"inputs": [{"name": "frames", "datatype": "FP32", "shape": [1, 1024], "data": frame}]}


def outputs(answer: Mapping[str, Any]) -> list[float]:
    """The first output's numbers.

    Raises:
        StepError: the answer is an error.
    """
    if answer["status"] != 200:
        raise StepError(f"a call was answered {answer['status']}: {answer['text'][:500]}")
    data: list[float] = json.loads(answer["text"])["outputs"][0]["data"]
    return data


def similarities(kube: Kube, *, namespace: str = NAMESPACE) -> list[tuple[str, str, float]]:
    """Cosine similarity of each pair of the sample sentences, computed by MiniLM through its own Service."""
    url = infer_url("minilm", "all-MiniLM-L6-v2", namespace=namespace)
    flat = outputs(client.call(kube, namespace, [(url, embedding_request(SENTENCES))])[0])
    size = len(flat) // len(SENTENCES)
    vectors = [flat[n * size : (n + 1) * size] for n in range(len(SENTENCES))]
    return [
        (SENTENCES[a], SENTENCES[b], sum(x * y for x, y in zip(vectors[a], vectors[b], strict=True)))
        for a in range(len(SENTENCES))
        for b in range(a + 1, len(SENTENCES))
    ]


def request_for(model: Mapping[str, Any]) -> dict[str, Any]:
    """A request that fits a sample model."""
    return pitch_request(440.0) if model["metadata"]["name"].startswith("crepe") else embedding_request(SENTENCES[:1])


def call_all(kube: Kube, order: Sequence[str], *, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
    """Call the named models in this order, each through its own Service."""
    known = {m["metadata"]["name"]: m for m in models(kube, namespace=namespace)}
    calls = [
        (infer_url(name, known[name]["spec"].get("modelName", name), namespace=namespace), request_for(known[name]))
        for name in order
    ]
    return client.call(kube, namespace, calls)


def worker_pods(kube: Kube, *, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
    """The pods of the pool that are not ending."""
    pods = kube.get("pods", "-n", namespace, "-l", "ballast.dev/budget=default")["items"]
    return [p for p in pods if "deletionTimestamp" not in p["metadata"]]


def metrics(kube: Kube, pod: str, *, namespace: str = NAMESPACE) -> dict[str, float]:
    """A worker's metrics without labels, by name, read through the API server's proxy."""
    text = kube.kubectl("get", "--raw", f"/api/v1/namespaces/{namespace}/pods/{pod}:8002/proxy/metrics")
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#" and "{" not in line)
    return {name: float(value) for name, value in pairs}


def fragmentation(kube: Kube, *, namespace: str = NAMESPACE) -> dict[str, dict[str, float]]:
    """Free bytes, largest free block and fragmentation of every worker, from its own metrics."""
    found = {}
    for pod in worker_pods(kube, namespace=namespace):
        name = pod["metadata"]["name"]
        values = metrics(kube, name, namespace=namespace)
        found[name] = {
            "free": values["worker_device_memory_free_bytes"],
            "largest": values["worker_device_memory_largest_free_block_bytes"],
            "fragmentation": values["worker_device_memory_fragmentation"],
            "loads": values["worker_weight_loads_total"],
            "evictions": values["worker_weight_evicts_total"],
            "moved": values["worker_compaction_moved_bytes_total"],
        }
    return found


def churn(names: Sequence[str], *, seed: int = 0) -> Iterator[Sequence[str]]:
    """What to call, a few at a time: some models often and others seldom, and every now and then the other way round.

    The popular ones keep their places on the device, and what comes and goes between them leaves holes.
    """
    rng = random.Random(seed)  # noqa: S311 - a repeatable order, no secret
    for _ in range(12):
        order = rng.sample(names, len(names))
        weights = [1 / (1 + rank) for rank in range(len(order))]
        for _ in range(8):
            yield rng.choices(order, weights, k=3)


def fragment(kube: Kube, say: Say, *, namespace: str = NAMESPACE, above: float = 0.2) -> dict[str, dict[str, float]]:
    """Call models that are not pinned until a worker's free device memory is in pieces; returns every worker's figures.

    Raises:
        StepError: a call failed, or it did not come about in the bounded number of calls.
    """
    names = [
        m["metadata"]["name"]
        for m in models(kube, namespace=namespace)
        if m["spec"].get("residency", "unpinned") != "device"
    ]
    found: dict[str, dict[str, float]] = {}
    for order in churn(names):
        for name, answer in zip(order, call_all(kube, order, namespace=namespace), strict=True):
            outputs(answer)
            say(f"{name} answered in {answer['seconds'] * 1000:.0f} ms")
        found = fragmentation(kube, namespace=namespace)
        if max(worker["fragmentation"] for worker in found.values()) > above:
            return found
    raise StepError(f"the free device memory stayed in one piece: {found}")


def size(quantity: object) -> int:
    """Bytes of a quantity in a status."""
    return quantities.parse_api(str(quantity))


def command(
    kube: Kube, verb: str, status_key: str, *, namespace: str = NAMESPACE, seconds: float = 600
) -> dict[str, Any]:
    """Ask for a repack or a compaction by annotation and wait until the status carries the same token."""
    token = f"demo-{time.time_ns()}"
    kube.kubectl(
        "annotate", "weightbudget.ballast.dev", "default", "-n", namespace, "--overwrite", f"ballast.dev/{verb}={token}"
    )

    def done() -> dict[str, Any] | None:
        status = budget(kube, namespace=namespace).get("status", {}).get(status_key, {})
        return status if status.get("token") == token else None

    found: dict[str, Any] = kube.wait_for(f"{verb} with token {token}", done, seconds=seconds)
    return found


def remove_namespace(kube: Kube, *, namespace: str = NAMESPACE) -> None:
    """Remove the objects of both kinds, then their namespace.

    In this order, because Kubernetes deletes the pods of a namespace first and then looks again only after half of their
    grace period.
    """
    kinds = "inferencemodels.ballast.dev,weightbudgets.ballast.dev"
    kube.kubectl("delete", kinds, "--all", "-n", namespace, "--timeout=60s", check=False)
    kube.kubectl("delete", "namespace", namespace, "--ignore-not-found", "--timeout=240s", seconds=260)
    kube.kubectl("delete", "pv", f"{namespace}-models", f"{namespace}-executables", "--ignore-not-found")


def remove(kube: Kube, *, namespace: str = NAMESPACE) -> None:
    """Remove the samples, the chart and the CRDs, in the order of the documentation."""
    remove_namespace(kube, namespace=namespace)
    kube.run("helm", "uninstall", "ballast", "--namespace", SYSTEM, "--ignore-not-found", "--wait", check=False)
    kube.kubectl("delete", "namespace", SYSTEM, "--ignore-not-found", "--timeout=120s", seconds=150)
    crds = ("inferencemodels.ballast.dev", "weightbudgets.ballast.dev")
    kube.kubectl("delete", "crd", *crds, "--ignore-not-found")
