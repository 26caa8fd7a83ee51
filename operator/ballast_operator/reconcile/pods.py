# SPDX-License-Identifier: Apache-2.0
"""Worker pods: what is wrong with one, and which to create, drain and delete. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ballast_contract import names
from ballast_contract.reasons import Reason
from ballast_operator.cluster.client import Object
from ballast_operator.reconcile import naming
from ballast_operator.reconcile.host_memory import HOST_VOLUME

_PULL_FAILURES: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
    }
)
_TEMPLATE_FAILURES: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with a pod, or keeps it from being made or deleted, in a word and a sentence."""

    reason: Reason
    message: str
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Pod:
    """What matters of a worker pod."""

    name: str
    uid: str
    node: str
    ip: str
    created: str
    ready: bool
    """Kubernetes says that it answers its readiness probe."""
    pending: bool
    """Not all of its containers have started yet."""
    terminating: bool
    finished: bool
    """It ended for good: failed, evicted or completed."""
    spec_hash: str
    """Empty where it lacks a label by which it is selected: it is replaced then."""
    template_hash: str
    update_token: str
    config_name: str
    owner_uid: str
    trouble: Trouble | None
    shares_host_pool: bool = False
    """It mounts host memory of the node, which outlives it."""
    out_of_sight: bool = False
    """It is not ready against its kubelet's last word: Kubernetes has not heard of its node."""

    @property
    def live(self) -> bool:
        """Whether it counts as a worker: it is there, and nobody has asked it to end."""
        return not (self.terminating or self.finished)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the pods of a budget should be."""

    replicas: int
    spec_hash: str
    template_hash: str
    update_token: str

    def outdated(self, pod: Pod) -> bool:
        """Whether the pod has to be replaced: its spec changed, or an update was asked for and would change it."""
        if pod.spec_hash != self.spec_hash:
            return True
        return pod.template_hash != self.template_hash and pod.update_token != self.update_token


@dataclass(frozen=True, slots=True)
class PodPlan:
    """What to do about the pods now.

    `drain` are workers whose models are to move before they go; `delete` may go at once, each with its cause.
    """

    create: int = 0
    delete: tuple[tuple[Pod, str], ...] = ()
    drain: tuple[Pod, ...] = ()
    updating: bool = False
    """The drain serves an update, which waits where the models do not fit elsewhere."""


def plan(wanted: Wanted, pods: Sequence[Pod], *, models: dict[str, int], movable: bool) -> PodPlan:
    """Decide the next step towards the wanted pods.

    Deterministic in what it sees, so that a new leader goes on with what the last one began: a worker that is being
    drained has the fewest models and is chosen again. One worker at a time is replaced on purpose, and only while all
    others are ready; workers that are not ready serve nobody and are replaced at once, all of them.

    Args:
        wanted: what is wanted.
        pods: every pod of the budget.
        models: models that each pod still has to hold, by uid.
        movable: there is another worker that can take models; without one, moving first is not possible.
    """
    delete = [
        (pod, "it ended" if pod.trouble is None else pod.trouble.message)
        for pod in pods
        if pod.finished and not pod.terminating
    ]
    live = [pod for pod in pods if pod.live]
    surplus = len(live) - wanted.replicas
    outdated = [pod for pod in live if wanted.outdated(pod)]
    idle = sorted((pod for pod in outdated if not pod.ready), key=lambda p: _leaves_first(p, wanted, models))
    if surplus > 0:
        return _shrink(wanted, live, surplus, delete, models=models, movable=movable)
    if idle:
        delete += [(pod, "its template changed") for pod in idle]
        return PodPlan(create=-surplus, delete=tuple(delete))
    if surplus == 0 and outdated and all(pod.ready for pod in live):
        victim = min(outdated, key=lambda p: _leaves_first(p, wanted, models))
        if movable and models.get(victim.uid, 0):
            return PodPlan(delete=tuple(delete), drain=(victim,), updating=True)
        delete.append((victim, "its template changed"))
    return PodPlan(create=max(0, -surplus), delete=tuple(delete))


def _shrink(
    wanted: Wanted,
    live: list[Pod],
    surplus: int,
    delete: list[tuple[Pod, str]],
    *,
    models: dict[str, int],
    movable: bool,
) -> PodPlan:
    cause = f"{len(live)} workers are more than {wanted.replicas}"
    ordered = sorted(live, key=lambda p: _leaves_first(p, wanted, models))
    going = ordered[:surplus]
    free = [pod for pod in going if not (movable and models.get(pod.uid, 0)) or wanted.replicas == 0]
    delete += [(pod, cause) for pod in free]
    return PodPlan(delete=tuple(delete), drain=tuple(pod for pod in going if pod not in free))


def _leaves_first(pod: Pod, wanted: Wanted, models: dict[str, int]) -> tuple[bool, bool, int, str, str]:
    """Order in which pods go: not ready, then outdated, then those with the fewest models, then by name."""
    return pod.ready, not wanted.outdated(pod), models.get(pod.uid, 0), pod.name, pod.uid


def read(obj: Object) -> Pod:
    """A Pod of the API server as far as it matters here."""
    metadata, spec, status = obj["metadata"], obj.get("spec", {}), obj.get("status", {})
    annotations = metadata.get("annotations", {})
    conditions = {c["type"]: c for c in status.get("conditions", ())}
    finished = status.get("phase") in ("Failed", "Succeeded")
    ready = conditions.get("Ready", {}).get("status") == "True" and not finished
    containers_ready = conditions.get("ContainersReady", {}).get("status") == "True" and not finished
    ips = [entry["ip"] for entry in status.get("podIPs", ())] or [status.get("podIP", "")]
    volumes = {v.get("name"): v for v in spec.get("volumes", ())}
    selected = naming.worker_selector(naming.budget_of(obj) or "").items() <= metadata.get("labels", {}).items()
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        node=spec.get("nodeName", ""),
        ip=ips[0],
        created=metadata.get("creationTimestamp", ""),
        ready=ready,
        pending=status.get("phase", "Pending") == "Pending",
        terminating="deletionTimestamp" in metadata,
        finished=finished,
        spec_hash=annotations.get(naming.ANNOTATION_SPEC_HASH, "") if selected else "",
        template_hash=annotations.get(names.ANNOTATION_TEMPLATE_HASH, ""),
        update_token=annotations.get(naming.ANNOTATION_UPDATE_TOKEN, ""),
        config_name=volumes.get(naming.CONFIG, {}).get("configMap", {}).get("name", ""),
        owner_uid=naming.owner_uid(obj) or "",
        trouble=_trouble(metadata["name"], status, conditions, finished=finished),
        shares_host_pool="hostPath" in volumes.get(HOST_VOLUME, {}),
        out_of_sight=containers_ready and not ready and not spec.get("readinessGates"),
    )


def worst(troubles: Iterable[Trouble]) -> Trouble | None:
    """The trouble that a person should look at first."""
    order = list(_SEVERITY)
    return min(troubles, key=lambda t: order.index(t.reason) if t.reason in order else len(order), default=None)


_SEVERITY: Final = (
    Reason.PODS_FORBIDDEN,
    Reason.INVALID_POD_TEMPLATE,
    Reason.IMAGE_PULL_FAILED,
    Reason.WORKER_CRASHED,
    Reason.MODEL_STORE_NOT_SHARED,
    Reason.UNSCHEDULABLE,
)


def _trouble(name: str, status: Object, conditions: dict[str, Any], *, finished: bool) -> Trouble | None:
    if finished:
        why = status.get("message") or status.get("reason") or f"phase {status.get('phase')}"
        return Trouble(Reason.WORKER_GONE, f"pod {name} ended: {why}", _exit_code(status))
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return Trouble(Reason.UNSCHEDULABLE, f"pod {name} cannot be scheduled: {scheduled.get('message', '')}")
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        found = _container_trouble(name, container)
        if found is not None:
            return found
    return None


def _container_trouble(name: str, container: Object) -> Trouble | None:
    state = container.get("state", {})
    waiting = state.get("waiting", {})
    word, text = waiting.get("reason", ""), waiting.get("message", "")
    if word in _PULL_FAILURES:
        return Trouble(
            Reason.IMAGE_PULL_FAILED,
            f"pod {name}: image '{container.get('image', '')}' cannot be pulled: {text or word}",
        )
    if word in _TEMPLATE_FAILURES:
        return Trouble(Reason.INVALID_POD_TEMPLATE, f"pod {name}: container '{container['name']}': {word}: {text}")
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated")
    if (
        ended
        and not container.get("ready")
        and (word == "CrashLoopBackOff" or state.get("terminated", {}).get("exitCode"))
    ):
        code = int(ended.get("exitCode", 0))
        because = f" ({ended['reason']})" if ended.get("reason") not in (None, "Error", "Completed") else ""
        last = f": {ended['message'].strip()[-500:]}" if ended.get("message") else ""
        return Trouble(
            Reason.WORKER_CRASHED,
            f"pod {name}: container '{container['name']}' ended with exit code {code}{because}, restarted "
            f"{container.get('restartCount', 0)} times{last}",
            code,
        )
    return None


def _exit_code(status: Object) -> int | None:
    for container in status.get("containerStatuses", ()):
        ended = container.get("state", {}).get("terminated")
        if ended:
            return int(ended.get("exitCode", 0))
    return None
