# SPDX-License-Identifier: Apache-2.0
"""A process that kills children of itself at each system call by which a pool changes its files, and looks at what is left.

Run as a script: it imports once and forks, so that a kill costs milliseconds. It prints what it found as JSON.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from helpers.plain_bundles import packed_bytes
from helpers.pool_pages import faults, used_bytes

from ballast_worker.bundle.reader import open_bundle
from ballast_worker.host.limits import Available
from ballast_worker.host.pool import HostPool
from ballast_worker.host.survey import survey

MIB = 1 << 20

CALLS = ("pwrite", "posix_fallocate", "ftruncate", "fchmod", "unlink", "open")


def open_pool(directory: Path, budget: int) -> HostPool:
    return HostPool(
        directory=directory,
        budget=budget,
        segment_bytes=4 * MIB,
        ring_bytes=MIB,
        file_threads=1,
        limits=lambda _: Available(1 << 40, "nothing"),
    )


def read(transfer) -> bytes:
    data = {}
    for chunk in transfer.chunks():
        data[chunk.offset] = bytes(chunk.data)
        if chunk.release is not None:
            chunk.release()
    transfer.close()
    return b"".join(data[offset] for offset in sorted(data))


def live(directory: Path, budget: int, bundles) -> None:
    """What a worker does with a pool: start, fill, hit, evict, keep, add a segment, trim."""
    pool = open_pool(directory, budget)
    for bundle in (bundles[0], bundles[1], bundles[0]):
        pool.acquire(bundle, keep=False).close()
    pool.evict(bundles[1])
    pool.acquire(bundles[2], keep=True).close()
    pool.acquire(bundles[1], keep=True).close()
    pool.close()
    open_pool(directory, budget // 2).close()


def kill_at(count: int) -> Callable[[], int]:
    """Die by SIGKILL at the call with this number; a write is half done then. Answers how many calls there were."""
    seen = [0]

    def wrap(name):
        real = getattr(os, name)

        def call(*args, **options):
            seen[0] += 1
            if seen[0] == count:
                if name == "pwrite":
                    real(args[0], args[1][: len(args[1]) // 2], *args[2:])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        setattr(os, name, call)

    for name in CALLS:
        wrap(name)
    return lambda: seen[0]


def in_child(work: Callable[[], object]) -> int:
    """Run something in a forked child; answers its status."""
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            work()
            status = 0
        os._exit(status)
    return os.waitpid(child, 0)[1]


@functools.cache
def expected(path: Path) -> bytes:
    return packed_bytes(open_bundle(path))


def look(directory: Path, budget: int, bundles) -> list[str]:
    """What is wrong with a pool after a kill."""
    wrong = []
    pool = open_pool(directory, budget)
    found = survey(directory)
    files = sorted(path for path in directory.iterdir() if path.name.startswith("segment-"))
    if found.used_bytes > budget or len(files) * found.segment_bytes > budget or len(files) != found.segments:
        wrong.append(f"{len(files)} files, {found.segments} segments, {found.used_bytes} bytes used")
    if any(not region.ready or region.in_transfer or region.kept for region in found.regions):
        wrong.append(f"left over: {found.regions}")
    for bundle in bundles:
        transfer = pool.acquire(bundle, keep=False)
        if not transfer.kept:
            wrong.append("no room for a copy")
        if read(transfer) != expected(bundle.path):
            wrong.append("wrong bytes")
    pool.close()
    return wrong


def each_call(directory: Path, budget: int, bundles) -> dict:
    """Kill at every call in turn, on one directory that keeps whatever is left."""
    reader, writer = os.pipe()

    def count():
        calls = kill_at(-1)
        live(directory, budget, bundles)
        os.write(writer, str(calls()).encode())

    in_child(count)
    total = int(os.read(reader, 100))
    wrong, killed = {}, 0
    for number in range(1, total + 1):

        def once(number=number):
            kill_at(number)
            live(directory, budget, bundles)

        killed += in_child(once) == signal.SIGKILL
        if found := look(directory, budget, bundles[number % 2 :: 2]):
            wrong[number] = found
    return {"calls": total, "killed": killed, "wrong": wrong}


def during_reads(directory: Path, budget: int, bundles) -> dict:
    """Kill while a model is read into its region, 50 times, at any point of the read."""
    source, wrong, killed = random.Random(1), {}, 0
    for number in range(50):

        def once(number=number):
            at, real, seen = source.randrange(1, 5), os.preadv, [0]
            source.seed(number)

            def preadv(*args):
                seen[0] += 1
                if seen[0] == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args)

            os.preadv = preadv
            open_pool(directory, budget).acquire(bundles[number % len(bundles)], keep=False)

        killed += in_child(once) == signal.SIGKILL
        pool = open_pool(directory, budget)
        found = survey(directory)
        if found.used_bytes > budget or any(not region.ready for region in found.regions):
            wrong[number] = [str(found)]
        pool.close()
    final = look(directory, budget, bundles[:1])
    return {"killed": killed, "wrong": wrong | ({"final": final} if final else {})}


def churn(directory: Path, budget: int, bundles, source: random.Random, started: int) -> None:
    """Fill and evict for ever; says by a byte that it has begun."""
    pool = open_pool(directory, budget)
    os.write(started, b"x")
    while True:
        pool.acquire(source.choice(bundles), keep=False).close()
        pool.evict(source.choice(bundles))


def at_random(directory: Path, budget: int, bundles) -> dict:
    """Kill who fills and evicts 100 times at a random moment. One process that lives on, or a new start in every other
    round, finds every page, and what it loads is there at the next load.
    """
    source, wrong = random.Random(1), {}
    left = {"filling": 0, "live": 0}
    survivor = open_pool(directory, budget)
    for number in range(100):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                churn(directory, budget, bundles, random.Random(number), writer)
            os._exit(1)
        os.close(writer)
        os.read(reader, 1)
        time.sleep(source.uniform(0, 0.004))  # the moment of the kill; nothing waits for it
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        found = survey(directory)
        left["filling"] += sum(not region.ready for region in found.regions)
        left["live"] += sum(region.ready for region in found.regions)
        pool = survivor if number % 2 else open_pool(directory, budget)
        trouble = faults(directory)
        # With the largest, whatever the dead held is needed.
        for bundle in (max(bundles, key=lambda one: one.layout.nbytes), source.choice(bundles)):
            transfer = pool.acquire(bundle, keep=False)
            if not transfer.kept or read(transfer) != expected(bundle.path):
                trouble.append(f"{bundle.path.name} has no right copy")
            hits = pool.statistics().hits
            pool.acquire(bundle, keep=False).close()
            if pool.statistics().hits != hits + 1:
                trouble.append(f"{bundle.path.name} is no hit at its next load")
        if used_bytes(directory) > budget:
            trouble.append(f"{used_bytes(directory)} bytes are used")
        trouble += faults(directory)
        if trouble:
            wrong[number] = trouble
        if pool is not survivor:
            pool.close()
    survivor.close()
    return {"killed": 100, "left": left, "wrong": wrong}


def main() -> None:
    mode, directory, budget, *paths = sys.argv[1:]
    bundles = [open_bundle(path) for path in paths]
    run = {"each_call": each_call, "during_reads": during_reads, "at_random": at_random}[mode]
    print(json.dumps(run(Path(directory), int(budget), bundles)))


if __name__ == "__main__":
    main()
