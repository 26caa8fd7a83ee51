# SPDX-License-Identifier: Apache-2.0
"""What clients may call: models of this worker, routes to the others, and why not."""

from __future__ import annotations

from typing import Final

from ballast_contract.reasons import Reason
from ballast_worker.control.assignment import Routes
from ballast_worker.control.models import ModelView, Stage
from ballast_worker.residency.demand import Refusal
from ballast_worker.serving.catalog import Elsewhere, Here

_SOON_SECONDS: Final = 5.0
_LATER_SECONDS: Final = 30.0


class WorkerCatalog:
    """Implements `serving.catalog.Catalog`.

    The control loop writes, the protocol thread reads: every change is one assignment or one dictionary item, so that a
    reader sees the old or the new one and needs no lock.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._models: dict[str, Here | Refusal] = {}
        self._routes: dict[str, Elsewhere] = {}
        self._ready = False
        self._released = False

    def find(self, model: str) -> Here | Elsewhere | Refusal | None:
        """See `Catalog.find`. A model that cannot be called here is answered by a worker that has it."""
        here = self._models.get(model)
        if isinstance(here, Here) and not self._released:
            return here
        elsewhere = self._routes.get(model)
        if elsewhere is not None:
            return elsewhere
        if isinstance(here, Here):
            return Refusal(Reason.DRAINING, "this worker is ending; call again, another one answers", _SOON_SECONDS)
        return here

    def ready(self) -> bool:
        """See `Catalog.ready`."""
        return self._ready and not self._released

    def set_ready(self) -> None:
        """The plan is accepted and calls are taken."""
        self._ready = True

    def release(self) -> None:
        """Nothing is answered here any more, only passed on."""
        self._released = True

    def route(self, routes: Routes) -> None:
        """Take the routes of the pool; this worker is not a way to itself."""
        found = {}
        for model, hops in routes.table.items():
            endpoints = tuple(hop.endpoint for hop in hops if hop.worker != self._worker)
            if endpoints:
                found[model] = Elsewhere(endpoints)
        self._routes = found

    def update(self, view: ModelView) -> None:
        """Take the state of one model."""
        before = self._models.get(view.spec.name)
        if view.serving is not None:
            manifest = view.serving.bundle.manifest
            if not (isinstance(before, Here) and before.manifest is manifest):
                self._models[view.spec.name] = Here(manifest)
        elif view.stage is Stage.REFUSED and view.failure is not None:
            later = None if view.failure.permanent else _LATER_SECONDS
            self._models[view.spec.name] = Refusal(view.failure.reason, view.failure.message, later)
        else:
            progress = f": {view.message}" if view.message else ""
            self._models[view.spec.name] = Refusal(
                Reason.MEASURING, f"model '{view.spec.name}' is being prepared{progress}", _SOON_SECONDS
            )

    def remove(self, name: str) -> None:
        """Forget a model."""
        self._models.pop(name, None)
