# SPDX-License-Identifier: Apache-2.0
"""Everything about a cluster that can differ: folders, names, networks, ports and sizes, read from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.console import ClusterError

REGISTRY = "localhost/ballast"
PAUSE_IMAGE = f"{REGISTRY}/pause:3.10"
COREDNS_IMAGE = f"{REGISTRY}/coredns:1.12"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# What each variable must look like, and an example for the message when it does not.
_PATTERNS = {
    "BALLAST_CLUSTER_NAME": (r"[a-z][a-z0-9]{0,7}", "ballast (it begins interface names, which are short)"),
    "BALLAST_CLUSTER_NET": (r"\d{1,3}\.\d{1,3}\.\d{1,3}", "10.89.0"),
    "BALLAST_CLUSTER_PODS": (r"\d{1,3}\.\d{1,3}", "10.88"),
    "BALLAST_CLUSTER_SERVICES": (r"\d{1,3}\.\d{1,3}", "10.96"),
    "BALLAST_CLUSTER_PORTS": (r"\d{4,5}", "12379"),
    "BALLAST_CLUSTER_PROXY_MODE": (r"iptables|nftables", "iptables"),
    "BALLAST_CLUSTER_SHM": (r"\d+[kmg]", "2g"),
}


def cache_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of built binaries and images, which all clusters of this machine share."""
    return Path(environ.get("BALLAST_CLUSTER_HOME") or Path.home() / ".cache" / "ballast")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One cluster. Two can run side by side when name, state, networks and ports all differ."""

    home: Path
    state: Path
    name: str = "ballast"  # of the cgroup folder; begins the names of the bridge, the links and the nodes
    net: str = "10.89.0"  # first three octets of the network between the nodes
    pods: str = "10.88"  # first two octets of the pods' network, a /24 for each node
    services: str = "10.96"  # first two octets of the Services' network
    etcd_port: int = 12379
    etcd_peer_port: int = 12380
    controller_manager_port: int = 10257
    scheduler_port: int = 10259
    api_host: str = "10.89.0.1"
    api_port: int = 6443
    proxy_mode: str = "iptables"
    shm: str = "2g"  # size of each node's own /dev/shm
    cni_plugins: str = "/usr/lib/cni"
    tied: bool = False  # the processes end with the one that started them

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Read the BALLAST_CLUSTER_* variables; one with a wrong value is an error that names it."""

        def value(name: str, default: str) -> str:
            found = environ.get(name) or default
            pattern, example = _PATTERNS[name]
            if not re.fullmatch(pattern, found):
                raise ClusterError(f"{name}={found}: it must match {pattern}, for example {example}")
            return found

        net = value("BALLAST_CLUSTER_NET", cls.net)
        etcd_port = int(value("BALLAST_CLUSTER_PORTS", str(cls.etcd_port)))
        shifted = etcd_port - cls.etcd_port
        name = value("BALLAST_CLUSTER_NAME", cls.name)
        return cls(
            home=cache_home(environ),
            state=Path(environ.get("BALLAST_CLUSTER_STATE") or f"/var/tmp/{name}-cluster"),  # noqa: S108 - root's own
            name=name,
            net=net,
            pods=value("BALLAST_CLUSTER_PODS", cls.pods),
            services=value("BALLAST_CLUSTER_SERVICES", cls.services),
            etcd_port=etcd_port,
            etcd_peer_port=etcd_port + 1,
            controller_manager_port=cls.controller_manager_port + shifted,
            scheduler_port=cls.scheduler_port + shifted,
            api_host=f"{net}.1",
            proxy_mode=value("BALLAST_CLUSTER_PROXY_MODE", cls.proxy_mode),
            shm=value("BALLAST_CLUSTER_SHM", cls.shm),
            cni_plugins=environ.get("BALLAST_CLUSTER_CNI_BIN") or cls.cni_plugins,
        )

    @property
    def bin(self) -> Path:
        """Folder of the binaries that the bootstrap built."""
        return self.home / "bin"

    @property
    def images(self) -> Path:
        """OCI layout with every image that a node is given."""
        return self.home / "images" / "layout"

    @property
    def pki(self) -> Path:
        """Folder of keys and certificates."""
        return self.state / "pki"

    @property
    def conf(self) -> Path:
        """Folder of configuration files and kubeconfigs."""
        return self.state / "conf"

    @property
    def log(self) -> Path:
        """Folder of one log for each process."""
        return self.state / "log"

    @property
    def run(self) -> Path:
        """Folder of pid files."""
        return self.state / "run"

    @property
    def admin(self) -> Path:
        """Kubeconfig of an administrator."""
        return self.conf / "admin.kubeconfig"

    @staticmethod
    def check_kubeconfig(named: str) -> None:
        """Look whether a file that KUBECONFIG names, which may be several, is there.

        Raises:
            ClusterError: none is.
        """
        if not any(Path(each).expanduser().is_file() for each in named.split(os.pathsep) if each):
            raise ClusterError(
                f"KUBECONFIG is {named}, and there is no such file: leave it out for a cluster on this machine"
            )

    def is_at(self, kubeconfig: str | None) -> bool:
        """Whether a kubeconfig (None or empty: none was named) means this cluster."""
        return not kubeconfig or Path(kubeconfig).expanduser().resolve() == self.admin.resolve()

    @property
    def bridge(self) -> str:
        """Interface that joins this machine and the nodes."""
        return f"{self.name}0"

    @property
    def api_url(self) -> str:
        """Where the API server answers, for this machine, the nodes and the pods alike."""
        return f"https://{self.api_host}:{self.api_port}"

    @property
    def api_service(self) -> str:
        """Address of the Service `kubernetes`."""
        return f"{self.services}.0.1"

    @property
    def dns_service(self) -> str:
        """Address of the Service of CoreDNS."""
        return f"{self.services}.0.10"

    def node_name(self, number: int) -> str:
        """Name of a node, which are counted from 1."""
        return f"{self.name}-{number}"

    def node_folder(self, number: int) -> Path:
        """Folder of a node's own files."""
        return self.state / self.node_name(number)

    def node_address(self, number: int) -> str:
        """Address of a node on the bridge."""
        return f"{self.net}.{10 + number}"

    def node_link(self, number: int) -> str:
        """This machine's end of the cable to a node."""
        return f"{self.name}-v{number}"

    def pod_network(self, number: int) -> str:
        """Network of the pods of one node."""
        return f"{self.pods}.{number}.0/24"
