# SPDX-License-Identifier: Apache-2.0
"""Building on this machine: one builder process per bundle, bounded in number and in time."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

from ballast_contract.reasons import Reason
from ballast_worker.build.builder import BuildFailure, BuildRequest, BuildResult, BuiltProgram, Dimensions
from ballast_worker.build.runtime import describe
from ballast_worker.build.store import Entry, ExecutableStore, Key, Runtime

_LAST_LINES: Final = 12


@dataclass(slots=True)
class _Outcome:
    """What one builder process did."""

    built: int = 0
    finished: bool = False
    failure: BuildFailure | None = None


class LocalBuilder:
    """Implements `builder.Builder`. Safe from any thread.

    A builder process dies with the thread that started it, so a caller's thread stays in `build` until the end.
    """

    def __init__(self, store: ExecutableStore, *, parallelism: int) -> None:
        self._store = store
        self._slots = threading.BoundedSemaphore(parallelism)
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._runtimes: dict[tuple[str, int], Runtime] = {}
        self._closed = False

    def build(self, request: BuildRequest, *, progress: Callable[[str], None]) -> BuildResult:
        """See `Builder.build`."""
        missing, outcome = self._missing(request), _Outcome()
        if missing:
            progress("waiting for a builder")
            with self._slots:
                self._run(request, missing, progress, outcome)
            if outcome.failure is not None:
                return BuildResult((), 0, 0, outcome.failure)
        entries = self._entries(request)
        if entries is None:
            return BuildResult(
                (),
                0,
                0,
                BuildFailure(
                    Reason.LOAD_FAILED_PERMANENT,
                    f"the executables of {request.bundle} are not in the store '{self._store.root}' after they were built: "
                    "is it full, or does something remove files from it?",
                ),
            )
        return BuildResult(
            programs=tuple(entry.program for entry in entries),
            compiled=outcome.built,
            context_bytes=max((entry.context_bytes for entry in entries), default=0),
        )

    def tend(self, used: Iterable[BuiltProgram]) -> None:
        """See `Builder.tend`."""
        self._store.tend(used)

    def close(self) -> None:
        """See `Builder.close`."""
        with self._lock:
            self._closed = True
            for process in self._running:
                _kill(process)

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

    def _run(
        self,
        request: BuildRequest,
        programs: Sequence[Dimensions],
        progress: Callable[[str], None],
        outcome: _Outcome,
    ) -> None:
        with self._lock:
            if self._closed:
                outcome.failure = BuildFailure(Reason.DRAINING, "the worker is ending; nothing more is built")
                return
            process = subprocess.Popen(
                [sys.executable, "-m", "ballast_worker.build.process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                process_group=0,
            )
            self._running.add(process)
        expired = threading.Event()

        def expire() -> None:
            with self._lock:
                if process in self._running:
                    expired.set()
                    _kill(process)

        timer = threading.Timer(request.timeout_seconds, expire)
        timer.daemon = True
        last: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        errors = threading.Thread(target=_drain, args=(process.stderr, last), name="builder-stderr", daemon=True)
        with process:
            timer.start()
            errors.start()
            try:
                _send(process, self._message(request, programs))
                self._follow(process, request, progress, outcome)
                # Its number stays taken until it is reaped, so that the group can still be killed.
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            finally:
                timer.cancel()
                with self._lock:
                    self._running.discard(process)
                    _kill(process)
                code = process.wait()
                errors.join()
        if expired.is_set():
            outcome.failure = BuildFailure(
                Reason.LOAD_FAILED_PERMANENT,
                f"the builder of {request.bundle} did not end within {request.timeout_seconds:g} s and was killed: "
                "raise build.timeoutSeconds if compiling it really takes longer",
                code,
            )
        elif outcome.failure is None and (code != 0 or not outcome.finished):
            outcome.failure = BuildFailure(Reason.LOAD_FAILED_PERMANENT, _crash(request, code, last), code)

    def _message(self, request: BuildRequest, programs: Sequence[Dimensions]) -> str:
        return json.dumps(
            {
                "bundle": str(request.bundle),
                "digest": request.digest,
                "programs": programs,
                "backend": request.backend,
                "ordinal": request.ordinal,
                "memoryBytes": request.memory_bytes,
                "store": str(self._store.root),
                "parent": os.getpid(),
            }
        )

    def _follow(
        self,
        process: subprocess.Popen[str],
        request: BuildRequest,
        progress: Callable[[str], None],
        outcome: _Outcome,
    ) -> None:
        """Read events until the process closes its end."""
        for line in process.stdout or ():
            try:
                event: dict[str, Any] = json.loads(line)
            except ValueError:
                continue  # cut short by a crash
            match event["event"]:
                case "runtime":
                    with self._lock:
                        self._runtimes[request.backend, request.ordinal] = _parse_runtime(event["runtime"])
                case "progress":
                    progress(event["text"])
                case "built":
                    outcome.built += 1
                case "failed":
                    outcome.failure = BuildFailure(Reason(event["reason"]), event["message"])
                case "finished":
                    outcome.finished = True


def _parse_runtime(fields: dict[str, Any]) -> Runtime:
    pairs = {name: tuple((key, value) for key, value in fields[name]) for name in ("libraries", "flags")}
    return Runtime(**{**fields, **pairs})


def _crash(request: BuildRequest, code: int, last: Sequence[str]) -> str:
    how = f"ended with exit code {code}"
    if code < 0:
        name = signal.Signals(-code).name if -code in signal.valid_signals() else str(-code)
        how = f"was killed by {name}"
        if -code == signal.SIGKILL:
            how += ", as the kernel does when memory runs out: raise the worker's memory limit if it did"
    tail = f"; its last words: {' | '.join(last)}" if last else ""
    return f"the builder of {request.bundle} {how}{tail}"


def _send(process: subprocess.Popen[str], message: str) -> None:
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(message)


def _drain(stream: IO[str] | None, last: collections.deque[str]) -> None:
    for line in stream or ():
        if line.strip():
            last.append(line.strip()[:400])


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill the builder and what it started (the compiler runs an assembler); nothing happens when all are gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
