# SPDX-License-Identifier: Apache-2.0
"""An API server alone, on loopback with ports and state of its own, for tests that need no nodes."""

from __future__ import annotations

import dataclasses
import random
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.console import ClusterError
from e2e.cluster.controlplane import api_server_up, control_plane_up, default_account_made, make_folders
from e2e.cluster.processes import Processes
from e2e.cluster.settings import Settings

# Below those that the kernel gives to whoever asks for any, as clients do all the time.
_PORTS = range(20_000, 30_000)


@dataclass(frozen=True)
class ApiServer:
    """A running API server."""

    kubeconfig: Path
    url: str
    certificate_authority: Path
    settings: Settings

    @property
    def audit(self) -> Path:
        """What the audited user called, one JSON object a line."""
        return self.settings.log / "audit.log"

    @property
    def kubectl(self) -> Path:
        """A kubectl of the server's version."""
        return self.settings.bin / "kubectl"


@contextmanager
def api_server(*, controllers: bool = False, audited: str = "") -> Iterator[ApiServer]:
    """Run etcd and an API server for the block, in about 3 seconds; nothing of them is left after it.

    controllers: also the controller manager, for owner references, namespace deletion, Deployments and the like.
    Without it pods need no ServiceAccount, and a namespace never goes away.
    audited: a user whose calls are written down.
    The processes end with this one, however it ends. Folder and loopback ports are chosen anew each time and are no other
    server's, so any number can run side by side, also those of other processes and checkouts.
    """
    state = Path(tempfile.mkdtemp(prefix="ballast-apiserver-"))
    with _free_ports(4) as ports:
        settings = _settings(state, tied=True, ports=ports)
        try:
            yield start(settings, controllers=controllers, audited=audited)
        finally:
            Processes(settings).stop_all()
            shutil.rmtree(state)


@contextmanager
def another(server: ApiServer) -> Iterator[Settings]:
    """Run a second API server on the store of one for the block; yields its settings.

    It remembers no change from before its start: a watch of the first one has expired here.
    """
    state = Path(tempfile.mkdtemp(prefix="ballast-apiserver-"))
    with _free_ports(1) as [port]:
        settings = dataclasses.replace(server.settings, state=state, api_port=port)
        try:
            shutil.copytree(server.settings.pki, settings.pki)
            make_folders(settings)
            api_server_up(Processes(settings), controllers=False, nodes=False, audited="")
            yield settings
        finally:
            Processes(settings).stop_all()
            shutil.rmtree(state)


def start(settings: Settings, *, controllers: bool, audited: str = "") -> ApiServer:
    """Start the server that the settings describe, or what is missing of it."""
    missing = [name for name in ("etcd", "kube-apiserver", "kubectl") if not (settings.bin / name).exists()]
    if missing:
        raise ClusterError(f"{settings.bin} lacks {', '.join(missing)}: run e2e/bootstrap/bootstrap binaries")
    control_plane_up(settings, controllers=controllers, nodes=False, audited=audited)
    if controllers:
        default_account_made(settings)
    return ApiServer(settings.admin, settings.api_url, settings.pki / "ca.crt", settings)


def named(settings: Settings) -> Settings:
    """Return the settings of the one server that outlives the command that started it, its ports read back."""
    state = settings.state.with_name(f"{settings.state.name}-apiserver")
    kept = state / "ports"
    if kept.exists():
        return _settings(state, tied=False, ports=[int(port) for port in kept.read_text().split()])
    with _free_ports(
        4
    ) as ports:  # another process may be given one before the server has it, and then one of them says so
        return _settings(state, tied=False, ports=ports)


def up(settings: Settings, *, controllers: bool) -> ApiServer:
    """Start the lasting server."""
    settings.state.mkdir(parents=True, exist_ok=True)
    ports = settings.etcd_port, settings.etcd_peer_port, settings.api_port, settings.controller_manager_port
    (settings.state / "ports").write_text(" ".join(map(str, ports)))
    return start(settings, controllers=controllers)


def down(settings: Settings) -> None:
    """End the lasting server and remove its state."""
    Processes(settings).stop_all()
    shutil.rmtree(settings.state, ignore_errors=True)


def _settings(state: Path, *, tied: bool, ports: list[int]) -> Settings:
    etcd, etcd_peer, api, controllers = ports
    return dataclasses.replace(
        Settings.from_environment(),
        state=state,
        name="apiserver",
        api_host="127.0.0.1",
        api_port=api,
        etcd_port=etcd,
        etcd_peer_port=etcd_peer,
        controller_manager_port=controllers,
        tied=tied,
    )


@contextmanager
def _free_ports(count: int) -> Iterator[list[int]]:
    """Yield loopback ports on which nothing listens, and that no other process is given here before the block ends."""
    with ExitStack() as claims:
        found: list[int] = []
        for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
            if len(found) == count:
                break
            claim = claims.enter_context(socket.socket(socket.AF_UNIX))
            try:
                # A name in the kernel, which goes with this process: a server binds its port only after a second.
                claim.bind(f"\0ballast-port-{port}")
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
        if len(found) < count:
            raise ClusterError(
                f"of the loopback ports {_PORTS.start} to {_PORTS.stop - 1} all but {len(found)} are taken"
            )
        yield found
