# SPDX-License-Identifier: Apache-2.0
"""The parts that serve, put together once the plan is accepted and taken apart when the worker ends."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ballast_contract.config import WorkerConfig
from ballast_contract.plan_lines import SCRATCH
from ballast_worker.control.observed import ObservedEngine
from ballast_worker.control.planning import DEPTH
from ballast_worker.device.memory import DeviceMemory
from ballast_worker.device.plan import Plan
from ballast_worker.device.reservation import reserve_device
from ballast_worker.host.pool import HostPool
from ballast_worker.residency.demand import Refusal
from ballast_worker.residency.loader import ThreadedLoader
from ballast_worker.residency.manager import ResidencyManager
from ballast_worker.residency.protocol import CompactionMode, CompactionResult
from ballast_worker.serving.call import ServableModel
from ballast_worker.serving.catalog import Catalog
from ballast_worker.serving.engine import DeviceEngine, end_process
from ballast_worker.serving.frontend import Frontend, FrontendThread, run_in_thread
from ballast_worker.serving.journal import Journal
from ballast_worker.serving.rehearsal import rehearse

_log = logging.getLogger(__name__)


class _Listener:
    """Residency's listener: the engine, and whoever reports."""

    def __init__(
        self, engine: DeviceEngine, changed: Callable[[], None], load_refused: Callable[[str, Refusal], None]
    ) -> None:
        self._engine, self._changed, self._load_refused = engine, changed, load_refused

    def loaded(self, model: str) -> None:
        """See `Listener.loaded`."""
        self._engine.loaded(model)
        self._changed()

    def refused(self, model: str, refusal: Refusal) -> None:
        """See `Listener.refused`."""
        self._engine.refused(model, refusal)
        self._load_refused(model, refusal)
        self._changed()

    def changed(self, model: str) -> None:
        """See `Listener.changed`."""
        self._engine.changed(model)
        self._changed()


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that serves.

    Attributes:
        device: the jax.Device.
        memory: for weights.
        store: the host pool.
        loader: the threads between them.
        residency: on the device thread.
        engine: the device thread, observed.
        frontend: the protocols.
        refused: models of the start that cannot be served, and why.
    """

    device: Any
    memory: DeviceMemory
    store: HostPool
    loader: ThreadedLoader
    residency: ResidencyManager
    engine: ObservedEngine
    frontend: FrontendThread
    refused: Sequence[tuple[ServableModel, Refusal]]

    def compact(
        self, mode: CompactionMode, reload: Sequence[str], done: Callable[[CompactionResult | Refusal], None]
    ) -> None:
        """See `Residency.compact`. Any thread."""
        self.engine.post(lambda: self.residency.compact(mode, reload, done))

    def stop(self, *, grace_seconds: float) -> None:
        """Answer what is under way within the grace, refuse the rest, and give everything back."""
        self.frontend.stop(grace_seconds=grace_seconds)
        self.engine.stop()
        self.loader.close()
        self.memory.close()
        self.store.close()


def reserve(
    config: WorkerConfig,
    plan: Plan,
    *,
    models: Sequence[ServableModel],
    open_store: Callable[[], HostPool],
    catalog: Catalog,
    journal: Journal,
    changed: Callable[[], None],
    load_refused: Callable[[str, Refusal], None],
) -> Parts:
    """Take what the plan says, once, and start to listen. What was taken is given back when something cannot be had.

    Args:
        config: of the worker.
        plan: an accepted one.
        models: of the start; each of their programs is run once.
        open_store: opens the host pool: its memory is mapped and locked here, before anything is served.
        catalog: what clients may call.
        journal: told around each dispatch.
        changed: a model's tier or state is another now; called on the device thread.
        load_refused: a load that a call waited for has failed, or one that no call will ever see succeed; called on the
            device thread.

    Raises:
        DeviceError: the device does not have what was planned.
        HostPoolError: the host pool cannot be used.
        OSError: a port cannot be had.
    """
    with contextlib.ExitStack() as undo:
        taken = reserve_device(plan, config.device.allocator, kind=config.backend, ordinal=config.device.ordinal)
        device, memory = taken.device, taken.memory
        undo.callback(memory.close)
        rehearsed = rehearse(models, device=device, memory=memory, journal=journal, fatal=end_process)
        store = open_store()
        undo.callback(store.close)
        engine = DeviceEngine(
            device=device,
            max_queue=config.serving.max_queue,
            depth=DEPTH,
            journal=journal,
            loaded=rehearsed.programs,
        )
        loader = ThreadedLoader(memory=memory, store=store, post=engine.post)
        undo.callback(loader.close)
        residency = ResidencyManager(
            memory=memory,
            store=store,
            demand=engine,
            listener=_Listener(engine, changed, load_refused),
            post=engine.post,
            loader=loader,
            scratch_limit=plan.line(SCRATCH),
            weights_percent=min(config.device.weights.max_percent, 100 - config.device.weights.slack_percent),
        )
        engine.start(residency)
        undo.callback(engine.stop)
        observed = ObservedEngine(engine)
        frontend = run_in_thread(Frontend(config.serving, observed, catalog))
        undo.pop_all()
        return Parts(device, memory, store, loader, residency, observed, frontend, rehearsed.refused)
