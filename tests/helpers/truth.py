# SPDX-License-Identifier: Apache-2.0
"""What the status of models said while they were called, and whether it was true."""

from __future__ import annotations

import math
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from e2e.load.client import Sample

_COLUMNS = 'custom-columns=NAME:.metadata.name,READY:.status.conditions[?(@.type=="Ready")].status'


@dataclass(frozen=True, slots=True)
class Said:
    """What was to be read of a model between two moments, in monotonic seconds; `ready` is empty when nothing was."""

    model: str
    ready: str
    since: float
    until: float


class Statuses:
    """Follows the condition Ready of every model of a namespace by a watch, from `with` to its end."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], *, namespace: str) -> None:
        """Make one.

        Args:
            command: kubectl.
            environment: with the kubeconfig.
            namespace: of the models.
        """
        words = ("get", "inferencemodels.ballast.dev", "-n", namespace, "--watch", "--no-headers", "-o", _COLUMNS)
        self._command = [*command, *words]
        self._environment = environment
        self._said: list[Said] = []
        self._now: dict[str, tuple[str, float]] = {}
        self._ending = threading.Event()
        self._watch: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._main, name="statuses")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        if self._watch is not None:
            self._watch.kill()
        self._thread.join()

    def said(self) -> list[Said]:
        """Everything that was to be read, after the end."""
        return self._said

    def _main(self) -> None:
        while not self._ending.is_set():
            with subprocess.Popen(
                self._command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            ) as self._watch:
                for line in self._watch.stdout or ():
                    model, ready = line.split()
                    self._note(model, ready)
            for model in list(self._now):  # nobody can read what is written there
                self._note(model, "")
            self._ending.wait(0.5)

    def _note(self, model: str, ready: str) -> None:
        now = time.monotonic()
        before, since = self._now.get(model, ("", now))
        if before != ready:
            if model in self._now:
                self._said.append(Said(model, before, since, now))
            self._now[model] = ready, now


def untrue(said: Iterable[Said], samples: Iterable[Sample], *, limit: float) -> list[tuple[str, float, float]]:
    """Models that were called Ready although nobody answered their calls.

    Args:
        said: what the status said.
        samples: calls meanwhile; what is said of models that nobody called is not judged.
        limit: seconds for which a status may be wrong after the last right answer.

    Returns:
        Model, when its status became untrue, and for how many seconds it stayed so.
    """
    answers: dict[str, list[float]] = {}
    for sample in samples:
        ended = answers.setdefault(sample.stream.target.model, [])
        if not sample.failure:
            ended.append(sample.ended)
    found = []
    for each in said:
        if each.ready != "True" or each.model not in answers:
            continue
        last = each.since
        for moment in (*sorted(answers[each.model]), math.inf):
            if moment < each.since:
                continue
            end = min(moment, each.until)
            if end - last > limit:
                found.append((each.model, last + limit, end - last - limit))
            if moment > each.until:
                break
            last = moment
    return found
