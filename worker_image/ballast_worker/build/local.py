# SPDX-License-Identifier: Apache-2.0
"""Building on this machine: one builder process per bundle, bounded in number, in time and in memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ballast_contract.reasons import Reason
from ballast_worker.build.builder import BuildFailure, BuildRequest, BuildResult, BuiltProgram, Dimensions
from ballast_worker.build.runtime import describe
from ballast_worker.build.store import Entry, ExecutableStore, Key, Runtime
from ballast_worker.build.supervision import Supervised

_TRIES: Final = 3
"""With the same device memory; somebody else may have held it the first time."""


@dataclass(frozen=True, slots=True)
class _Starved:
    """A bundle that could not be built for lack of device memory."""

    memory_bytes: int
    tries: int
    failure: BuildFailure


class LocalBuilder:
    """Implements `builder.Builder`. Safe from any thread.

    A builder process dies with the thread that started it, so a caller's thread stays in `build` until the end.

    Args:
        store: where executables are kept.
        parallelism: builder processes at once.
        shortage: why no more host memory may be taken, or None; the largest builder is killed then.
    """

    def __init__(
        self, store: ExecutableStore, *, parallelism: int, shortage: Callable[[], str | None] = lambda: None
    ) -> None:
        self._store = store
        self._slots = threading.BoundedSemaphore(parallelism)
        self._shortage = shortage
        self._lock = threading.Lock()
        self._running: list[Supervised] = []
        self._runtimes: dict[tuple[str, int], Runtime] = {}
        self._starved: dict[str, _Starved] = {}
        self._closed = False

    def build(self, request: BuildRequest, *, progress: Callable[[str], None]) -> BuildResult:
        """See `Builder.build`.

        A bundle for which the device memory did not suffice a few times is not tried again with as little; the store is
        still asked, because another worker may have built it there. Host memory is short for a while, whoever takes it.
        """
        missing, compiled = self._missing(request), 0
        if missing:
            if (starved := self._still_starved(request)) is not None:
                return BuildResult((), 0, 0, starved)
            progress("waiting for a builder")
            with self._slots:
                compiled, failure = self._run(request, missing, progress)
            if failure is not None:
                return BuildResult((), 0, 0, self._remember(request, failure))
        entries = self._entries(request)
        if entries is None:
            return BuildResult(
                (),
                0,
                0,
                BuildFailure(
                    Reason.LOAD_FAILED_WILL_RETRY,
                    f"the executables of {request.bundle} are not in the executable store '{self._store.root}' after they were "
                    "built: can it be read, or does something remove files from it?",
                ),
            )
        return BuildResult(
            programs=tuple(entry.program for entry in entries),
            compiled=compiled,
            context_bytes=max((entry.context_bytes for entry in entries), default=0),
        )

    def tend(self, used: Iterable[BuiltProgram]) -> None:
        """See `Builder.tend`."""
        self._store.tend(used)

    def close(self) -> None:
        """See `Builder.close`."""
        with self._lock:
            self._closed = True
            for builder in self._running:
                builder.kill()

    def _runtime(self, request: BuildRequest) -> Runtime | None:
        """What programs are built for; on cuda the first builder process tells, since only a JAX client can."""
        with self._lock:
            runtime = self._runtimes.get((request.backend, request.ordinal))
            if runtime is None and request.backend == "cpu":
                runtime = self._runtimes[request.backend, request.ordinal] = describe("cpu", "cpu")
        return runtime

    def _missing(self, request: BuildRequest) -> tuple[Dimensions, ...]:
        """Programs to build. All of them while the runtime is not known: the builder process looks before it builds."""
        runtime = self._runtime(request)
        if runtime is None:
            return request.programs
        return tuple(p for p in request.programs if self._store.get(Key(request.digest, p, runtime)) is None)

    def _entries(self, request: BuildRequest) -> list[Entry] | None:
        runtime = self._runtime(request)
        if runtime is None:
            return None
        found = [self._store.get(Key(request.digest, program, runtime)) for program in request.programs]
        entries = [entry for entry in found if entry is not None]
        return entries if len(entries) == len(found) else None

    def _still_starved(self, request: BuildRequest) -> BuildFailure | None:
        with self._lock:
            starved = self._starved.get(request.digest)
        if starved is None or starved.tries < _TRIES or request.memory_bytes > starved.memory_bytes:
            return None
        return starved.failure

    def _remember(self, request: BuildRequest, failure: BuildFailure) -> BuildFailure:
        if failure.reason is not Reason.INSUFFICIENT_DEVICE_MEMORY:
            return failure
        with self._lock:
            before = self._starved.get(request.digest)
            tries = before.tries + 1 if before is not None and request.memory_bytes <= before.memory_bytes else 1
            if tries == _TRIES:
                more = f"{failure.message}; tried {tries} times, and not again before there is more memory for it"
                failure = replace(failure, message=more)
            self._starved[request.digest] = _Starved(request.memory_bytes, tries, failure)
        return failure

    def _run(
        self, request: BuildRequest, programs: Sequence[Dimensions], progress: Callable[[str], None]
    ) -> tuple[int, BuildFailure | None]:
        """Programs built by one process, and why not all."""
        builder = Supervised(str(request.bundle), request.timeout_seconds, self._must_go)
        with self._lock:
            if self._closed:
                return 0, BuildFailure(Reason.DRAINING, "the worker is ending; nothing more is built")
            builder.start()
            self._running.append(builder)
        try:
            outcome = builder.follow(self._message(request, programs), progress)
        finally:
            with self._lock:
                self._running.remove(builder)
        with self._lock:
            if outcome.runtime is not None:
                self._runtimes[request.backend, request.ordinal] = outcome.runtime
            if outcome.failure is None:
                self._starved.pop(request.digest, None)
        return outcome.built, outcome.failure

    def _must_go(self, builder: Supervised) -> str | None:
        """Why this builder has to go: host memory is short and no other builder holds more of it."""
        why = self._shortage()
        if why is None:
            return None
        with self._lock:
            largest = max(self._running, key=Supervised.resident_bytes, default=builder)
        return why if largest is builder else None

    def _message(self, request: BuildRequest, programs: Sequence[Dimensions]) -> dict[str, object]:
        return {
            "bundle": str(request.bundle),
            "digest": request.digest,
            "programs": programs,
            "backend": request.backend,
            "ordinal": request.ordinal,
            "memoryBytes": request.memory_bytes,
            "store": str(self._store.root),
            "parent": os.getpid(),
        }
