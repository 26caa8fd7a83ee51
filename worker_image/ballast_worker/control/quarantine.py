# SPDX-License-Identifier: Apache-2.0
"""Models that were running when a worker died: not run again until their spec changes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ballast_worker.control.assignment import AssignedModel, write_atomically
from ballast_worker.control.journal import Culprit


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Why a model is not run, and the spec with which that happened.

    Attributes:
        fingerprint: of the spec; a model with another one is tried again.
        program: that was running.
    """

    fingerprint: str
    program: str


class Quarantine:
    """The list on disk. Owned by the control loop."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "quarantine.json"
        self._models = _load(self.path)

    def blame(self, culprits: Sequence[Culprit], models: Iterable[AssignedModel]) -> tuple[str, ...]:
        """Take what the journal found; returns the names of the models that are quarantined by it.

        Raises:
            OSError: the state directory cannot be written.
        """
        specs = {model.name: model for model in models}
        new = {c.model: Quarantined(specs[c.model].fingerprint, c.program) for c in culprits if c.model in specs}
        if new:
            self._models = {**self._models, **new}
            self._save()
        return tuple(new)

    def check(self, model: AssignedModel) -> str | None:
        """A sentence that says why this model must not run, or None. A changed spec lets it go for good.

        Raises:
            OSError: the state directory cannot be written.
        """
        entry = self._models.get(model.name)
        if entry is None:
            return None
        if entry.fingerprint != model.fingerprint:
            self._models = {name: other for name, other in self._models.items() if name != model.name}
            self._save()
            return None
        return (
            f"the worker died while it ran program {entry.program} of this model; it is not run again until its uri, digest, "
            f"residency or batching changes (without an operator: or until {self.path} is removed)"
        )

    def _save(self) -> None:
        data = {name: asdict(entry) for name, entry in self._models.items()}
        write_atomically(self.path, json.dumps(data, sort_keys=True).encode())


def _load(path: Path) -> Mapping[str, Quarantined]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): Quarantined(**entry) for name, entry in data.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
