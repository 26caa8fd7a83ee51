# SPDX-License-Identifier: Apache-2.0
"""How fast the host pool fills, changes its table, chooses what to evict, and starts.

Filling is set against a plain read of the same file into memory that was touched before, round after round in turn; the best
round of each counts. The plain read is the best of one thread and of as many as fill, each with a part of its own. Twice:
with the file out of the page cache, as after a start of the node, where the disk is the limit; and with the file in it, where
memory and processors are. Filling verifies the digest, which plain reading does not: what the processors can digest, and what
a read that verifies brings into memory that was touched before, is measured beside.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import yaml
from blake3 import blake3

from ballast_worker.bundle.digests import bytes_digest, weights_digest
from ballast_worker.bundle.files import FileIdentity
from ballast_worker.bundle.layout import LAYOUT_VERSION, TensorSpec
from ballast_worker.bundle.reader import Bundle, open_bundle
from ballast_worker.bundle.safetensors import build_header
from ballast_worker.host import regions
from ballast_worker.host.directory import PoolDirectory
from ballast_worker.host.limits import MARGIN_BYTES, available
from ballast_worker.host.pages import PAGE_BYTES, Run
from ballast_worker.host.pool import FILE_THREADS, HostPool
from ballast_worker.host.table import EMPTY, Entry, State
from benchmarks import report

GIB: Final = 1 << 30
SHARED: Final = Path("/dev/shm")  # noqa: S108 - the host pool lives in shared memory by design
TENSOR_BYTES: Final = 32 << 20
READ_BYTES: Final = 1 << 20
REGIONS: Final = 1000
TIMES: Final = 200
"""A change or a choice is timed so often; the median counts."""


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    with contextlib.ExitStack() as stack:
        shared = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ballast-bench-", dir=SHARED)))
        disk = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ballast-bench-", dir=options.folder)))
        figures = _start(shared / "start", int(options.pool_gib * GIB))
        figures |= _table(shared / "table")
        figures |= _filling(disk, shared / "fill", int(options.gib * GIB), options.rounds)
    return figures


def _filling(disk: Path, shared: Path, nbytes: int, rounds: int) -> dict[str, Any]:
    report.progress(f"writing a bundle of {nbytes >> 20} MiB")
    bundle = _bundle(disk / "bundle", nbytes)
    fd = os.open(bundle.path / bundle.manifest.weights.file, os.O_RDONLY)
    touched = memoryview(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE))
    pool = HostPool(directory=shared, budget=nbytes, file_threads=FILE_THREADS)

    path = bundle.path / bundle.manifest.weights.file

    def read(part: memoryview, first: int) -> None:
        with path.open("rb", buffering=0) as file:
            for offset in range(0, len(part), READ_BYTES):
                os.preadv(file.fileno(), [part[offset : offset + READ_BYTES]], first + offset)

    def digest(part: memoryview, first: int) -> None:
        del first
        blake3(part)

    def verify() -> None:
        with bundle.open_weights() as file:
            file.read_into(touched, layout=bundle.layout, threads=FILE_THREADS)

    def fill() -> None:
        pool.evict(bundle)
        transfer = pool.acquire(bundle, keep=False)
        assert transfer.kept  # noqa: S101
        transfer.close()

    best: dict[str, float] = {}
    try:
        for number in range(rounds):
            for cold in (True, False):
                suffix = "" if cold else "_cached"
                for name, work in (
                    (f"read{suffix}", lambda: _in_threads(1, touched, read)),
                    (f"read{suffix}", lambda: _in_threads(FILE_THREADS, touched, read)),
                    (f"verified_read{suffix}", verify),
                    (f"fill{suffix}", fill),
                ):
                    if cold:
                        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                    best[name] = max(best.get(name, 0.0), nbytes / _seconds(work) / 1e9)
            best["digest"] = max(
                best.get("digest", 0.0), nbytes / _seconds(lambda: _in_threads(FILE_THREADS, touched, digest)) / 1e9
            )
            report.progress(
                f"round {number + 1} of {rounds}: " + ", ".join(f"{k} {v:.2f} GB/s" for k, v in sorted(best.items()))
            )
    finally:
        pool.close()
        os.close(fd)
    return {
        "fill_ratio": round(best["fill"] / best["read"], 3),
        "fill_ratio_cached": round(best["fill_cached"] / best["read_cached"], 3),
        "fill_share_of_verified_read": round(best["fill"] / best["verified_read"], 3),
        "fill_share_of_verified_read_cached": round(best["fill_cached"] / best["verified_read_cached"], 3),
        "fill_bytes": nbytes,
    } | {f"{name}_gb_per_second": round(rate, 3) for name, rate in sorted(best.items())}


def _table(path: Path) -> dict[str, Any]:
    """A pool full of regions of one page each; nothing is written to them."""
    report.progress(f"a table of {REGIONS} regions")
    pages = 32
    directory = PoolDirectory(path, segment_bytes=pages * PAGE_BYTES, mode=0o600)
    segments = tuple(range(1, -(-REGIONS // pages) + 1))
    entries = tuple(
        Entry(
            slot=slot,
            state=State.READY,
            layout_version=LAYOUT_VERSION,
            digest=blake3(str(slot).encode()).digest(),
            nbytes=PAGE_BYTES,
            identity=FileIdentity(1, slot, PAGE_BYTES, 1, 1),
            name=f"model-{slot}",
            runs=(Run(segments[slot // pages], slot % pages, 1),),
        )
        for slot in range(REGIONS)
    )
    for entry in entries:
        directory.table.mark(entry.slot, filled=PAGE_BYTES, loaded_ns=(entry.slot * 7919) % REGIONS)
    directory.table.write(replace(EMPTY, segments=segments, entries=entries))

    def change() -> None:
        with directory.locked():
            directory.table.change(lambda now: now.with_entry(now.entries[0]))

    def choose() -> None:
        with directory.locked(), directory.locks() as victims:
            found = regions.find_room(directory, directory.table.read(), 1, victims, evict=True, most=len(segments) - 1)
            assert found is not None  # noqa: S101
            assert found.evicted  # noqa: S101

    def evict() -> None:
        with directory.locked(), directory.locks() as victims:
            table = directory.table.read()
            found = regions.find_room(directory, table, 1, victims, evict=True, most=len(segments) - 1)
            assert found is not None  # noqa: S101
            directory.table.write(replace(found.table, entries=entries))

    try:
        return {
            "evict_microseconds_at_1000": round(_median_microseconds(evict), 1),
            "evict_decision_microseconds_at_1000": round(_median_microseconds(choose), 1),
            "table_change_microseconds_at_1000": round(_median_microseconds(change), 1),
        }
    finally:
        directory.close()


def _start(path: Path, wanted: int) -> dict[str, Any]:
    """A first start, which allocates every segment, and a second, which finds them."""
    room = available(SHARED).nbytes - MARGIN_BYTES
    nbytes = min(wanted, max(0, room) // GIB * GIB)
    report.progress(f"start with a pool of {nbytes >> 20} MiB ({wanted >> 20} wanted)")

    def start() -> None:
        HostPool(directory=path, budget=nbytes).close()

    figures = {"start_bytes": nbytes, "start_seconds": _seconds(start), "start_again_seconds": _seconds(start)}
    shutil.rmtree(path, ignore_errors=True)
    return {name: round(value, 4) for name, value in figures.items()}


def _in_threads(count: int, memory: memoryview, work: Callable[[memoryview, int], None]) -> None:
    """Do something with a memory in so many threads, each with a part of it, which begins at the second argument."""
    share = len(memory) // count
    threads = [
        threading.Thread(target=work, args=(memory[first : first + share], first))
        for first in range(0, share * count, share)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _bundle(path: Path, nbytes: int) -> Bundle:
    """A bundle with weights that do not repeat and a function that nobody runs."""
    path.mkdir()
    specs = [TensorSpec(f"t{index:04d}", "uint8", (TENSOR_BYTES,)) for index in range(nbytes // TENSOR_BYTES)]
    block, function = bytearray(os.urandom(TENSOR_BYTES)), b"none"
    header = build_header(specs)

    def tensors() -> Iterator[bytearray]:
        for index in range(len(specs)):
            block[:8] = index.to_bytes(8, "little")
            yield block

    with (path / "weights.safetensors").open("wb") as file:
        file.write(header)
        digests = [blake3(tensor).digest() for tensor in tensors() if file.write(tensor)]
        file.flush()
        os.fsync(file.fileno())
    (path / "function.jaxexport").write_bytes(function)
    manifest = {
        "format": "ballast.dev/bundle/v1",
        "name": "bench",
        "function": {
            "file": "function.jaxexport",
            "digest": bytes_digest(function),
            "bytes": len(function),
            "platforms": ["cpu"],
            "jaxVersion": "0.10.2",
            "callingConvention": 10,
        },
        "weights": {
            "file": "weights.safetensors",
            "digest": weights_digest(specs, digests),
            "bytes": len(header) + nbytes,
            "tensors": [spec.name for spec in specs],
        },
        "outputs": [{"name": "y", "dtype": "float32", "shape": [1]}],
        "inputs": [],
    }
    (path / "manifest.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    return open_bundle(path)


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _median_microseconds(work: Callable[[], None]) -> float:
    return median(_seconds(work) for _ in range(TIMES)) * 1e6


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gib", type=report.above_zero(float), default=2.0, help="size of the file that is read and filled from"
    )
    parser.add_argument(
        "--pool-gib",
        type=report.above_zero(float),
        default=8.0,
        help="size of the pool that is started, if memory allows",
    )
    parser.add_argument("--rounds", type=report.above_zero(int), default=5, help="of reads and fills")
    parser.add_argument("--folder", type=Path, help="where the file is written; by default the temporary directory")


if __name__ == "__main__":
    report.main("host", measure, description=__doc__, arguments=_arguments)
