# SPDX-License-Identifier: Apache-2.0
"""The host memory of worker pods: where host copies lie, who may reach them, and what is requested for them. Pure.

Two shapes. With `sharing: node` all workers of a budget on a node mount one folder below /dev/shm of the node, prepared by
an init container of the operator's image. Otherwise each pod has a volume of its own in memory.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from ballast_contract import quantities
from ballast_operator.api.pods import memory_bytes
from ballast_operator.api.weightbudget import HostSharing, WeightBudgetSpec
from ballast_operator.cluster.client import Object
from ballast_operator.reconcile.worker_config import HOST_DIRECTORY, size_of

NODE_DIRECTORY: Final = PurePosixPath("/dev/shm/ballast")  # noqa: S108 - shared memory by design
"""On the node: holds the folders of all host pools. It is made by the kubelet and belongs to root."""

POOL_CONTAINER: Final = "host-pool"

HOST_VOLUME: Final = "host-pool"
"""The volume of a worker pod that holds its host copies."""

_TABLE_BYTES: Final = 64 << 20
"""What the host pool's table takes beside the copies."""

_FIRST_GROUP: Final = 1 << 30
"""Group ids of namespaces are this and above, far from those of people."""


@dataclass(frozen=True, slots=True)
class Place:
    """The host pool of one WeightBudget on whatever node."""

    namespace: str
    budget: str
    uid: str

    @property
    def folder(self) -> str:
        """Its name below the folder of all pools."""
        return f"{self.namespace}.{self.budget}.{self.uid}"

    @property
    def group(self) -> int:
        """The group that shares it: one for each namespace, the same on every node and in every cluster."""
        digest = hashlib.sha256(self.namespace.encode()).digest()
        return _FIRST_GROUP + int.from_bytes(digest[:4]) % _FIRST_GROUP


def place_of(budget: Object) -> Place:
    """The host pool of a WeightBudget."""
    metadata = budget["metadata"]
    return Place(metadata["namespace"], metadata["name"], metadata["uid"])


def is_shared(spec: WeightBudgetSpec) -> bool:
    """Whether the workers of a node share a pool."""
    return spec.host.sharing is HostSharing.NODE and size_of(spec.host.budget) != 0


def volumes(spec: WeightBudgetSpec, place: Place) -> tuple[list[Object], list[Object]]:
    """The volume of host copies and its mount in the worker; none where no copies are kept.

    A worker sees the pool of its own budget and no other.
    """
    size = size_of(spec.host.budget)
    if size == 0:
        return [], []
    mount: Object = {"name": HOST_VOLUME, "mountPath": HOST_DIRECTORY}
    if is_shared(spec):
        return [node_volume()], [{**mount, "subPath": place.folder}]
    memory: Object = {"medium": "Memory"}
    if isinstance(size, int):
        memory["sizeLimit"] = quantities.ceil_api(size + _TABLE_BYTES)
    return [{"name": HOST_VOLUME, "emptyDir": memory}], [mount]


def node_volume() -> Object:
    """The folder of all host pools of a node, as a volume."""
    return {"name": HOST_VOLUME, "hostPath": {"path": str(NODE_DIRECTORY), "type": "DirectoryOrCreate"}}


def init_containers(spec: WeightBudgetSpec, place: Place, operator_image: str) -> list[Object]:
    """What prepares the folder of a shared pool before the worker starts."""
    if not is_shared(spec):
        return []
    options = ["--group", str(place.group), "--file-mode", spec.host.file_mode]
    return [node_container("prepare", place, operator_image, options=options, capabilities=("CHOWN", "FOWNER"))]


def node_container(
    command: str, place: Place, operator_image: str, *, options: list[str], capabilities: tuple[str, ...] = ()
) -> Object:
    """A container that changes a pool's folder: root, of the operator's own image, whatever image the workers run."""
    added = {"add": list(capabilities)} if capabilities else {}
    return {
        "name": POOL_CONTAINER,
        "image": operator_image,
        "command": ["python", "-m", "ballast_operator.node", command],
        "args": [HOST_DIRECTORY, place.folder, *options],
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "runAsNonRoot": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], **added},
        },
        "volumeMounts": [{"name": HOST_VOLUME, "mountPath": HOST_DIRECTORY}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def groups(spec: WeightBudgetSpec, place: Place) -> list[int]:
    """The groups that the containers of a pod need for its pool."""
    return [place.group] if is_shared(spec) else []


def memory(spec: WeightBudgetSpec, *, workers: int) -> tuple[str | None, str | None]:
    """Memory that a worker's container requests and is limited to; None where nothing is said.

    What the user sets is the process's. Memory of the pool is charged to the worker that writes it first, which may be
    any: the budget is added whole to the limit, and to the request by the part that is left when `workers` divide it.
    """
    resources, size = spec.workers.resources, size_of(spec.host.budget)
    request, limit = resources.requests.get("memory"), resources.limits.get("memory")
    if not isinstance(size, int) or size == 0:
        return request, limit
    base = request if request is not None else limit
    whole = quantities.ceil_api((memory_bytes(base) if base is not None else 0) + size // max(1, workers))
    return whole, None if limit is None else quantities.ceil_api(memory_bytes(limit) + size)
