# SPDX-License-Identifier: Apache-2.0
"""One builder process from start to end: what it says, how long it may take, how much host memory it may leave to others."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from ballast_contract.reasons import Reason
from ballast_worker.build.builder import BuildFailure
from ballast_worker.build.store import Runtime

_LAST_LINES: Final = 12
_LOOK_SECONDS: Final = 0.05
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Outcome:
    """What one builder process did.

    Attributes:
        built: programs that it put into the store.
        runtime: what it built them for, once it has told.
        failure: why it did not build them all, or None.
        finished: it has built them all.
    """

    built: int = 0
    runtime: Runtime | None = None
    failure: BuildFailure | None = None
    finished: bool = False


@dataclass(slots=True, eq=False)
class Supervised:
    """A builder process and the thread that watches it.

    Args:
        name: of the bundle, for messages.
        timeout_seconds: after this it is killed.
        shortage: asked again and again: why this process has to go for lack of host memory, or None.
    """

    name: str
    timeout_seconds: float
    shortage: Callable[[Supervised], str | None]
    process: subprocess.Popen[str] = field(init=False)
    _verdict: BuildFailure | None = None
    _ended: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Start the process, in a group of its own; it waits for its request."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ballast_worker.build.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
        )

    def resident_bytes(self) -> int:
        """Host memory that the process holds now; 0 when it is gone."""
        try:
            return int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE
        except (OSError, IndexError):
            return 0

    def follow(self, request: Mapping[str, Any], progress: Callable[[str], None]) -> Outcome:
        """Hand over the request and read what the process says until its end; blocks."""
        outcome = Outcome()
        last: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        errors = threading.Thread(target=_drain, args=(self.process.stderr, last), name="builder-stderr", daemon=True)
        watch = threading.Thread(target=self._watch, name="builder-watch", daemon=True)
        with self.process:
            errors.start()
            watch.start()
            try:
                self._send(json.dumps(request))
                self._read(outcome, progress)
                # Its number stays taken until it is reaped, so that the group can still be killed.
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
            finally:
                self._ended.set()
                watch.join()
                self.kill()
                with self._lock:
                    code = self.process.wait()
                errors.join()
        if outcome.finished:
            return outcome  # everything is in the store, however the process ended after that
        if self._verdict is not None:
            outcome.failure = BuildFailure(self._verdict.reason, self._verdict.message, code)
        elif outcome.failure is None:
            outcome.failure = BuildFailure(Reason.LOAD_FAILED_PERMANENT, _crash(self.name, code, last), code)
        return outcome

    def kill(self) -> None:
        """Kill the builder and what it started (the compiler runs an assembler). Any thread.

        A process that was waited for is left alone: its number may be another's by now.
        """
        with self._lock, contextlib.suppress(ProcessLookupError, PermissionError):
            if self.process.returncode is None:
                os.killpg(self.process.pid, signal.SIGKILL)

    def _watch(self) -> None:
        deadline = time.monotonic() + self.timeout_seconds
        while not self._ended.wait(_LOOK_SECONDS):
            if time.monotonic() >= deadline:
                self._verdict = BuildFailure(
                    Reason.LOAD_FAILED_PERMANENT,
                    f"the builder of {self.name} did not end within {self.timeout_seconds:g} s and was killed: "
                    "raise build.timeoutSeconds if compiling it really takes longer",
                )
            elif (why := self.shortage(self)) is not None:
                self._verdict = BuildFailure(
                    Reason.INSUFFICIENT_HOST_MEMORY,
                    f"the builder of {self.name} had taken {self.resident_bytes()} bytes of host memory and was killed "
                    f"before the kernel had to choose: {why}; raise the worker's memory limit",
                )
            if self._verdict is not None:
                self.kill()
                return

    def _send(self, message: str) -> None:
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), self.process.stdin:
                self.process.stdin.write(message)

    def _read(self, outcome: Outcome, progress: Callable[[str], None]) -> None:
        """Read events until the process closes its end."""
        for line in self.process.stdout or ():
            try:
                event: dict[str, Any] = json.loads(line)
            except ValueError:
                continue  # cut short by a crash
            match event["event"]:
                case "runtime":
                    outcome.runtime = _parse_runtime(event["runtime"])
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


def _crash(bundle: str, code: int, last: Sequence[str]) -> str:
    how = f"ended with exit code {code}"
    if code < 0:
        name = signal.Signals(-code).name if -code in signal.valid_signals() else str(-code)
        how = f"was killed by {name}"
        if -code == signal.SIGKILL:
            how += ", as the kernel does when memory runs out: raise the worker's memory limit if it did"
    tail = f"; its last words: {' | '.join(last)}" if last else ""
    return f"the builder of {bundle} {how}{tail}"


def _drain(stream: IO[str] | None, last: collections.deque[str]) -> None:
    for line in stream or ():
        if line.strip():
            last.append(line.strip()[:400])
