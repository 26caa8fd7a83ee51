# SPDX-License-Identifier: Apache-2.0
"""What the demo puts into a cluster, and takes out of it again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.demo import client, looking
from e2e.demo.kube import CACHE, CLUSTER, ROOT, Kube, StepError

SYSTEM = "ballast-system"
SAMPLES = ROOT / "e2e" / "samples"
MODELS = CACHE / "models"
EXECUTABLES = CACHE / "executables"


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


def _stream(say: looking.Say, *command: str) -> None:
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


def build_models(say: looking.Say) -> None:
    """Make the sample bundles from real weights; what is up to date is kept."""
    _stream(say, sys.executable, "-m", "e2e.samples.models.build", "--out", str(MODELS), "--variants", "8")


def start_cluster(say: looking.Say) -> None:
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


def prepare_namespace(kube: Kube, refs: Images, *, namespace: str = looking.NAMESPACE, local: bool = True) -> None:
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


def apply_samples(kube: Kube, *, namespace: str = looking.NAMESPACE) -> None:
    """Apply the WeightBudget and the InferenceModels."""
    for name in ("budget.yaml", "models.yaml"):
        kube.kubectl("apply", "-n", namespace, "-f", str(SAMPLES / name))


def remove_namespace(kube: Kube, *, namespace: str = looking.NAMESPACE) -> None:
    """Remove the objects of both kinds, then their namespace.

    In this order, because Kubernetes deletes the pods of a namespace first and then looks again only after half of their
    grace period.
    """
    kinds = "inferencemodels.ballast.dev,weightbudgets.ballast.dev"
    kube.kubectl("delete", kinds, "--all", "-n", namespace, "--timeout=60s", check=False)
    kube.kubectl("delete", "namespace", namespace, "--ignore-not-found", "--timeout=240s", seconds=260)
    kube.kubectl("delete", "pv", f"{namespace}-models", f"{namespace}-executables", "--ignore-not-found")


def remove(kube: Kube, *, namespace: str = looking.NAMESPACE) -> None:
    """Remove the samples, the chart and the CRDs, in the order of the documentation."""
    remove_namespace(kube, namespace=namespace)
    kube.run("helm", "uninstall", "ballast", "--namespace", SYSTEM, "--ignore-not-found", "--wait", check=False)
    kube.kubectl("delete", "namespace", SYSTEM, "--ignore-not-found", "--timeout=120s", seconds=150)
    crds = ("inferencemodels.ballast.dev", "weightbudgets.ballast.dev")
    kube.kubectl("delete", "crd", *crds, "--ignore-not-found")
