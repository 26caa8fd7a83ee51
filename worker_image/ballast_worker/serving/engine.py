# SPDX-License-Identifier: Apache-2.0
"""The device thread and the ways to it: one inbox for calls and actions, and a small pool that loads executables."""

from __future__ import annotations

import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import jax

from ballast_contract.reasons import Reason
from ballast_worker.device.backend import DeviceLostError
from ballast_worker.residency.demand import Refusal
from ballast_worker.residency.protocol import Residency
from ballast_worker.serving import refusals
from ballast_worker.serving.accounts import Accounts
from ballast_worker.serving.call import Call, ModelLoad, ServableModel
from ballast_worker.serving.dispatcher import Dispatcher
from ballast_worker.serving.executable import LoadedProgram, ProgramUnusableError
from ballast_worker.serving.executions import Executions, answer
from ballast_worker.serving.journal import Journal, NoJournal
from ballast_worker.serving.served import load_version

_log = logging.getLogger(__name__)

_Action = Callable[[], None]


class DeviceEngine:
    """Implements `call.Engine`, and residency's `Demand` and `Listener`.

    Order of construction: the engine, then residency with the engine as demand and listener (and `post` to come back to
    the device thread), then `start`. Models may be added before the start; they are served from then on.
    """

    def __init__(
        self,
        *,
        device: jax.Device,
        max_queue: int,
        depth: int = 1,
        journal: Journal | None = None,
        loaded: Mapping[str, LoadedProgram] | None = None,
        fatal: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make an engine that does nothing yet.

        Args:
            device: where executables are loaded and inputs go.
            max_queue: calls waiting per model; one more is refused.
            depth: executions enqueued at once, as stated to the plan.
            journal: told before and after each dispatch.
            loaded: programs that are in the process already, by digest of their file; the first model that needs one has it.
            fatal: called on the device thread when the device takes no more work, or when the thread cannot go on; by
                default it ends the process.
            clock: monotonic seconds, the clock of `Call.deadline`.
        """
        self._device = device
        self._clock = clock
        self._fatal = fatal or end_process
        self._accounts = Accounts()
        executions = Executions(
            device=device,
            journal=journal or NoJournal(),
            fatal=self._fatal,
            accounts=self._accounts,
            clock=clock,
        )
        self._dispatcher = Dispatcher(executions, max_queue=max_queue, depth=depth, clock=clock)
        self._inbox: queue.SimpleQueue[tuple[Call, float] | _Action] = queue.SimpleQueue()
        self._loaders = ThreadPoolExecutor(2, thread_name_prefix="executable-loader")
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)
        self._ending = False  # of the device thread
        # Guarded by the lock: nothing comes into the inbox once it was closed, so nothing can be left in it.
        self._lock = threading.Lock()
        self._admitting = True
        self._closed = False
        # The last addition of each name whose executables are being loaded; only that one is installed. A number is given
        # once, so that a load which ends after its name was removed and added again is not taken for the later one.
        self._loading: dict[str, int] = {}
        self._loaded = dict(loaded or {})
        self._additions = itertools.count()

    def start(self, residency: Residency) -> None:
        """Begin to serve: starts the device thread. Once."""
        self._dispatcher.attach(residency)
        self._thread.start()

    def submit(self, call: Call) -> None:
        """See `Engine.submit`."""
        with self._lock:
            if self._admitting:
                self._inbox.put((call, self._clock()))
                return
        answer(call, refusals.draining())

    def post(self, action: _Action) -> None:
        """See `Engine.post`. After the end of the engine nothing is run any more."""
        with self._lock:
            if not self._closed:
                self._inbox.put(action)

    def add(self, model: ServableModel, done: Callable[[Refusal | None], None]) -> None:
        """See `Engine.add`. Refused when the same name is added or removed again before its executables are loaded.

        After `stop`, `done` is called at once, on the caller's thread.
        """
        name = model.resident.name
        with self._lock:
            if self._admitting:
                addition = self._loading[name] = next(self._additions)
                self._loaders.submit(self._load, model, addition, done)
                return
        done(refusals.draining())

    def remove(self, name: str, done: _Action) -> None:
        """See `Engine.remove`. After the end of the engine, `done` is called at once, on the caller's thread."""
        with self._lock:
            self._loading.pop(name, None)
            if not self._closed:
                self._inbox.put(lambda: self._dispatcher.remove(name, done))
                return
        done()

    def loads(self) -> Mapping[str, ModelLoad]:
        """See `Engine.loads`."""
        return self._accounts.snapshot(
            {name: len(served.queue) for name, served in self._dispatcher.served.copy().items()}
        )

    def stop(self) -> None:
        """See `Engine.stop`. Not from the device thread."""
        with self._lock:
            self._admitting = False
        self._loaders.shutdown(wait=True, cancel_futures=False)

        def end() -> None:
            self._ending = True

        self.post(end)
        if self._thread.ident is not None:
            self._thread.join()

    def queued(self, model: str) -> int:
        """See `Demand.queued`."""
        return self._dispatcher.queued(model)

    def executing(self, model: str) -> bool:
        """See `Demand.executing`."""
        return self._dispatcher.executing(model)

    def loaded(self, model: str) -> None:
        """See `Listener.loaded`."""
        self._dispatcher.loaded(model)

    def refused(self, model: str, refusal: Refusal) -> None:
        """See `Listener.refused`."""
        self._dispatcher.refused(model, refusal)

    def changed(self, model: str) -> None:
        """See `Listener.changed`."""
        self._dispatcher.changed(model)

    def _settle(self, name: str, addition: int) -> bool:
        """A load has ended: whether nothing came after it."""
        with self._lock:
            if self._loading.get(name) != addition:
                return False
            del self._loading[name]
            return True

    def _load(self, model: ServableModel, addition: int, done: Callable[[Refusal | None], None]) -> None:
        """On a loader thread: bring executables into the process, then the version to the device thread."""
        name = model.resident.name
        served = self._dispatcher.served.get(name)
        try:
            known = served.current.files if served is not None else {}
            version = load_version(model, self._device, {**self._loaded, **known})
            for digest in version.files:
                self._loaded.pop(digest, None)
        except ProgramUnusableError as error:
            self._settle(name, addition)
            refusal = error.refusal
            self.post(lambda: done(refusal))
            return
        except Exception as error:  # noqa: BLE001 - `done` has to be called, whatever the runtime raises
            self._settle(name, addition)
            _log.exception("the executables of model %s could not be loaded", name)
            failure = Refusal(
                Reason.LOAD_FAILED_PERMANENT, f"the executables of model '{name}' cannot be loaded: {error}"
            )
            self.post(lambda: done(failure))
            return

        def install() -> None:
            # On the device thread, where a removal that comes now is carried out afterwards.
            current = self._settle(name, addition)
            done(self._dispatcher.install(version) if current else refusals.superseded(name))

        self.post(install)

    def _run(self) -> None:
        """The device thread."""
        try:
            self._serve()
        except DeviceLostError as error:
            self._fatal(f"the device is lost: {error}")
        except Exception as error:  # noqa: BLE001 - a process without a device thread answers nobody
            _log.exception("the device thread cannot go on")
            self._fatal(f"the device thread cannot go on: {error!r}")
        self._dispatcher.refuse_all(refusals.draining())
        with self._lock:
            self._closed = True
        while not self._inbox.empty():
            self._handle(self._inbox.get())
        self._dispatcher.refuse_all(refusals.draining())

    def _serve(self) -> None:
        busy = False
        while not self._ending:
            self._receive(block=not busy)
            busy = self._dispatcher.step()

    def _receive(self, *, block: bool) -> None:
        """Take everything from the inbox; wait for something, or for the next deadline, when asked to block."""
        try:
            item = self._inbox.get(block=block, timeout=self._patience())
            while True:
                self._handle(item)
                item = self._inbox.get_nowait()
        except queue.Empty:
            pass

    def _patience(self) -> float | None:
        moment = self._dispatcher.wake_at()
        return max(0.0, moment - self._clock()) if moment is not None else None

    def _handle(self, item: tuple[Call, float] | _Action) -> None:
        if isinstance(item, tuple):
            self._dispatcher.admit(*item)
            return
        try:
            item()
        except DeviceLostError:
            raise
        except Exception:  # noqa: BLE001 - one action's fault must not end the device thread
            _log.exception("an action on the device thread failed")


def end_process(message: str) -> None:
    """End at once: with the device gone nothing can be saved, and a new process can serve again."""
    _log.critical("%s; the process ends so that a new one can serve", message)
    logging.shutdown()
    os._exit(70)
