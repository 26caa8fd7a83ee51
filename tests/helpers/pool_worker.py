# SPDX-License-Identifier: Apache-2.0
"""Another worker of the node: a process with a pool of its own on the same directory, told what to do line by line."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


class Worker:
    """The process, as seen by a test."""

    def __init__(self, directory: Path, budget: int | None) -> None:
        """Start the process; its first answer says that its pool is open."""
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "worker_image")])}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "helpers.pool_worker", directory, json.dumps(budget)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def tell(self, *command) -> None:
        """Begin something."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([str(word) for word in command]) + "\n")
        self.process.stdin.flush()

    def answer(self):
        """What came of it."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, *command):
        """Do something and say what came of it."""
        self.tell(*command)
        return self.answer()

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.process.kill()
        self.close()

    def close(self) -> None:
        """End it in order, or after a kill."""
        if self.process.stdin and not self.process.stdin.closed:
            self.process.stdin.close()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


def main() -> None:
    from ballast_worker.bundle.reader import open_bundle  # noqa: PLC0415 - only in the process itself
    from ballast_worker.bundle.weights import WeightsFile  # noqa: PLC0415
    from ballast_worker.host.limits import Available  # noqa: PLC0415
    from ballast_worker.host.pool import HostPool  # noqa: PLC0415

    pool = HostPool(
        directory=Path(sys.argv[1]),
        budget=json.loads(sys.argv[2]),
        segment_bytes=4 << 20,
        ring_bytes=1 << 20,
        limits=lambda _: Available(1 << 40, "nothing"),
    )
    held = {}

    def say(answer) -> None:
        print(json.dumps(answer), flush=True)

    say("ready")
    for line in sys.stdin:
        command, path, *rest = json.loads(line)
        bundle = open_bundle(path)
        if command in ("acquire", "keep"):
            transfer = held[path] = pool.acquire(bundle, keep=command == "keep")
            digest = hashlib.sha256()
            for chunk in transfer.chunks():
                digest.update(chunk.data)
                if chunk.release is not None:
                    chunk.release()
            say({"kept": transfer.kept, "sha256": digest.hexdigest(), "hits": pool.statistics().hits})
        elif command == "close":
            held.pop(path).close()
            say("closed")
        elif command == "stop-in-fill":
            # Says how far it is, and then reads no further.
            def read_into(
                self, buffer, *, layout, threads, progress, done=int(rest[0]), real=WeightsFile.read_into
            ) -> None:
                progress(done)
                say("filling")
                sys.stdin.readline()
                progress(-done)
                real(self, buffer, layout=layout, threads=threads, progress=progress)

            WeightsFile.read_into = read_into  # type: ignore[method-assign]
            pool.acquire(bundle, keep=False).close()
            say("filled")
    pool.close()


if __name__ == "__main__":
    main()
