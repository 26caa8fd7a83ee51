# SPDX-License-Identifier: Apache-2.0
"""Other workers of the node: processes with pools of their own on one directory, told what to do line by line.

A nursery imports once and forks a process for each worker, so that a worker costs milliseconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]

SEGMENT_BYTES = 4 << 20


class Nursery:
    """A process that makes workers."""

    def __init__(self, folder: Path) -> None:
        """Start it; its socket is in `folder`."""
        self._address = str(folder / "nursery")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "worker_image")])}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "helpers.pool_worker", self._address],
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def worker(self, directory: Path, budget: int | None) -> Worker:
        """A new process, which opens a pool with this budget in bytes; its first answer says that it is open."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._address)
        worker = Worker(connection)
        worker.tell(directory, json.dumps(budget))
        return worker

    def close(self) -> None:
        """End it; its workers must have ended."""
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Worker:
    """The process, as seen by a test."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rw", encoding="utf-8")
        self.pid = int(self._lines.readline())
        self._process = os.pidfd_open(self.pid)

    def tell(self, *command) -> None:
        """Begin something."""
        self._lines.write(json.dumps([str(word) for word in command]) + "\n")
        self._lines.flush()

    def answer(self):
        """What came of it."""
        return json.loads(self._lines.readline())

    def ask(self, *command):
        """Do something and say what came of it."""
        self.tell(*command)
        return self.answer()

    def kill(self) -> None:
        """End it by SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """End it in order, or after a kill; its locks are gone then."""
        if self._process < 0:
            return
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        with contextlib.suppress(OSError):
            self._lines.close()
        select.select([self._process], [], [])
        os.close(self._process)
        self._process = -1


class _Served:
    """One worker's side: carries out what it is told."""

    def __init__(self, directory: str, budget: int | None, lines) -> None:
        from ballast_worker.host.limits import Available  # noqa: PLC0415 - only in the process itself
        from ballast_worker.host.pool import HostPool  # noqa: PLC0415

        self._lines = lines
        self._held = {}
        self._reads = 0
        self._count_reads()
        self._pool = HostPool(
            directory=Path(directory),
            budget=budget,
            segment_bytes=SEGMENT_BYTES,
            ring_bytes=1 << 20,
            limits=lambda _: Available(1 << 40, "nothing"),
        )

    def run(self) -> None:
        from ballast_worker.bundle.errors import BundleError  # noqa: PLC0415
        from ballast_worker.bundle.reader import open_bundle  # noqa: PLC0415

        self._say("ready")
        for line in self._lines:
            command, path, *rest = json.loads(line)
            try:
                self._say(getattr(self, command)(open_bundle(path), *rest))
            except BundleError as error:
                self._say({"failed": error.reason})
        for transfer in self._held.values():
            transfer.close()
        self._pool.close()

    def acquire(self, bundle, keep="") -> dict:
        """Load, and hold the transfer; `keep`: always keep the copy."""
        self.close(bundle)
        found = self._pool.find(bundle, keep=bool(keep))
        transfer = self._held[bundle.path] = found or self._pool.acquire(bundle, keep=bool(keep))
        digest = hashlib.sha256()
        for chunk in transfer.chunks():
            digest.update(chunk.data)
            if chunk.release is not None:
                chunk.release()
        return {"kept": transfer.kept, "sha256": digest.hexdigest(), "hits": self._pool.statistics().hits}

    def load(self, bundle) -> dict:
        """Load and let go."""
        found = self.acquire(bundle)
        self.close(bundle)
        return found

    def load_when_told(self, bundle) -> dict:
        """Say that it is there, wait for any line, and load."""
        self._say("waiting")
        self._lines.readline()
        return self.load(bundle)

    def close(self, bundle) -> str:
        if (transfer := self._held.pop(bundle.path, None)) is not None:
            transfer.close()
        return "closed"

    def evict(self, bundle) -> bool:
        return self._pool.evict(bundle)

    def unkeep(self, bundle) -> str:
        self._pool.unkeep(bundle)
        return "let go"

    def reads(self, bundle) -> int:
        """How often this process has read a file into a region."""
        return self._reads

    def stop_in_fill(self, bundle, nbytes) -> str:
        """Say how far it is in the file, and read no further before the next line."""
        from ballast_worker.bundle.weights import WeightsFile  # noqa: PLC0415

        real, done = WeightsFile.read_into, int(nbytes)

        def read_into(file, buffer, **options) -> None:
            WeightsFile.read_into = real
            options["progress"](done)
            self._say("filling")
            self._lines.readline()
            options["progress"](-done)
            real(file, buffer, **options)

        WeightsFile.read_into = read_into
        self._pool.acquire(bundle, keep=False).close()
        WeightsFile.read_into = real
        return "filled"

    def _say(self, answer) -> None:
        self._lines.write(json.dumps(answer) + "\n")
        self._lines.flush()

    def _count_reads(self) -> None:
        from ballast_worker.bundle.weights import WeightsFile  # noqa: PLC0415

        real = WeightsFile.read_into

        def read_into(*args, **options) -> None:
            self._reads += 1
            real(*args, **options)

        WeightsFile.read_into = read_into


def main() -> None:
    import ballast_worker.bundle.reader  # noqa: PLC0415 - once, for all workers
    import ballast_worker.host.pool  # noqa: F401, PLC0415

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen()
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            if os.fork():
                connection.close()
                continue
            listener.close()
            lines = connection.makefile("rw", encoding="utf-8")
            lines.write(f"{os.getpid()}\n")
            lines.flush()
            directory, budget = json.loads(lines.readline())
            _Served(directory, json.loads(budget), lines).run()
            os._exit(0)


if __name__ == "__main__":
    main()
