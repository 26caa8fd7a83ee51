# SPDX-License-Identifier: Apache-2.0
"""etcd, API server, controller manager and scheduler as plain processes of this machine."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request

from e2e.cluster.commands import kubectl, put
from e2e.cluster.pki import certificate, kubeconfig, make_authority
from e2e.cluster.processes import Processes
from e2e.cluster.settings import Settings

_AUTHENTICATION = """\
apiVersion: apiserver.config.k8s.io/v1beta1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions: [{path: /livez}, {path: /readyz}, {path: /healthz}]
"""


_AUDIT = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: [{user}]
- level: None
"""


def make_folders(settings: Settings) -> None:
    """Make the folders that every part writes to."""
    for folder in (settings.pki, settings.conf, settings.log, settings.run):
        folder.mkdir(parents=True, exist_ok=True)


def control_plane_up(settings: Settings, *, controllers: bool = True, nodes: bool = True, audited: str = "") -> None:
    """Start what is missing and wait until the API server is ready. Without nodes there is no scheduler either.

    audited: a user whose calls the API server writes down, one JSON object a line, in `audit.log` among the logs.
    """
    make_folders(settings)
    make_authority(settings)
    _credentials(settings)
    processes = Processes(settings)
    _etcd_up(processes)
    api_server_up(processes, controllers=controllers, nodes=nodes, audited=audited)
    if controllers:
        _controller_manager_up(processes)
    if nodes:
        _scheduler_up(processes)


def healthy(settings: Settings, url: str) -> bool:
    """Whether a health address answers 200, asked past any proxy of the environment."""
    context = ssl.create_default_context(cafile=str(settings.pki / "ca.crt")) if url.startswith("https") else None
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def default_account_made(settings: Settings) -> None:
    """Wait for the controller manager to have made the ServiceAccount that pods need."""
    Processes(settings).wait(
        "kube-controller-manager",
        "default ServiceAccount exists",
        lambda: kubectl(settings, "get", "serviceaccount", "default", check=False).returncode == 0,
        seconds=60,
    )


def _credentials(settings: Settings) -> None:
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    names += ["localhost", "127.0.0.1", settings.api_host, settings.api_service]
    certificate(settings, "apiserver", common_name="kube-apiserver", names=dict.fromkeys(names))
    masters = "system:masters"
    certificate(settings, "apiserver-kubelet-client", common_name="kube-apiserver-kubelet-client", group=masters)
    certificate(settings, "admin", common_name=f"{settings.name}-admin", group=masters)
    for name in ("controller-manager", "scheduler"):
        certificate(settings, name, common_name=f"system:kube-{name}")
    certificate(settings, "proxy", common_name="system:kube-proxy")
    for name in ("admin", "controller-manager", "scheduler", "proxy"):
        kubeconfig(settings, name)


def _etcd_up(processes: Processes) -> None:
    settings = processes.settings
    clients = f"http://127.0.0.1:{settings.etcd_port}"
    peers = f"http://127.0.0.1:{settings.etcd_peer_port}"
    argv = [settings.bin / "etcd", "--name=ballast", f"--data-dir={settings.state}/etcd"]
    argv += [f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}"]
    argv += [f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"]
    argv += [f"--initial-cluster=ballast={peers}", "--unsafe-no-fsync", "--log-level=warn"]
    argv += ["--heartbeat-interval=20", "--election-timeout=100"]  # alone, it elects itself sooner
    processes.spawn("etcd", argv)
    ready = f"{clients}/health"
    processes.wait("etcd", "etcd answers", lambda: healthy(settings, ready), seconds=30)


def api_server_up(processes: Processes, *, controllers: bool, nodes: bool, audited: str) -> None:
    """Start an API server on the etcd of its settings, and wait until it is ready."""
    settings, pki = processes.settings, processes.settings.pki
    put(settings.conf / "authentication.yaml", _AUTHENTICATION)
    argv = [
        settings.bin / "kube-apiserver",
        f"--bind-address={settings.api_host}",
        f"--secure-port={settings.api_port}",
        f"--etcd-servers=http://127.0.0.1:{settings.etcd_port}",
        f"--service-cluster-ip-range={settings.services}.0.0/16",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet-client.key",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--authentication-config={settings.conf}/authentication.yaml",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--profiling=false",
    ]
    if nodes:
        argv += [f"--advertise-address={settings.api_host}"]
    else:
        argv += ["--endpoint-reconciler-type=none"]  # the Service `kubernetes` takes no loopback address
    if not controllers:
        argv += ["--disable-admission-plugins=ServiceAccount"]  # nobody makes the ServiceAccount that pods would need
    if audited:
        put(settings.conf / "audit.yaml", _AUDIT.format(user=audited))
        argv += [f"--audit-policy-file={settings.conf}/audit.yaml", f"--audit-log-path={settings.log}/audit.log"]
        argv += ["--audit-log-mode=blocking"]
    processes.spawn("kube-apiserver", argv)
    ready = f"{settings.api_url}/readyz"
    processes.wait("kube-apiserver", "kube-apiserver is ready", lambda: healthy(settings, ready), seconds=90)


def _controller_manager_up(processes: Processes) -> None:
    settings, pki = processes.settings, processes.settings.pki
    argv = [
        settings.bin / "kube-controller-manager",
        f"--kubeconfig={settings.conf}/controller-manager.kubeconfig",
        "--bind-address=127.0.0.1",
        f"--secure-port={settings.controller_manager_port}",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        "--kube-api-qps=200",  # at the defaults (20, 30) the last controllers start 4 s late
        "--kube-api-burst=400",
        f"--root-ca-file={pki}/ca.crt",
        f"--service-account-private-key-file={pki}/sa.key",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        "--profiling=false",
    ]
    processes.spawn("kube-controller-manager", argv)


def _scheduler_up(processes: Processes) -> None:
    settings = processes.settings
    argv = [settings.bin / "kube-scheduler", f"--kubeconfig={settings.conf}/scheduler.kubeconfig"]
    argv += ["--bind-address=127.0.0.1", f"--secure-port={settings.scheduler_port}", "--leader-elect=false"]
    processes.spawn("kube-scheduler", [*argv, "--profiling=false"])
