# SPDX-License-Identifier: Apache-2.0
"""One worker as a process: its directories, its servers, and the loop that lives between them."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from ballast_contract.config import WorkerConfig
from ballast_worker.build.local import LocalBuilder
from ballast_worker.build.store import ExecutableStore
from ballast_worker.control import introspection, metrics, ports
from ballast_worker.control.certificates import Certificates
from ballast_worker.control.draining import LINGER_SECONDS
from ballast_worker.control.http import PageServer
from ballast_worker.control.lookout import SCAN_SECONDS
from ballast_worker.control.machine import Machine
from ballast_worker.control.preparation import Workshop
from ballast_worker.control.refusals import Refusals
from ballast_worker.control.server import ControlServer
from ballast_worker.control.service import ControlService
from ballast_worker.control.settings import SettingError, named
from ballast_worker.control.worker import Worker
from ballast_worker.host import limits

_log = logging.getLogger(__name__)


class WorkerProcess:
    """A worker with its ports. Everything answers from construction on, before the device is touched.

    Args:
        config: checked.
        machine: the device; by default as it is found now.
        scan_seconds, linger_seconds: as of `Worker`.

    Attributes:
        worker: the loop, which `run` runs.
        control_port, metrics_port, introspection_port: after 0 was replaced by what the system gave.

    Raises:
        SettingError: a directory or port cannot be had, also because another worker uses it.
    """

    def __init__(
        self,
        config: WorkerConfig,
        *,
        machine: Machine | None = None,
        scan_seconds: float = SCAN_SECONDS,
        linger_seconds: float = LINGER_SECONDS,
    ) -> None:
        self._config, self._refusals = config, Refusals()
        with contextlib.ExitStack() as undo:
            with named("stateDirectory", config.state_directory):
                undo.enter_context(_own(config.state_directory.expanduser()))
            undo.enter_context(ports.reserved(config.serving))
            store = ExecutableStore(config.executable_store)
            self._workshop = Workshop(
                config, LocalBuilder(store, parallelism=config.build.parallelism, shortage=limits.shortage)
            )
            undo.callback(self._workshop.close)
            self.worker = Worker(
                config,
                machine or Machine(config),
                self._workshop,
                scan_seconds=scan_seconds,
                linger_seconds=linger_seconds,
            )
            directory = config.control.tls_directory
            certificates = None if directory is None else Certificates(directory)
            trusted = (lambda: "") if certificates is None else certificates.authorities
            service = ControlService(self.worker.desk, self.worker.feed, self._refusals, trusted)
            control = ControlServer(config, service, certificates, self._refusals)
            undo.callback(control.stop, grace_seconds=0.5)
            serving = config.serving
            pages = {**introspection.health(self.worker), "/metrics": metrics.page(self._snapshot)}
            shown = PageServer(serving.host, serving.metrics_port, pages, setting="serving.metricsPort")
            undo.callback(shown.stop)
            inner = PageServer(
                "127.0.0.1",
                serving.introspection_port,
                introspection.pages(self.worker),
                setting="serving.introspectionPort",
            )
            undo.callback(inner.stop)
            self.control_port, self.metrics_port, self.introspection_port = control.port, shown.port, inner.port
            self._undo = undo.pop_all()
        _log.info(
            "control on port %d, metrics on %d",
            self.control_port,
            self.metrics_port,
            extra={
                "event": "worker.met",
                "worker": config.name,
                "control_port": self.control_port,
                "metrics_port": self.metrics_port,
                "introspection_port": self.introspection_port,
            },
        )

    def run(self) -> int:
        """Live until the end; returns the exit code. Once."""
        with self._undo:
            return self.worker.run()

    def _snapshot(self) -> metrics.Snapshot:
        worker, config = self.worker, self._config
        parts = worker.parts
        requests, inflight = parts.engine.requests() if parts is not None else (None, 0)
        pool = None
        if parts is not None and (figures := parts.device.memory_stats()):
            pool = (
                int(figures.get("bytes_limit", 0)),
                int(figures.get("bytes_in_use", 0)),
                int(figures.get("peak_bytes_in_use", 0)),
            )
        return metrics.Snapshot(
            view=worker.view(),
            ordinal=config.device.ordinal,
            managed=config.managed,
            requests=requests,
            inflight=inflight,
            builds=self._workshop.results(),
            pool=pool,
            refused=self._refusals.counts(),
            forwarded=parts.frontend.forwarded if parts is not None else None,
        )


@contextlib.contextmanager
def _own(directory: Path) -> Iterator[None]:
    """Hold the state directory for this process alone."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingError(
                f"stateDirectory '{directory}' is used by another worker: give each worker one of its own"
            ) from None
        yield
    finally:
        os.close(descriptor)
