# SPDX-License-Identifier: Apache-2.0
"""The `kubectl` on PATH with the rights of whoever calls: objects, and pages on the loopback of pods."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_SECONDS: Final = 30.0
_MISSING: Final = "kubectl is not on PATH"


class KubectlError(Exception):
    """kubectl could not do it; the message is its own."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Calls of kubectl.

    Attributes:
        options: global options, as in ("--context", "kind").
        seconds: after which a call that has not answered is ended.
    """

    options: tuple[str, ...] = ()
    seconds: float = _SECONDS

    def get(self, *what: str) -> Any:
        """The objects that `kubectl get ... -o json` prints.

        Raises:
            KubectlError: kubectl is not there, or refuses.
        """
        return json.loads(self._run("get", *what, "-o", "json"))

    def namespace(self) -> str:
        """The namespace of the current context."""
        return self._run("config", "view", "--minify", "-o", "jsonpath={..namespace}").strip() or "default"

    def page(self, namespace: str, pod: str, port: int, path: str, query: Mapping[str, str]) -> str:
        """A page on the loopback of a pod, through `kubectl port-forward`.

        Raises:
            KubectlError: the port cannot be forwarded, or the page answers with an error, which is the message.
        """
        command = self._command("port-forward", "--namespace", namespace, f"pod/{pod}", f":{port}")
        with _start(command) as forward:
            silent = threading.Timer(self.seconds, forward.kill)
            silent.start()
            try:
                line = forward.stdout.readline() if forward.stdout is not None else ""
                silent.cancel()
                match = re.search(r"127\.0\.0\.1:([0-9]+)", line)
                if match is None:
                    forward.terminate()
                    said = (forward.communicate(timeout=_SECONDS)[1] or line).strip()
                    raise KubectlError(said or self._unanswered("port-forward"))
                return _fetch(f"http://127.0.0.1:{match[1]}{path}?{urllib.parse.urlencode(query)}")
            finally:
                silent.cancel()
                forward.terminate()

    def _unanswered(self, verb: str) -> str:
        return f"kubectl {verb} has not answered within {self.seconds:g} s: is the API server reachable?"

    def _command(self, *arguments: str) -> list[str]:
        return ["kubectl", *arguments, *self.options]

    def _run(self, *arguments: str) -> str:
        command = self._command(*arguments)
        try:
            ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=self.seconds)
        except FileNotFoundError as error:
            raise KubectlError(_MISSING) from error
        except subprocess.TimeoutExpired as error:
            raise KubectlError(self._unanswered(arguments[0])) from error
        if ended.returncode:
            raise KubectlError(ended.stderr.strip() or f"kubectl {arguments[0]} ended with {ended.returncode}")
        return ended.stdout


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except FileNotFoundError as error:
        raise KubectlError(_MISSING) from error


def _fetch(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:  # noqa: S310 - loopback
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        raise KubectlError(error.read().decode().strip()) from error
    except OSError as error:
        raise KubectlError(f"the page cannot be read: {error}") from error
