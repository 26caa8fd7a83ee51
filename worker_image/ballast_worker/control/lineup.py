# SPDX-License-Identifier: Apache-2.0
"""The models of this worker, each on its way from assigned to served: inspect, build, wait for the plan, hand over.

One thread, the control loop, owns a line-up and calls everything here; the work is done on other threads, whose ends come
back to the loop. `advance` looks at where a model is and takes the next step, so that it may be called at any time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from ballast_contract.config import ResidencyWish, WorkerConfig
from ballast_contract.reasons import Reason
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.reader import Bundle
from ballast_worker.control.assignment import AssignedModel
from ballast_worker.control.census import Census
from ballast_worker.control.complaints import Complaints
from ballast_worker.control.models import Built, Failure, ModelView, Stage, built_of_others, servable
from ballast_worker.control.preparation import Workshop, inspect
from ballast_worker.control.quarantine import Quarantine
from ballast_worker.control.retries import Retries
from ballast_worker.residency.demand import Refusal
from ballast_worker.serving.call import Engine, ServableModel

_log = logging.getLogger(__name__)

_INSPECTORS: Final = 8
_BUILDERS_END_SECONDS: Final = 2.0
"""For builders' threads to see that their processes were killed."""


class Limits(Protocol):
    """What the device allows, before and after the plan was made."""

    def check_bytes(self, bundle: Bundle) -> Failure | None:
        """Why weights of this size can never be served here."""
        ...

    def check_built(
        self, name: str, built: Built, others: Iterable[Built], replaced: Built | None = None
    ) -> Failure | None:
        """Why a model of this name, with executables of this size, cannot be served here beside those of others, and those
        of its own that they will replace.
        """
        ...

    def build_memory(self) -> int:
        """Device memory that a builder may take now, in bytes."""
        ...

    def starved(self, bundle: Bundle, failure: Failure) -> Failure:
        """The same failure of a builder that had too little device memory, with what to set."""
        ...


class Lineup:
    """See the module.

    Args:
        config: of the worker.
        workshop: builds.
        quarantine: models that must not run.
        limits: what fits.
        post: runs an action on the control loop; any thread.
        changed: told of every new view, and of None for a model that is gone.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        config: WorkerConfig,
        workshop: Workshop,
        quarantine: Quarantine,
        limits: Limits,
        post: Callable[[Callable[[], None]], None],
        changed: Callable[[str, ModelView | None], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.views: dict[str, ModelView] = {}
        """By name; written by the loop, read by any thread."""
        self.assigned: Mapping[str, AssignedModel] = {}
        """What was applied last, by name, whatever was overridden since; written and read by the loop."""
        self.fresh = False
        """A model is served that was not before; whoever acts on it takes it back."""
        self._stores: Mapping[str, Path] = config.stores
        self._workshop, self._quarantine, self._limits = workshop, quarantine, limits
        self._post, self._changed = post, changed
        self._inspectors = ThreadPoolExecutor(_INSPECTORS, thread_name_prefix="inspect")
        self._builders = ThreadPoolExecutor(config.build.parallelism, thread_name_prefix="build")
        self._engine: Engine | None = None
        self._busy: dict[str, AssignedModel] = {}
        # One for each name from its first hand-over until it is dropped: what is told of an earlier one is gone by then.
        self._terms: dict[str, object] = {}
        self._retries, self._complaints = Retries(clock), Complaints(clock)
        self._census = Census()

    def inspect(self, uri: str, digest: str) -> Future[Bundle]:
        """Read a bundle's headers on another thread. Any thread; the future raises BundleError."""
        return self._inspectors.submit(inspect, uri, digest, self._stores)

    def apply(self, models: Iterable[AssignedModel], inspected: Mapping[AssignedModel, Bundle | Failure]) -> None:
        """Serve these models from now on, and no others.

        Args:
            models: what is wanted; names are unique.
            inspected: what is known of some of them already.
        """
        self.assigned = wanted = {model.name: model for model in models}
        for name in [name for name in self.views if name not in wanted]:
            self._drop(name)
        # Pinned models are prepared first.
        for spec in sorted(wanted.values(), key=lambda spec: spec.residency.value != "device"):
            before = self.views.get(spec.name)
            if before is not None and before.spec == spec:
                continue
            self._forget_failures(spec.name)
            view = ModelView(spec)
            if before is not None:
                view = replace(view, serving=before.serving)
                if before.spec.source == spec.source:
                    view = replace(view, bundle=before.bundle, built=before.built)
            found = inspected.get(spec)
            if isinstance(found, Bundle):
                view = replace(view, bundle=found)
            self._set(view)
            if isinstance(found, Failure):
                self._refuse(spec, found)
            else:
                self.advance(spec.name)

    def serve_with(self, engine: Engine) -> None:
        """The plan is accepted: hand over what is built, and what will be."""
        self._engine = engine
        for name in list(self.views):
            self.advance(name)

    def refuse(self, model: ServableModel, failure: Failure) -> None:
        """A model turned out not to run here, before it was handed over."""
        view = self.views.get(model.resident.name)
        if view is not None and view.stage is Stage.BUILT and view.bundle is model.resident.bundle:
            self._refuse(view.spec, failure)

    def servable(self) -> tuple[ServableModel, ...]:
        """What is built and waits for the plan."""
        return tuple(
            servable(v.spec, v.built) for v in self.views.values() if v.built is not None and v.stage is Stage.BUILT
        )

    def withdraw(self) -> None:
        """The engine is ending: hand over nothing more."""
        self._engine = None

    @property
    def settled(self) -> bool:
        """Nothing is on its way to being built: a plan can be made."""
        return not self._census.under_way

    @property
    def progress(self) -> tuple[int, int]:
        """How many models are built or refused, and how many there are."""
        return self._census.models - self._census.under_way, self._census.models

    @property
    def handed_over(self) -> bool:
        """Nothing that is built waits for the engine to take it."""
        return not self._census.waiting

    def built(self) -> dict[str, Built]:
        """What wants to be served and can be, as far as is known."""
        return {n: v.built for n, v in self.views.items() if v.built is not None and v.stage is not Stage.REFUSED}

    def override(self, name: str, wish: ResidencyWish, done: Future[Refusal | None]) -> None:
        """Serve a model by another wish until the next assignment; `done` gets the refusal of the device thread, if it
        refuses, or a KeyError where the model is not served.
        """
        view = self.views.get(name)
        if self._engine is None or view is None or view.serving is None or view.stage is not Stage.SERVED:
            done.set_exception(KeyError(name))
            return
        # The view has the new spec before the device thread takes it: an assignment that comes now differs from it.
        before, spec = view.spec, replace(view.spec, residency=wish)
        self._set(replace(view, spec=spec))
        overridden = partial(self._overridden, before, spec, done)
        self._engine.add(servable(spec, view.serving), lambda refusal: self._post(partial(overridden, refusal)))

    def load_refused(self, name: str, refusal: Refusal) -> None:
        """What is served could not be loaded. What never can be is served no longer, and refused as a spec is. Files that are
        others by now are looked at anew, in a second, unless a digest says which they have to be.
        """
        view = self.views.get(name)
        if view is None or view.stage is not Stage.SERVED:
            return
        failure = Failure.of(refusal)
        if failure.permanent and self._engine is not None:
            self._engine.remove(name, lambda: None)
            self._set(replace(view, built=None, serving=None))
            self._refuse(view.spec, failure)
            return
        if view.spec.digest or name in self._retries:
            return
        if refusal.reason is Reason.SOURCE_CHANGED:
            self._retries.soon(name)

    def tick(self) -> None:
        """Try again what failed and may pass."""
        for name in self._retries.due():
            view = self.views[name]
            # The files may be others by now; what was built of the same ones is in the store.
            self._set(replace(view, stage=Stage.PENDING, failure=None, message="trying again", bundle=None, built=None))
            self.advance(name)

    def advance(self, name: str) -> None:
        """Take the next step with one model."""
        view = self.views[name]
        if view.stage in (Stage.REFUSED, Stage.SERVED) or self._busy.get(name) is view.spec:
            return
        spec = view.spec
        if (reason := self._quarantine.check(spec)) is not None:
            self._refuse(spec, Failure(Reason.QUARANTINED, reason))
        elif view.bundle is None:
            self._busy[name] = spec
            self.inspect(spec.uri, spec.digest).add_done_callback(
                lambda future: self._post(partial(self._inspected, spec, future))
            )
        elif (failure := self._limits.check_bytes(view.bundle)) is not None:
            self._refuse(spec, failure)
        elif view.built is None:
            self._busy[name] = spec
            self._set(replace(view, stage=Stage.BUILDING))
            self._builders.submit(self._build, spec, view.bundle)
        elif (
            failure := self._limits.check_built(name, view.built, built_of_others(self.views, name), view.serving)
        ) is not None:
            self._refuse(spec, failure)
        elif self._engine is None:
            self._set(replace(view, stage=Stage.BUILT, message="built; waits for the device memory plan"))
        else:
            self._busy[name] = spec
            offered = partial(self._offered, spec, view.built, self._terms.setdefault(name, object()))
            self._set(replace(view, stage=Stage.BUILT, message="built; is being handed over"))
            self._engine.add(servable(spec, view.built), lambda refusal: self._post(partial(offered, refusal)))

    def close(self) -> None:
        """End the threads; the workshop has been closed, so that no build is waited for. Bounded in time."""
        # A file system that hangs, of bundles or of executables, must not keep the process from ending.
        self._inspectors.shutdown(wait=False, cancel_futures=True)
        ending = threading.Thread(target=self._builders.shutdown, kwargs={"cancel_futures": True}, daemon=True)
        ending.start()
        ending.join(_BUILDERS_END_SECONDS)

    def _build(self, spec: AssignedModel, bundle: Bundle) -> None:
        """On a builder's thread."""
        view = self.views.get(spec.name)
        if view is None or view.spec is not spec:
            return  # nobody wants it any more
        result = self._workshop.build(
            bundle,
            memory_bytes=self._limits.build_memory(),
            progress=lambda text: self._post(partial(self._progressed, spec, text)),
        )
        if isinstance(result, Failure) and result.reason is Reason.INSUFFICIENT_DEVICE_MEMORY:
            result = self._limits.starved(bundle, result)
        self._post(partial(self._was_built, spec, result))

    def _current(self, spec: AssignedModel) -> ModelView | None:
        """The view of a spec, unless it was changed or dropped meanwhile."""
        if self._busy.get(spec.name) is spec:
            del self._busy[spec.name]
        view = self.views.get(spec.name)
        return view if view is not None and view.spec is spec else None

    def _inspected(self, spec: AssignedModel, future: Future[Bundle]) -> None:
        if (view := self._current(spec)) is None or future.cancelled():
            return
        error = future.exception()
        if isinstance(error, BundleError):
            self._refuse(spec, Failure.of(error))
        elif error is not None:
            self._refuse(spec, Failure(Reason.LOAD_FAILED_WILL_RETRY, f"{spec.uri}: {type(error).__name__}: {error}"))
        else:
            self._set(replace(view, bundle=future.result()))
            self.advance(spec.name)

    def _progressed(self, spec: AssignedModel, text: str) -> None:
        view = self.views.get(spec.name)
        if view is not None and view.spec is spec and view.stage is Stage.BUILDING:
            self._set(replace(view, message=text))

    def _was_built(self, spec: AssignedModel, result: Built | Failure) -> None:
        if (view := self._current(spec)) is None:
            return
        if isinstance(result, Failure):
            self._refuse(spec, result)
        else:
            self._set(replace(view, built=result))
            self.advance(spec.name)

    def _offered(self, spec: AssignedModel, built: Built, term: object, refusal: Refusal | None) -> None:
        if (view := self._current(spec)) is None:
            if refusal is None and self._terms.get(spec.name) is term:
                # The spec was changed meanwhile: what was built of it serves until the next is handed over.
                view = self.views[spec.name]
                self.fresh = self.fresh or view.serving is None
                self._set(replace(view, serving=built))
            return
        if refusal is not None:
            self._refuse(spec, Failure.of(refusal))
            return
        self._forget_failures(spec.name)
        self.fresh = self.fresh or view.serving is None
        self._set(replace(view, stage=Stage.SERVED, failure=None, message="", serving=built))

    def _overridden(
        self, before: AssignedModel, spec: AssignedModel, done: Future[Refusal | None], refusal: Refusal | None
    ) -> None:
        if refusal is not None and (view := self._current(spec)) is not None:
            self._set(replace(view, spec=before))
        done.set_result(refusal)

    def _refuse(self, spec: AssignedModel, failure: Failure) -> None:
        view = replace(self.views[spec.name], stage=Stage.REFUSED, failure=failure, message="")
        self._set(view)
        if self._complaints.worth(spec.name, failure):
            event = {
                "event": "model.refused",
                "model": spec.name,
                "object": spec.object,
                "reason": failure.reason.value,
            }
            _log.warning("model %s is refused: %s: %s", spec.name, failure.reason, failure.message, extra=event)
        if failure.permanent:
            self._retries.forget(spec.name)
        else:
            self._retries.failed(spec.name)

    def _drop(self, name: str) -> None:
        self._census.moved(self.views.pop(name), None)
        self._busy.pop(name, None)
        self._forget_failures(name)
        self._terms.pop(name, None)
        if self._engine is not None:
            # Whatever its stage: an earlier spec may serve, or be on its way to the device thread.
            self._engine.remove(name, lambda: None)
        self._changed(name, None)

    def _forget_failures(self, name: str) -> None:
        self._retries.forget(name)
        self._complaints.forget(name)

    def _set(self, view: ModelView) -> None:
        self._census.moved(self.views.get(view.spec.name), view)
        self.views[view.spec.name] = view
        self._changed(view.spec.name, view)
