# SPDX-License-Identifier: Apache-2.0
"""Why a pod of the cluster does not start: what is said of it, of its node, and by the node's own programs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from e2e.cluster.commands import kubectl
from e2e.cluster.console import ClusterError
from e2e.cluster.processes import Processes
from e2e.cluster.settings import Settings

_ERRORS = re.compile(r"^E\d{4} |level=(error|fatal)")
_PODS, _EVENTS, _LINES = 6, 25, 12


def diagnosis(settings: Settings) -> str:
    """Return a page about what does not run: at most so many pods, Events and lines of each log.

    Raises:
        ClusterError: there is no cluster.
    """
    if not Processes(settings).names():
        raise ClusterError(f"there is no cluster in {settings.state}: start it first, with `cluster up`")
    return "\n".join([*_processes(settings), *_objects(settings), *_logs(settings)])


def _processes(settings: Settings) -> Iterator[str]:
    processes = Processes(settings)
    gone = [name for name in processes.names() if not processes.running(name)]
    yield f"processes gone: {', '.join(gone) or 'none'}"


def _objects(settings: Settings) -> Iterator[str]:
    yield kubectl(settings, "get", "nodes,pods", "-A", "-o", "wide", check=False).stdout.strip()
    listed = kubectl(settings, "get", "pods", "-A", "-o", "json", check=False)
    pods = json.loads(listed.stdout)["items"] if listed.returncode == 0 else []
    for pod in [pod for pod in pods if not _is_well(pod)][:_PODS]:
        meta, status = pod["metadata"], pod["status"]
        states = [
            (each["name"], each["state"], each.get("lastState"))
            for each in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
        ]
        yield f"pod {meta['namespace']}/{meta['name']}: {status.get('reason', '')} {status.get('message', '')}"
        yield json.dumps([each for each in status.get("conditions", []) if each["status"] != "True"] + states)
    events = kubectl(
        settings, "get", "events", "-A", "--field-selector=type=Warning", "--sort-by=.lastTimestamp", check=False
    )
    yield "\n".join(events.stdout.splitlines()[-_EVENTS:])


def _is_well(pod: dict[str, Any]) -> bool:
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", []))
    return ready or pod["status"].get("phase") == "Succeeded"


def _logs(settings: Settings) -> Iterator[str]:
    for path in sorted(settings.log.glob("*.log")):
        lines = [line for line in path.read_text(errors="replace").splitlines() if _ERRORS.search(line)]
        if lines:
            yield f"last errors of {path.stem}:"
            yield "\n".join(line[:300] for line in lines[-_LINES:])
