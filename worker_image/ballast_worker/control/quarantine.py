# SPDX-License-Identifier: Apache-2.0
"""Models that were running when a worker died twice in a short while: not run again until their spec changes."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ballast_worker.bundle.placing import replace_file
from ballast_worker.control.assignment import AssignedModel
from ballast_worker.control.journal import Culprit
from ballast_worker.control.kept import read_json

_log = logging.getLogger(__name__)

_TWICE_WITHIN_SECONDS: Final = 600.0
"""Between two deaths that are one model's fault. Anything may kill a worker once, and a busy one always runs something."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A model that ran when the worker died, and the spec with which that happened.

    Attributes:
        fingerprint: of the spec; a model with another one is innocent.
        program: that was running.
        at: of the last death, in seconds since the epoch.
        quarantined: it was the second one in a short while.
    """

    fingerprint: str
    program: str
    at: float
    quarantined: bool


class Quarantine:
    """The list on disk. Owned by the control loop.

    Args:
        directory: where it is kept.
        clock: seconds since the epoch.
    """

    def __init__(self, directory: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = directory / "quarantine.json"
        self._clock = clock
        self._models = _load(self.path)

    def blame(self, culprits: Sequence[Culprit], models: Iterable[AssignedModel]) -> Mapping[str, Suspect]:
        """Take what the journal found; returns the models that it speaks of."""
        specs, now = {model.name: model for model in models}, self._clock()
        new = {c.model: self._judge(c, specs[c.model].fingerprint, now) for c in culprits if c.model in specs}
        if new:
            self._models = {**self._models, **new}
            self._save()
        return new

    def _judge(self, culprit: Culprit, fingerprint: str, now: float) -> Suspect:
        before = self._models.get(culprit.model)
        again = before is not None and before.fingerprint == fingerprint and now - before.at <= _TWICE_WITHIN_SECONDS
        return Suspect(fingerprint, culprit.program, now, quarantined=again)

    def check(self, model: AssignedModel) -> str | None:
        """A sentence that says why this model must not run, or None. A changed spec lets it go for good."""
        entry = self._models.get(model.name)
        if entry is not None and entry.fingerprint != model.fingerprint:
            self._models = {name: other for name, other in self._models.items() if name != model.name}
            self._save()
        return self.verdict(model)

    def verdict(self, model: AssignedModel) -> str | None:
        """What `check` says, without letting anything go: nothing is written."""
        entry = self._models.get(model.name)
        if entry is None or entry.fingerprint != model.fingerprint or not entry.quarantined:
            return None
        return (
            f"the worker died twice while it ran this model, last program {entry.program}; it is not run again until its uri, digest, "
            f"residency or batching changes (without an operator: or until {self.path} is removed)"
        )

    def _save(self) -> None:
        data = {name: asdict(entry) for name, entry in self._models.items()}
        try:
            replace_file(self.path, json.dumps(data, sort_keys=True).encode(), mode=0o600)
        except OSError as error:
            # What holds in this process holds on: a full disk must not keep it from serving.
            _log.error("stateDirectory: %s cannot be written, so the next start is told less: %s", self.path, error)


def _load(path: Path) -> Mapping[str, Suspect]:
    try:
        return {name: _suspect(entry) for name, entry in read_json(path).items()}
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return {}


def _suspect(entry: Any) -> Suspect:
    return Suspect(
        str(entry["fingerprint"]), str(entry["program"]), float(entry["at"]), quarantined=bool(entry["quarantined"])
    )
