# SPDX-License-Identifier: Apache-2.0
"""The command line of the operator; every option may also come from the environment."""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ballast_contract.command_line import Parser

_EXAMPLES: Final = """\
Every option has a variable: BALLAST_OPERATOR_ and the option in upper snake case, as in
BALLAST_OPERATOR_WORKER_IMAGE=registry.example/ballast-worker:1.0; the command line wins.

examples:
  in a pod, all namespaces      ballast-operator run --worker-image registry.example/ballast-worker:1.0 \\
                                  --operator-image registry.example/ballast-operator:1.0
  two namespaces                ballast-operator run --namespace team-a --namespace team-b --worker-image ...
  from a workstation            ballast-operator run --kubeconfig ~/.kube/config --lease-namespace default --worker-image ...
  before uninstalling           ballast-operator strip-finalizers --lease-namespace ballast-system
"""

PREFIX: Final = "BALLAST_OPERATOR_"

_MOST_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class Arguments:
    """What the command line says."""

    command: str
    namespaces: tuple[str, ...]
    """Empty: all of them."""
    kubeconfig: Path | None
    context: str | None
    lease_namespace: str
    lease_name: str
    identity: str
    worker_image: str
    operator_image: str
    pull_secrets: tuple[str, ...]
    host: str
    port: int
    writes_per_second: float
    log_level: str
    log_format: str


def parse(argv: Sequence[str], environment: Mapping[str, str]) -> Arguments:
    """Read the command line and the environment; ends the process with a message when they make no sense."""
    parser = command_line(environment)
    given = parser.parse_args(argv)
    in_pod = "KUBERNETES_SERVICE_HOST" in environment
    kubeconfig = given.kubeconfig
    if kubeconfig is None and not in_pod:
        kubeconfig = str(Path(environment.get("HOME", "~")).expanduser() / ".kube" / "config")
    lease_namespace = given.lease_namespace or environment.get("POD_NAMESPACE", "")
    if not lease_namespace:
        parser.error("--lease-namespace is needed outside a pod: the namespace that holds the Lease")
    if given.command == "run" and not given.worker_image:
        parser.error("--worker-image is needed: what workers run whose WeightBudget names no image")
    if given.command == "run" and not given.operator_image:
        parser.error("--operator-image is needed: what prepares host pools on the nodes, and removes them")
    pull_secrets = given.pull_secret or _split(environment.get(f"{PREFIX}PULL_SECRET", ""))
    namespaces = given.namespace or _split(environment.get(f"{PREFIX}NAMESPACE", ""))
    return Arguments(
        command=given.command,
        namespaces=tuple(sorted({n for text in namespaces for n in _split(text)})),
        kubeconfig=Path(kubeconfig).expanduser() if kubeconfig else None,
        context=given.context,
        lease_namespace=lease_namespace,
        lease_name=given.lease_name,
        identity=_identity(environment),
        worker_image=given.worker_image or "",
        operator_image=given.operator_image or "",
        pull_secrets=tuple(name for text in pull_secrets for name in _split(text)),
        host=given.host,
        port=given.port,
        writes_per_second=given.writes_per_second,
        log_level=given.log_level,
        log_format=given.log_format,
    )


def version() -> str:
    """Ballast's own version."""
    try:
        return importlib.metadata.version("ballast")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def command_line(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """The parser of its arguments, with the defaults that an environment gives."""

    def default(option: str, otherwise: str | None = None) -> str | None:
        return environment.get(PREFIX + option.upper().replace("-", "_"), otherwise)

    parser = Parser(
        prog="ballast-operator",
        description="Runs the Ballast operator: worker pods, placement of models and their status.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ballast-operator {version()}")
    parser.add_argument(
        "command",
        choices=("run", "strip-finalizers"),
        help="run: the operator. strip-finalizers: take the Lease and remove Ballast's finalizer from every WeightBudget, "
        "so that they can be deleted when the operator is gone",
    )
    parser.add_argument(
        "--namespace", action="append", metavar="NAME", help="watch this namespace only; may be repeated (default: all)"
    )
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        default=default("kubeconfig", environment.get("KUBECONFIG") or None),
        help="how to reach the cluster (default: $KUBECONFIG, the service account in a pod, else ~/.kube/config)",
    )
    parser.add_argument("--context", metavar="NAME", default=default("context"), help="context of the kubeconfig")
    parser.add_argument(
        "--worker-image",
        metavar="IMAGE",
        default=default("worker-image"),
        help="what workers run whose WeightBudget names no image",
    )
    parser.add_argument(
        "--operator-image",
        metavar="IMAGE",
        default=default("operator-image"),
        help="the operator's own image: it prepares host pools on the nodes, and removes them",
    )
    parser.add_argument(
        "--pull-secret",
        action="append",
        metavar="NAME",
        help="Secret of the Lease's namespace with which that image is pulled there; may be repeated",
    )
    parser.add_argument(
        "--lease-namespace",
        metavar="NAME",
        default=default("lease-namespace"),
        help="namespace of the leader election Lease (default: $POD_NAMESPACE)",
    )
    parser.add_argument(
        "--lease-name", metavar="NAME", default=default("lease-name", "ballast-operator"), help="its name (%(default)s)"
    )
    parser.add_argument(
        "--host", metavar="ADDRESS", default=default("host", "0.0.0.0"), help="where /metrics listens (%(default)s)"
    )
    parser.add_argument(
        "--port",
        type=_port,
        metavar="PORT",
        default=default("port", "8080"),
        help="port of /metrics, /healthz and /readyz (%(default)s)",
    )
    parser.add_argument(
        "--writes-per-second",
        type=_rate,
        metavar="N",
        default=default("writes-per-second", "1000"),
        help="most writes to the API server, as many at once after a pause (%(default)s)",
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default=default("log-level", "info"),
        help="(%(default)s)",
    )
    parser.add_argument(
        "--log-format", choices=("text", "json"), default=default("log-format", "text"), help="(%(default)s)"
    )
    return parser


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= _MOST_PORT):
        raise argparse.ArgumentTypeError(
            f"{text} is no port: give a whole number from 0 to {_MOST_PORT}; 0 takes a free one"
        )
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not (math.isfinite(rate) and rate > 0):
        raise argparse.ArgumentTypeError(f"{text} is no rate: give a finite number above 0, such as 1000")
    return rate


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _identity(environment: Mapping[str, str]) -> str:
    """Pod, its uid, and something new for each process: a container that restarts is another candidate."""
    pod = environment.get("POD_NAME") or environment.get("HOSTNAME") or socket.gethostname() or f"pid-{os.getpid()}"
    parts = (pod, environment.get("POD_UID", ""), uuid.uuid4().hex[:8])
    return "_".join(part for part in parts if part)
