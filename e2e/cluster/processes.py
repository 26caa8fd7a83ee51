# SPDX-License-Identifier: Apache-2.0
"""Background processes, each known by a pid file and with a log of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from e2e.cluster.commands import environment
from e2e.cluster.console import ClusterError, say, tail
from e2e.cluster.settings import Settings


def start_time(pid: int) -> str | None:
    """Return a process's start in clock ticks, which with its pid names it for good; None when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def resident_mib(pid: int) -> float:
    """Return the memory that a process holds, 0 when it has ended."""
    try:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def _gone(pid: int) -> bool:
    """Whether a process has ended; a child is reaped, or it would stay a zombie for as long as this program runs."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return start_time(pid) is None


def _child_of(pid: int) -> int | None:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


class Processes:
    """The processes of one cluster."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def log(self, name: str) -> Path:
        """Return the log of a process."""
        return self.settings.log / f"{name}.log"

    def names(self) -> list[str]:
        """Return every process that has a pid file, whether it runs or not."""
        return sorted(path.stem for path in self.settings.run.glob("*.pid"))

    def running(self, name: str) -> int | None:
        """Return the pid of a process that runs."""
        try:
            pid, started = (self.settings.run / f"{name}.pid").read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid) if start_time(int(pid)) == started else None

    def spawn(
        self, name: str, argv: Iterable[object], *, inner: bool = False, extra: Mapping[str, str] | None = None
    ) -> int:
        """Start a process unless it runs. inner: argv forks once, and the child is the one meant."""
        if pid := self.running(name):
            return pid
        words = [str(word) for word in argv]
        if self.settings.tied:
            words = ["setpriv", "--pdeathsig", "KILL", "--", *words]
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self.settings) | dict(extra or {}),
                cwd="/",
                start_new_session=True,
            )
        pid = process.pid
        while inner:
            if child := _child_of(process.pid):
                pid = child
                break
            if process.poll() is not None:
                raise ClusterError("\n".join([f"{name} ended at once ({process.returncode})", *tail(self.log(name))]))
            time.sleep(0.01)
        # The pid file outlives this program, and so does the process: nobody will wait for it here.
        process.returncode = 0
        (self.settings.run / f"{name}.pid").write_text(f"{pid} {start_time(pid)}\n")
        return pid

    def wait(self, name: str, what: str, ready: Callable[[], bool], *, seconds: float) -> None:
        """Poll until ready; the error carries the end of the log of the process that was waited for."""
        deadline = time.monotonic() + seconds
        while True:
            # Asked first: on a taken port somebody else may answer for a process that has ended.
            alive = self.running(name)
            if alive and ready():
                break
            if not alive or time.monotonic() > deadline:
                why = f"not so after {seconds:.0f} s" if alive else f"{name} has ended"
                raise ClusterError("\n".join([f"{what}: {why}", *tail(self.log(name))]))
            time.sleep(0.05)
        say(what)

    def stop(self, name: str, *, seconds: float = 20) -> None:
        """End a process at once: nothing that it could still write is wanted again."""
        if pid := self.running(name):
            os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + seconds
            while not _gone(pid):
                if time.monotonic() > deadline:
                    raise ClusterError(f"{name} (pid {pid}) is still there {seconds:.0f} s after SIGKILL")
                time.sleep(0.01)
        (self.settings.run / f"{name}.pid").unlink(missing_ok=True)

    def stop_all(self) -> None:
        """End every process; a node's holder first, since the kernel then ends all that ran in the node."""
        for name in sorted(self.names(), key=lambda name: "." in name):
            self.stop(name)
