# SPDX-License-Identifier: Apache-2.0
"""Run by python inside a worker's container, on the very pool that the worker uses: fillers are killed, files replaced.

Arguments: two bundles of the store, of one name and different weights. Prints what it found as JSON. It needs nothing but
what the worker's image has.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
from pathlib import Path

from ballast_contract.loading import load
from ballast_worker.bundle.reader import Bundle, open_bundle
from ballast_worker.host.pool import HostPool
from ballast_worker.host.survey import survey

KILLS = 50


def configured() -> tuple[Path, int]:
    """Where the worker's pool is, and its budget."""
    config = load(Path("/etc/ballast/worker.yaml"), os.environ)
    host = config.host
    assert isinstance(host.budget, int)
    return (host.directory if host.sharing == "node" else host.directory / config.name), host.budget


def sha256(transfer) -> str:
    """Of the bytes of a transfer, in order."""
    data = {}
    for chunk in transfer.chunks():
        data[chunk.offset] = bytes(chunk.data)
        if chunk.release is not None:
            chunk.release()
    transfer.close()
    return hashlib.sha256(b"".join(data[offset] for offset in sorted(data))).hexdigest()


def kill_fillers(directory: Path, budget: int, bundles: list[Bundle]) -> dict:
    """Kill a process while it reads a model into the pool, again and again; each next start must find all in order."""
    source, killed, wrong = random.Random(1), 0, []
    for number in range(KILLS):
        at = source.randrange(1, 5)
        child = os.fork()
        if child == 0:
            real, seen = os.preadv, [0]

            def preadv(*arguments, real=real, seen=seen, at=at):
                seen[0] += 1
                if seen[0] == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments)

            os.preadv = preadv
            pool = HostPool(directory=directory, budget=budget, file_threads=1)
            pool.evict(bundles[number % 2])
            pool.acquire(bundles[number % 2], keep=False).close()
            os._exit(0)
        killed += os.waitpid(child, 0)[1] == signal.SIGKILL
        HostPool(directory=directory, budget=budget).close()
        found = survey(directory)
        files = sum(path.stat().st_size for path in directory.glob("segment-*"))
        if found.used_bytes > budget or files > budget or not all(region.ready for region in found.regions):
            wrong.append(f"{files} bytes of files, {found}")
    return {"killed": killed, "wrong": wrong[:3]}


def rename_over(directory: Path, budget: int, bundles: list[Bundle]) -> dict:
    """Rename another version over a bundle while the first is read."""
    work = Path("/tmp/renamed")
    shutil.copytree(bundles[0].path, work)
    old = open_bundle(work)
    pool = HostPool(directory=directory, budget=budget, file_threads=1)
    for bundle in bundles:
        pool.evict(bundle)
    replaced = []

    def replace(_: int) -> None:
        if not replaced:
            for file in sorted(bundles[1].path.iterdir()):
                shutil.copy(file, work / f".{file.name}")
                (work / f".{file.name}").rename(work / file.name)
            replaced.append(True)

    during = sha256(pool.acquire(old, keep=False, progress=replace))
    again = sha256(pool.acquire(old, keep=False))
    after = sha256(pool.acquire(open_bundle(work), keep=False))
    pool.close()
    shutil.rmtree(work)
    return {"replaced": bool(replaced), "during": during, "again": again, "after": after}


def main() -> None:
    """See the module."""
    directory, budget = configured()
    bundles = [open_bundle(path) for path in sys.argv[1:3]]
    found = {"directory": str(directory), "kills": kill_fillers(directory, budget, bundles)}
    found["rename"] = rename_over(directory, budget, bundles)
    found["names"] = sorted({region.name for region in survey(directory).regions})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
