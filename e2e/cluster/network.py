# SPDX-License-Identifier: Apache-2.0
"""The bridge between this machine and the nodes, the nodes' cables, and the routes to pods and Services."""

from __future__ import annotations

from pathlib import Path

from e2e.cluster.commands import run
from e2e.cluster.console import ClusterError
from e2e.cluster.settings import Settings

INTERFACES = Path("/sys/class/net")


def bridge_up(settings: Settings) -> None:
    """Make the bridge, which carries the API server's address."""
    for line in run(settings, "ip", "-oneline", "addr", "show", "to", f"{settings.net}.0/24").stdout.splitlines():
        if (taken := line.split()[1]) != settings.bridge:
            raise ClusterError(
                f"the network {settings.net}.0/24 is in use by interface {taken}: set BALLAST_CLUSTER_NET to another, "
                "and BALLAST_CLUSTER_PODS, _SERVICES and _PORTS too if that is another cluster's"
            )
    if not (INTERFACES / settings.bridge).exists():
        run(settings, "ip", "link", "add", settings.bridge, "type", "bridge")
    run(settings, "ip", "addr", "replace", f"{settings.api_host}/24", "dev", settings.bridge)
    run(settings, "ip", "link", "set", settings.bridge, "up")


def connect_node(settings: Settings, number: int, *, pid: int) -> None:
    """Run a cable from the bridge into a node's network namespace, which the process pid holds."""
    link, address = settings.node_link(number), settings.node_address(number)
    run(settings, "ip", "link", "delete", link, check=False)
    run(settings, "ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", pid)
    run(settings, "ip", "link", "set", link, "master", settings.bridge, "up")
    script = [
        f"ip addr add {address}/24 dev eth0",
        "ip link set eth0 up",
        # A process of the node reaches a Service only if some route exists before the address is rewritten.
        f"ip route add default via {settings.api_host}",
        "sysctl -qw net.ipv4.ip_forward=1",
    ]
    run(settings, "nsenter", f"--target={pid}", "--net", "--", "sh", "-ec", "\n".join(script))
    # This machine reaches the pods, and the Services by way of the first node's kube-proxy.
    routes = [settings.pod_network(number)] + ([f"{settings.services}.0.0/16"] if number == 1 else [])
    for target in routes:
        run(settings, "ip", "route", "replace", target, "via", address, "dev", settings.bridge)


def route_between(settings: Settings, pids: dict[int, int]) -> None:
    """Tell every node the way to the pods of every other. pids: of the nodes' holders, by number."""
    for here, pid in pids.items():
        lines = [
            f"ip route replace {settings.pod_network(there)} via {settings.node_address(there)}"
            for there in pids
            if there != here
        ]
        if lines:
            run(settings, "nsenter", f"--target={pid}", "--net", "--", "sh", "-ec", "\n".join(lines))


def interfaces(settings: Settings) -> list[str]:
    """Return this machine's interfaces that belong to the cluster."""
    links = [path.name for path in INTERFACES.glob(f"{settings.name}-v*")]
    return sorted(links) + ([settings.bridge] if (INTERFACES / settings.bridge).exists() else [])


def network_down(settings: Settings) -> None:
    """Remove the interfaces; the routes over the bridge go with it."""
    for link in interfaces(settings):
        run(settings, "ip", "link", "delete", link, check=False)
