# SPDX-License-Identifier: Apache-2.0
"""kubectl and helm as the demo and the end-to-end tests call them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from e2e.cluster.console import ClusterError
from e2e.cluster.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("BALLAST_CLUSTER_HOME") or Path.home() / ".cache" / "ballast")
CLUSTER = ROOT / "e2e" / "cluster" / "cluster"


class StepError(Exception):
    """A step of the demo cannot go on; the message has what was asked and what came back."""


def local_environment() -> dict[str, str]:
    """KUBECONFIG and PATH of the local cluster, from `cluster env`."""
    output = subprocess.run([CLUSTER, "env"], capture_output=True, text=True, check=True).stdout
    pairs = (word.split("=", 1) for word in shlex.split(output) if "=" in word)
    return {key: os.path.expandvars(value) for key, value in pairs}


def foreign_environment() -> dict[str, str]:
    """PATH for the cluster that KUBECONFIG names: the user's own kubectl and helm, else ours.

    Raises:
        StepError: KUBECONFIG names no file that is there.
    """
    try:
        Settings.check_kubeconfig(os.environ.get("KUBECONFIG", ""))
    except ClusterError as error:
        raise StepError(str(error)) from error
    ours = (CACHE / "bin").resolve()
    others = [folder for folder in os.environ["PATH"].split(os.pathsep) if Path(folder).resolve() != ours]
    return {"PATH": os.pathsep.join((*others, str(ours)))}


def is_local(kubeconfig: str | None) -> bool:
    """Whether a kubeconfig (None or empty: none was named) means the local cluster."""
    return Settings.from_environment().is_at(kubeconfig)


class Kube:
    """One cluster, by its kubeconfig."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment}

    def run(self, *argv: str, stdin: str | None = None, check: bool = True, seconds: float = 300) -> str:
        """Run a command with the cluster's environment; returns what it printed.

        Raises:
            StepError: it failed (with check) or took longer than `seconds`.
        """
        program = shutil.which(argv[0], path=self._environment["PATH"])
        if program is None:
            raise StepError(f"there is no {argv[0]} on PATH: `e2e/bootstrap/bootstrap demo` builds it")
        try:
            done = subprocess.run(
                [program, *argv[1:]],
                input=stdin,
                capture_output=True,
                text=True,
                env=self._environment,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise StepError(f"{' '.join(argv)} did not end within {seconds:.0f} s") from error
        if check and done.returncode:
            raise StepError(
                f"{' '.join(argv)} failed ({done.returncode}): {done.stderr.strip() or done.stdout.strip()}"
            )
        return done.stdout

    def kubectl(self, *argv: str, stdin: str | None = None, check: bool = True, seconds: float = 300) -> str:
        """Run kubectl."""
        return self.run("kubectl", *argv, stdin=stdin, check=check, seconds=seconds)

    def get(self, *argv: str) -> Any:
        """`kubectl get ... -o json`, parsed."""
        return json.loads(self.kubectl("get", *argv, "-o", "json"))

    def apply(self, text: str, *argv: str) -> str:
        """`kubectl apply` of YAML or JSON text."""
        return self.kubectl("apply", *argv, "-f", "-", stdin=text)

    def wait_for(self, what: str, answer: Callable[[], Any], *, seconds: float) -> Any:
        """Ask until the answer is truthy; returns it.

        Raises:
            StepError: it was not within `seconds`; the message has the last answer or error.
        """
        deadline = time.monotonic() + seconds
        last: Any = None
        while time.monotonic() < deadline:
            try:
                if found := answer():
                    return found
            except (StepError, KeyError) as error:
                last = error
            time.sleep(0.5)
        raise StepError(f"{what}: not within {seconds:.0f} s ({last})")


def condition(obj: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of this type, or an empty one."""
    found = obj.get("status", {}).get("conditions", [])
    return next((c for c in found if c["type"] == kind), {})
