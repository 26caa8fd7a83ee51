# SPDX-License-Identifier: Apache-2.0
"""A client inside the cluster: a pod that calls models by the names of their Services, as an application would."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from e2e.demo.kube import Kube, StepError

POD = "client"

_SCRIPT = """
import http.client, json, sys, time, urllib.parse
for line in sys.stdin:
    call = json.loads(line)
    url = urllib.parse.urlsplit(call["url"])
    body = None if call["body"] is None else json.dumps(call["body"]).encode()
    for attempt in range(20):
        started = time.monotonic()
        # A node may not route to a Service that is seconds old: then the connection would wait for two minutes.
        connection = http.client.HTTPConnection(url.hostname, url.port or 80, timeout=2)
        try:
            connection.connect()
            connection.sock.settimeout(120)
            headers = {"Content-Type": "application/json"}
            connection.request("GET" if body is None else "POST", url.path, body, headers)
            answer = connection.getresponse()
            status, text = answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            status, text = 0, str(error)
            time.sleep(0.5)
            continue
        finally:
            connection.close()
        break
    print(json.dumps({"status": status, "text": text, "seconds": time.monotonic() - started}), flush=True)
"""


def pod(namespace: str, image: str) -> dict[str, Any]:
    """The client's pod, fit for a namespace that enforces the restricted Pod Security level."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD, "namespace": namespace},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 64001, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "client",
                    "image": image,
                    "command": ["python3", "-c", "import signal; signal.pause()"],
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
                }
            ],
        },
    }


def call(kube: Kube, namespace: str, calls: Sequence[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Make HTTP calls from the client's pod, in order.

    Args:
        kube: the cluster.
        namespace: of the client's pod.
        calls: url and JSON body (None: GET) of each.

    Returns:
        status (0: not reached), text and seconds of each.

    Raises:
        StepError: the pod cannot be reached.
    """
    lines = "".join(json.dumps({"url": url, "body": body}) + "\n" for url, body in calls)
    output = kube.kubectl(
        "exec",
        "-i",
        "-n",
        namespace,
        POD,
        "--",
        "python3",
        "-u",
        "-c",
        _SCRIPT,
        stdin=lines,
        seconds=120 + 120 * len(calls),
    )
    answers = [json.loads(line) for line in output.splitlines()]
    if len(answers) != len(calls):
        raise StepError(f"{len(answers)} answers to {len(calls)} calls from pod {namespace}/{POD}")
    return answers
