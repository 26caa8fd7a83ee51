# SPDX-License-Identifier: Apache-2.0
"""A server under load: a process group of its own on a core of its own, followed through the JSON lines that it logs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from ballast_contract.config import ModelEntry, ResidencyWish, WorkerConfig
from benchmarks import processor
from benchmarks.requests.cores import bound_to
from benchmarks.requests.models import NAMES

ENVIRONMENT: Final = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
"""Of every process that computes: one thread, as there is one core."""

WORKER_READY: Final = "worker.ready"
FLOOR_READY: Final = "floor.ready"
READY_SECONDS: Final = 120.0


class ServerError(Exception):
    """A server ended, or was not ready in time; the message has its last words."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is ready.

    Attributes:
        group: its process group.
        said: the log line that said so, with its ports.
    """

    group: int
    said: dict[str, Any]

    def cpu_seconds(self) -> float:
        """Processor time of all its processes so far."""
        return processor.group_seconds(self.group)


@contextmanager
def serving(module: str, arguments: list[str], *, ready: str, core: int) -> Iterator[Server]:
    """Run a module as a server until the block ends.

    Args:
        module: as for `python -m`.
        arguments: of its command line.
        ready: the event of the log line by which it says that it serves.
        core: to which all of it is bound.

    Raises:
        ServerError: it ended before, or was not ready in time.
    """
    argv = [sys.executable, "-m", module, *arguments]
    with bound_to(core):
        process = subprocess.Popen(
            argv, stderr=subprocess.PIPE, text=True, process_group=0, env=os.environ | ENVIRONMENT
        )
    timer = threading.Timer(READY_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
    rest = threading.Thread(target=deque, args=(process.stderr, 0))
    with process:
        timer.start()
        try:
            said = _until(ready, process)
            timer.cancel()
            rest.start()
            yield Server(process.pid, said)
        finally:
            timer.cancel()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            if rest.ident is not None:
                rest.join()


def _until(event: str, process: subprocess.Popen[str]) -> dict[str, Any]:
    last: deque[str] = deque(maxlen=20)
    for line in process.stderr or ():
        last.append(line)
        if line.startswith("{"):
            said: dict[str, Any] = json.loads(line)
            if said.get("event") == event:
                return said
    raise ServerError(f"'{event}' did not come within {READY_SECONDS:g} s; the last words:\n{''.join(last)}")


def worker_config(folder: Path) -> WorkerConfig:
    """Of a worker that has every model on the device always, all else being the default but for free ports."""
    ports = ("http_port", "grpc_port", "metrics_port", "control_port", "introspection_port")
    return WorkerConfig.model_validate(
        {
            "models": [
                ModelEntry(name=name, uri=f"file://{folder / name}", residency=ResidencyWish.DEVICE) for name in NAMES
            ],
            "executable_store": folder / "executables",
            "state_directory": folder / "state",
            "device": {"budget": "128m"},
            "host": {"directory": folder / "pool", "budget": 0},
            "serving": {"host": "127.0.0.1", **dict.fromkeys(ports, 0)},
        }
    )


def write_config(config: WorkerConfig, file: Path) -> None:
    """As `ballast-worker --config` reads it."""
    file.write_text(yaml.safe_dump(config.model_dump(mode="json", by_alias=True)))
