# SPDX-License-Identifier: Apache-2.0
"""Kubectl for tests: objects go in as text, come out as dictionaries, and are waited for by what they say."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from e2e.cluster.commands import kubectl
from e2e.cluster.console import ClusterError
from e2e.cluster.settings import Settings


@dataclass(frozen=True)
class Kube:
    """One namespace of a cluster."""

    settings: Settings
    namespace: str

    def run(self, *argv: object, check: bool = True, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl in the namespace."""
        return kubectl(self.settings, "--namespace", self.namespace, *argv, check=check, text=text)

    def apply(self, manifest: str) -> None:
        """Apply one or more objects."""
        self.run("apply", "-f", "-", text=manifest)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return an object, empty when there is none."""
        found = self.run("get", kind, name, "-o", "json", "--ignore-not-found")
        return dict(json.loads(found.stdout)) if found.stdout else {}

    def items(self, kind: str, selector: str) -> list[dict[str, Any]]:
        """Return the objects that have the labels."""
        return list(json.loads(self.run("get", kind, "-l", selector, "-o", "json").stdout)["items"])

    def logs(self, pod: str, container: str | None = None) -> str:
        """Return what a container has printed."""
        return self.run("logs", pod, *(["-c", container] if container else [])).stdout

    def exec(self, pod: str, *argv: object, container: str | None = None) -> str:
        """Run a command in a container and return what it printed."""
        return self.run("exec", pod, *(["-c", container] if container else []), "--", *argv).stdout

    def rolled_out(self, kind: str, name: str) -> None:
        """Wait until all pods of a Deployment, StatefulSet or DaemonSet are ready."""
        self.run("rollout", "status", f"{kind}/{name}", "--timeout=600s")

    def ready(self, *pods: str) -> None:
        """Wait until pods are ready; what kept one from it is in the error."""
        try:
            self.run("wait", "--for=condition=Ready", "--timeout=600s", *(f"pod/{pod}" for pod in pods))
        except ClusterError as error:
            raise ClusterError(f"{error}\n{self.run('describe', 'pod', *pods, check=False).stdout}") from error

    @staticmethod
    def until(what: str, true: Callable[[], object], *, seconds: float = 60) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + seconds
        while not true():
            if time.monotonic() > deadline:
                raise ClusterError(f"{what}: not so after {seconds:.0f} s")
            time.sleep(0.2)
