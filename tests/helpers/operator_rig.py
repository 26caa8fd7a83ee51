# SPDX-License-Identifier: Apache-2.0
"""The whole operator against a real API server, with workers in the test process and a stand-in for the kubelets."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import itertools
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import grpc
import yaml
from helpers.fake_worker import FakeWorker
from prometheus_client import CollectorRegistry

from ballast_contract import names
from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.cluster import errors
from ballast_operator.cluster.access import Access
from ballast_operator.cluster.client import Client
from ballast_operator.cluster.limiter import TokenBucket
from ballast_operator.cluster.metrics import ClusterMetrics
from ballast_operator.cluster.permissions import PERMISSIONS
from ballast_operator.cluster.resources import (
    BUDGETS,
    CLAIMS,
    CONFIG_MAPS,
    DISRUPTION_BUDGETS,
    ENDPOINT_SLICES,
    EVENTS,
    LEASES,
    MANAGED_SELECTOR,
    MODELS,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
)
from ballast_operator.edge.arguments import Arguments
from ballast_operator.edge.health import Health
from ballast_operator.edge.process import Process
from ballast_operator.fleet.authority import Identity
from ballast_operator.fleet.channel import Dial, Member, channel
from ballast_operator.reconcile.options import Options

NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_BINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)

OPERATOR_USER = "system:serviceaccount:default:operator"

IMAGE = "registry.example/ballast-worker:test"
OPERATOR_IMAGE = "registry.example/ballast-operator:test"


async def connect(kubeconfig: Path) -> Client:
    """A client of the test's own."""
    writes = TokenBucket(rate=10_000, burst=10_000, clock=time.monotonic)
    return Client(await Access.load(kubeconfig), metrics=ClusterMetrics(CollectorRegistry()), writes=writes)


async def operator_kubeconfig(
    admin: Path, folder: Path, *, name: str = "operator", rules: list[dict[str, Any]] | None = None
) -> Path:
    """A kubeconfig with exactly the rights that the operator says it needs, or with others."""
    client = await connect(admin)
    try:
        for body, resource in (
            ({"metadata": {"name": name, "namespace": "default"}}, SERVICE_ACCOUNTS),
            ({"metadata": {"name": f"ballast-{name}"}, "rules": rules or _needed()}, CLUSTER_ROLES),
            (_binding(name), CLUSTER_BINDINGS),
        ):
            await client.apply(resource, body, manager="test")
        path = f"/api/v1/namespaces/default/serviceaccounts/{name}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 7200},
        }
        answer = await client._call("create", None, "POST", path, {}, request)
    finally:
        await client.close()
    config = yaml.safe_load(admin.read_text())  # noqa: ASYNC240
    config["users"][0]["user"] = {"token": answer["status"]["token"]}
    found = folder / f"{name}.kubeconfig"
    found.write_text(yaml.safe_dump(config))
    return found


def _needed() -> list[dict[str, Any]]:
    return [
        {"apiGroups": [p.group], "resources": [p.resource], "resourceNames": list(p.only), "verbs": list(p.verbs)}
        for p in PERMISSIONS
    ]


def _binding(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": f"ballast-{name}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"ballast-{name}"},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
    }


class RunningOperator:
    """One operator process, as a thread with a loop of its own."""

    def __init__(self, arguments: Arguments, dial: Dial, options: Options) -> None:
        self.arguments = arguments
        self.lost: list[str] = []
        self.error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._started = threading.Event()
        self.registry = CollectorRegistry()
        self.health = Health()
        self._process = Process(
            arguments, registry=self.registry, health=self.health, on_lost=self.lost.append, dial=dial, options=options
        )
        self._thread = threading.Thread(target=self._run, name="operator", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._started.wait(10)

    def join(self) -> None:
        """Wait for it to end by itself."""
        self._thread.join(30)

    def stop(self) -> None:
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        if self._thread.is_alive():
            for task in asyncio.all_tasks(self._loop):
                print(
                    task.get_name(), task.get_coro(), [f"{f.f_code.co_filename}:{f.f_lineno}" for f in task.get_stack()]
                )
        assert not self._thread.is_alive(), "the operator did not end within 30 s"
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - raised again by stop()
            self.error = error

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._started.set()
        try:
            await self._process.run(self._stop)
        finally:  # calls that were cut short end their TLS connections politely, which takes a moment
            await asyncio.sleep(0.2)


class Rig:
    """A namespace with an operator, its workers, and what a test does to them."""

    def __init__(self, client: Client, admin: Path, kubeconfig: Path, namespace: str, options: Options) -> None:
        self.client = client
        self._admin = admin
        self.namespace = namespace
        self.options = options
        self.workers: dict[str, FakeWorker] = {}
        self.prepare: Callable[[FakeWorker], None] = lambda _: None
        """Called with each new worker before it is dialled."""
        self.kubelet = True
        """New pods get a worker, and ending ones end."""
        self.collector = True
        """What belongs to an object that is gone goes too, as the garbage collector would have it."""
        self.certificates: dict[str, bytes] = {}
        """The Secret of the workers, as the kubelets last mounted it."""
        self.shown: Callable[[], dict[str, bytes]] = lambda: self.certificates
        """What workers show and trust on new connections."""
        self.nodes = itertools.cycle(["node-a", "node-b"])
        self.kubeconfig = kubeconfig
        self._addresses = itertools.count(1)
        self._operators: list[RunningOperator] = []
        self._kubelet_task: asyncio.Task[None] | None = None
        self._ending = False

    # The operator.

    def start_operator(self, **changes: Any) -> RunningOperator:
        arguments = Arguments(
            command="run",
            namespaces=(self.namespace,),
            kubeconfig=self.kubeconfig,
            context=None,
            lease_namespace=self.namespace,
            lease_name="ballast-operator",
            identity=f"test_{uuid.uuid4().hex[:8]}",
            worker_image=IMAGE,
            operator_image=OPERATOR_IMAGE,
            pull_secrets=(),
            host="127.0.0.1",
            port=0,
            writes_per_second=500,
            log_level="info",
            log_format="text",
        )
        arguments = dataclasses.replace(arguments, **changes)
        operator = RunningOperator(arguments, self._dial, self.options)
        self._operators.append(operator)
        operator.start()
        return operator

    def _dial(self, member: Member, identity: Identity) -> grpc.aio.Channel:
        """As the operator dials, but for the address: pods have none that leads anywhere."""
        worker = self.workers.get(member.name)
        return channel(dataclasses.replace(member, host="127.0.0.1", port=worker.port if worker else 1), identity)

    # The API.

    async def apply(self, resource: Resource, name: str, spec: Any = None, **metadata: Any) -> dict[str, Any]:
        body: dict[str, Any] = {"metadata": {"name": name, "namespace": self.namespace, **metadata}}
        if spec is not None:
            body["spec"] = spec
        return await self.client.apply(resource, body, manager="test")

    async def budget(self, name: str = "default", *, replicas: int = 1, **spec: Any) -> dict[str, Any]:
        workers = {"replicas": replicas, "backend": "cpu", **spec.pop("workers", {})}
        stores = [{"persistentVolumeClaim": {"claimName": "models"}}]
        host = {"sharing": "none"}  # no node to prepare, unless a test is about that
        return await self.apply(BUDGETS, name, {"workers": workers, "modelStores": stores, "host": host, **spec})

    async def model(self, name: str, *, budget: str = "default", uri: str = "", **spec: Any) -> dict[str, Any]:
        source = {"uri": uri or f"pvc://models/{name}"}
        return await self.apply(MODELS, name, {"budgetRef": {"name": budget}, "source": source, **spec})

    async def get(self, resource: Resource, name: str) -> dict[str, Any] | None:
        try:
            return await self.client.get(resource, self.namespace, name)
        except errors.NotFound:
            return None

    async def list(self, resource: Resource, labels: str | None = None) -> list[dict[str, Any]]:
        return list((await self.client.list(resource, self.namespace, labels=labels)).items)

    async def delete(self, resource: Resource, name: str, **options: Any) -> None:
        obj = await self.client.get(resource, self.namespace, name)
        await self.client.delete(resource, self.namespace, name, uid=obj["metadata"]["uid"], **options)

    async def annotate(self, resource: Resource, name: str, **annotations: str | None) -> None:
        keyed = {f"ballast.dev/{key}": value for key, value in annotations.items()}
        await self.client.patch(resource, self.namespace, name, {"metadata": {"annotations": keyed}})

    async def condition(self, resource: Resource, name: str, type_: str) -> tuple[str, str, str]:
        obj = await self.get(resource, name)
        for condition in (obj or {}).get("status", {}).get("conditions", ()):
            if condition["type"] == type_ and condition["observedGeneration"] == obj["metadata"]["generation"]:
                return condition["status"], condition["reason"], condition["message"]
        return "", "", ""

    async def transition(self, resource: Resource, name: str, type_: str) -> str:
        """When a condition last changed."""
        obj = await self.client.get(resource, self.namespace, name)
        return next(c["lastTransitionTime"] for c in obj["status"]["conditions"] if c["type"] == type_)

    async def enforce_restricted(self) -> None:
        """Pods of the namespace have to meet the restricted Pod Security level."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        await self.client.apply(NAMESPACES, {"metadata": {"name": self.namespace, "labels": labels}}, manager="test")

    async def powerless(self) -> Path:
        """Credentials that may do everything with the Lease, read models and budgets, and nothing else."""
        rules = [
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]},
            {"apiGroups": ["ballast.dev"], "resources": ["*"], "verbs": ["get", "list"]},
        ]
        return await operator_kubeconfig(self._admin, self.kubeconfig.parent, name="powerless", rules=rules)

    def release(self, worker_image: str) -> None:
        """Operators started from now on were installed with another worker image."""
        self.options = dataclasses.replace(self.options, worker_image=worker_image)

    async def until(self, what: Callable[[], Any], *, seconds: float = 30.0) -> Any:
        """Look again and again until something is so; an assertion that fails counts as not yet."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = await what()
                if found:
                    return found
                problem: BaseException | None = None
            except (AssertionError, KeyError, IndexError, TypeError, ValueError) as error:
                problem = error
            if time.monotonic() > deadline:
                raise AssertionError(f"it did not come about within {seconds:g} s") from problem
            await asyncio.sleep(0.05)

    async def until_condition(
        self,
        resource: Resource,
        name: str,
        type_: str,
        status: str,
        reason: str | None = None,
        *,
        seconds: float = 30.0,
    ) -> str:
        """Wait for a condition; returns its message."""
        last: tuple[str, str, str] = ("", "", "")

        async def look() -> bool:
            nonlocal last
            last = await self.condition(resource, name, type_)
            return last[0] == status and reason in (None, last[1])

        try:
            await self.until(look, seconds=seconds)
        except AssertionError as error:
            raise AssertionError(f"{type_} of {name} is {last}, not {status} {reason or ''}") from error
        return last[2]

    async def pods(self, budget: str = "default") -> list[dict[str, Any]]:
        return sorted(await self.list(PODS, f"ballast.dev/budget={budget}"), key=lambda p: p["metadata"]["name"])

    async def endpoints(self, model: str) -> dict[str, tuple[bool, bool, bool]]:
        """Pod name to ready, serving, terminating."""
        found = {}
        for obj in await self.list(ENDPOINT_SLICES, f"kubernetes.io/service-name={model}"):
            for endpoint in obj.get("endpoints") or ():
                c = endpoint["conditions"]
                found[endpoint["targetRef"]["name"]] = (c["ready"], c["serving"], c["terminating"])
        return found

    async def events(self, name: str) -> list[tuple[str, str, str]]:
        return [
            (e["type"], e["reason"], e["note"])
            for e in await self.list(EVENTS)
            if e.get("regarding", {}).get("name") == name
        ]

    # The kubelets.

    async def set_pod_status(self, name: str, **status: Any) -> None:
        await self.client.patch(PODS, self.namespace, name, {"status": status}, subresource="status")

    async def set_ready(self, name: str, ready: bool) -> None:
        await self.set_pod_status(name, conditions=[_ready(ready)])

    async def lose_sight(self, name: str) -> None:
        """Call a pod not Ready as the node controller does when it has not heard of the node: against the kubelet's word."""
        kubelets = {"type": "ContainersReady", "status": "True"}
        await self.set_pod_status(name, conditions=[_ready(False), kubelets])

    async def run_pod(self, pod: dict[str, Any]) -> FakeWorker:
        """Bind a pod to a node, start a worker for it, and call it Ready."""
        name = pod["metadata"]["name"]
        node = await self.bind(pod)
        await self.until(self.mount)
        worker = self.workers[name] = FakeWorker(name, node=node)
        worker.authorities = lambda: hashlib.sha256(self.certificates["ca.crt"]).hexdigest()
        self.prepare(worker)
        await worker.start(grpc.dynamic_ssl_server_credentials(self._configuration(), self._configuration, True))
        address = f"10.77.0.{next(self._addresses)}"
        await self.set_pod_status(
            name, phase="Running", podIP=address, podIPs=[{"ip": address}], conditions=[_ready(True)]
        )
        return worker

    async def mount(self) -> bool:
        """Bring the mounted Secret up to date; False while there is none."""
        secret = await self.get(SECRETS, names.WORKER_CERTIFICATE)
        if secret is not None:
            self.certificates = {key: base64.b64decode(text) for key, text in secret["data"].items()}
        return secret is not None

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        held = self.shown()
        return grpc.ssl_server_certificate_configuration([(held["tls.key"], held["tls.crt"])], held["ca.crt"])

    async def bind(self, pod: dict[str, Any]) -> str:
        """Give a pod a node, as the scheduler would."""
        if "nodeName" in pod["spec"]:
            return str(pod["spec"]["nodeName"])
        name, node = pod["metadata"]["name"], next(self.nodes)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/binding"
        await self.client._call("create", PODS, "POST", path, {}, binding)
        return node

    async def end_pod(self, name: str) -> None:
        """The kubelet's last word: the pod is gone."""
        worker = self.workers.pop(name, None)
        if worker is not None:
            await worker.stop()
        try:
            await self.delete(PODS, name, grace_seconds=0)
        except (errors.NotFound, errors.Conflict):
            return

    async def _kubelets(self) -> None:
        while not self._ending:
            if self.kubelet:
                for pod in await self.list(PODS, "app.kubernetes.io/component=worker"):
                    name = pod["metadata"]["name"]
                    if "deletionTimestamp" in pod["metadata"]:
                        worker = self.workers.get(name)
                        if worker is None or worker.released or worker.condition.phase == pb.WORKER_PHASE_REFUSED:
                            await self.end_pod(name)
                        else:
                            worker.terminate()
                    elif name not in self.workers and not pod.get("status", {}).get("podIP"):
                        try:
                            await self.run_pod(pod)
                        except (errors.NotFound, errors.Conflict):  # it was deleted meanwhile
                            await self.end_pod(name)
            await self.mount()
            if self.collector:
                await self.collect()
            await asyncio.sleep(0.05)

    async def collect(self) -> None:
        """One pass of the garbage collector."""
        alive = {obj["metadata"]["uid"] for kind in (MODELS, BUDGETS) for obj in await self.list(kind)}
        for resource in (SERVICES, ENDPOINT_SLICES, CONFIG_MAPS, DISRUPTION_BUDGETS, SECRETS, PODS):
            for obj in await self.list(resource, MANAGED_SELECTOR):
                owners = {owner["uid"] for owner in obj["metadata"].get("ownerReferences", ())}
                if owners and not owners & alive and "deletionTimestamp" not in obj["metadata"]:
                    metadata = obj["metadata"]
                    await self.client.delete(resource, self.namespace, metadata["name"], uid=metadata["uid"])

    async def __aenter__(self) -> Self:
        await self.client.apply(NAMESPACES, {"metadata": {"name": self.namespace}}, manager="test")
        self._kubelet_task = asyncio.create_task(self._kubelets())
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            for operator in self._operators:
                await asyncio.to_thread(operator.stop)
        finally:
            self._ending = True
            try:
                if (
                    self._kubelet_task is not None
                ):  # not cancelled: a call cut short leaves its TLS connection half closed
                    await self._kubelet_task
            finally:
                for worker in self.workers.values():
                    await worker.stop()


def _ready(ready: bool) -> dict[str, Any]:
    return {"type": "Ready", "status": "True" if ready else "False"}


@asynccontextmanager
async def rig(admin: Path, operator_config: Path, **options: Any) -> AsyncIterator[Rig]:
    """A rig in a namespace of its own."""
    client = await connect(admin)
    short = {
        "certificate_seconds": 0.5,
        "figures_seconds": 0.2,
        "drain_seconds": 1.0,
        "deletion_seconds": 3.0,
        "heartbeat_seconds": 3.0,
    }
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    settings = Options(worker_image=IMAGE, operator_image=OPERATOR_IMAGE, namespace=namespace, **{**short, **options})
    try:
        async with Rig(client, admin, operator_config, namespace, settings) as found:
            yield found
    finally:
        await client.close()


__all__ = [
    "BUDGETS",
    "CLAIMS",
    "CONFIG_MAPS",
    "ENDPOINT_SLICES",
    "EVENTS",
    "LEASES",
    "MODELS",
    "PODS",
    "SECRETS",
    "SERVICES",
    "Rig",
    "rig",
]
