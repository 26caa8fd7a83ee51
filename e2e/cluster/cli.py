# SPDX-License-Identifier: Apache-2.0
"""Command line of the local cluster."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from e2e.cluster import apiserver, lifecycle
from e2e.cluster.commands import need_root
from e2e.cluster.console import ClusterError
from e2e.cluster.diagnosis import diagnosis
from e2e.cluster.leftovers import leftovers
from e2e.cluster.nodes import Node, running_nodes
from e2e.cluster.settings import Settings

_ABOUT = """\
One real Kubernetes cluster on this machine, without a container engine or a registry. The control plane runs as plain
processes; every node is a set of namespaces held by one process, with containerd, kubelet, kube-proxy and all pods inside.
"""
_EXAMPLES = """\
examples:
  cluster up --nodes 2                  start two nodes with two nvidia.com/gpu each, or what is missing of them
  eval "$(cluster env)"                 set KUBECONFIG and PATH, then use kubectl and helm as ever
  cluster load                          give running nodes the images that were built since
  cluster shell ballast-1 ip route      run a command inside a node
  cluster logs ballast-2.kubelet -f     follow a log; without a name, list them
  cluster down && cluster leftovers     end everything (images are kept), and prove that nothing is left
  cluster apiserver up                  an API server alone, on loopback, in about 3 seconds

variables: BALLAST_CLUSTER_HOME, _STATE, _NAME, _NET, _PODS, _SERVICES, _PORTS, _PROXY_MODE, _SHM, _CNI_BIN; see README.md
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command; return its exit status."""
    options = _parser().parse_args(argv)
    try:
        return _dispatch(options, Settings.from_environment())
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("cluster: interrupted; the same command goes on from here", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="cluster", description=_ABOUT, epilog=_EXAMPLES, formatter_class=raw)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser("up", help="start it, or what is missing of it, and wait until it is ready")
    command.add_argument("--nodes", type=_count(1, 99), default=1, metavar="N", help="number of nodes (default 1)")
    command.add_argument(
        "--gpus", type=_count(0, 64), default=2, metavar="N", help="made-up GPUs for each node (default 2)"
    )
    command.add_argument("--no-dns", action="store_true", help="leave CoreDNS out")
    command = commands.add_parser("down", help="stop it and remove its state")
    command.add_argument("--all", action="store_true", help="also imported images and logs")
    commands.add_parser("status", help="processes, memory, nodes, pods; exit status 1 unless all run")
    command = commands.add_parser("logs", help="show a component's log")
    command.add_argument("component", nargs="?", help="for example kube-apiserver or ballast-1.kubelet")
    command.add_argument("-f", "--follow", action="store_true", help="go on as it grows")
    command.add_argument("-n", "--lines", type=_count(0, 1_000_000), default=50, metavar="N", help="default 50")
    command = commands.add_parser("load", help="import images into every running node")
    command.add_argument("files", nargs="*", type=Path, metavar="FILE", help="archive (default: what was built)")
    command = commands.add_parser("shell", help="run a command inside a node")
    command.add_argument("node", help="for example ballast-1, or 1")
    command.add_argument("argv", nargs=argparse.REMAINDER, metavar="CMD")
    commands.add_parser(
        "diagnose", help="why pods do not start: their state, Warning Events, errors of the nodes' programs"
    )
    commands.add_parser("env", help="print the exports for kubectl")
    commands.add_parser("leftovers", help="list what is left on the machine; exit status 1 if anything is")
    command = commands.add_parser("apiserver", help="an API server without nodes")
    command.add_argument("action", choices=["up", "down", "env"])
    command.add_argument("--controllers", action="store_true", help="with the controller manager")
    return parser


def _count(low: int, high: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        if not text.isdigit() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text} is not a number from {low} to {high}")
        return int(text)

    return count


def _dispatch(options: argparse.Namespace, settings: Settings) -> int:
    match options.command:
        case "up":
            lifecycle.up(settings, count=options.nodes, gpus=options.gpus, dns=not options.no_dns)
            _print_env(settings)
        case "down":
            lifecycle.down(settings, everything=options.all)
        case "status":
            return lifecycle.status(settings)
        case "logs":
            lifecycle.logs(settings, options.component, follow=options.follow, lines=options.lines)
        case "load":
            lifecycle.load(settings, options.files)
        case "shell":
            lifecycle.shell(settings, options.node, options.argv)
        case "diagnose":
            print(diagnosis(settings))
        case "env":
            _print_env(settings)
            for number in running_nodes(settings):
                node = Node(settings, number)
                print(f"# {node.name}: export CONTAINERD_ADDRESS={node.socket} CONTAINERD_NAMESPACE=k8s.io")
        case "leftovers":
            need_root()
            left = leftovers(settings)
            print("\n".join(left) if left else "nothing is left")
            return 1 if left else 0
        case "apiserver":
            return _apiserver(options, apiserver.named(settings))
    return 0


def _apiserver(options: argparse.Namespace, settings: Settings) -> int:
    match options.action:
        case "up":
            apiserver.up(settings, controllers=options.controllers)
            _print_env(settings)
        case "env":
            _print_env(settings)
        case "down":
            apiserver.down(settings)
    return 0


def _print_env(settings: Settings) -> None:
    print(f"export KUBECONFIG={settings.admin} PATH={settings.bin}:$PATH")
