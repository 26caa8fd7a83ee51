# SPDX-License-Identifier: Apache-2.0
"""Reading weights: each tensor straight to its packed place with one copy, its digest computed on the way.

Ordinary reads, never a mapping of the file: a mapped file that becomes shorter kills the reader with a signal.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from blake3 import blake3

from ballast_worker.bundle.digests import weights_digest
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.files import FileIdentity
from ballast_worker.bundle.layout import Layout
from ballast_worker.bundle.safetensors import Entry

READ_BYTES = 512 << 10
"""Bytes of one read: large enough that calls cost nothing, small enough that the digest finds them in the core's cache."""

MAX_THREADS = 64


class WeightsFile:
    """The open weights of a bundle. A context manager; closing is idempotent.

    Attributes:
        identity: The file as it was when it was opened.
    """

    identity: FileIdentity

    def __init__(self, fd: int, *, entries: Sequence[Entry], digest: str, shown: str, replaced: bool = False) -> None:
        """Take ownership of the open file `fd`.

        Args:
            fd: Open for reading; closed by `close`.
            entries: Where each tensor lies in the file, in argument order.
            digest: What the manifest says the weights' digest is.
            shown: The file's name in messages.
            replaced: The file is not the one seen when the bundle was opened, so other content is a change, not a fault.
        """
        self._fd = fd
        self._entries = tuple(entries)
        self._digest = digest
        self._shown = shown
        self.identity = FileIdentity.of(fd)
        self._replaced = replaced
        self._links = os.fstat(fd).st_nlink

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Nothing may be reading it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def read_into(
        self,
        buffer: memoryview,
        *,
        layout: Layout,
        threads: int = 4,
        prepare: Callable[[memoryview], None] | None = None,
        release: Callable[[memoryview], None] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Fill `buffer` with the packed weights and verify their digest.

        Gaps between tensors are zeroed. On any exception the content of `buffer` is undefined and nobody may use it.

        Args:
            buffer: At least `layout.nbytes` writable contiguous bytes; what lies beyond is left alone.
            layout: The layout of this bundle.
            threads: Threads that read and hash, 1 to `MAX_THREADS`; a tensor is read by one of them.
            prepare: Called from these threads with the part of `buffer` that is read to next.
            release: Called from these threads with the part of `buffer` that holds a tensor whose digest was taken.
            progress: Called from these threads, never by two at once, with the bytes read since its last call. What it
                raises ends the read and is passed on.

        Raises:
            BundleError: `SourceChanged` when the file was changed while it was read or is not the one whose digest the
                manifest has.
            ValueError: `buffer` is too small or not writable, or `layout` is not this bundle's.
            OSError: The file system failed.
        """
        image = _bytes_view(buffer, layout.nbytes)
        self._check_layout(layout)
        cursor = 0
        for placed in layout.tensors:
            _zero(image[cursor : placed.offset])
            cursor = max(cursor, placed.end)
        _zero(image[cursor : layout.nbytes])

        contents: list[bytes] = [b""] * len(self._entries)
        # Largest first: the last thread to finish then finishes with a small one. Among equals in the order of the file,
        # which is the order in which the kernel reads ahead.
        entries = self._entries
        jobs = sorted(range(len(entries)), key=lambda index: (entries[index].spec.nbytes, -entries[index].start))
        reporting = threading.Lock()
        stop = threading.Event()

        def work() -> None:
            try:
                with self._own_description() as fd:
                    while jobs and not stop.is_set():
                        try:
                            index = jobs.pop()  # atomic
                        except IndexError:
                            return
                        placed = layout.tensors[index]
                        target = image[placed.offset : placed.end]
                        contents[index] = self._read_tensor(fd, self._entries[index], target, prepare, report, stop)
                        if release is not None:
                            release(target)
            except BaseException:
                stop.set()
                raise

        def report(nbytes: int) -> None:
            if progress is not None:
                with reporting:
                    progress(nbytes)

        count = max(1, min(threads, MAX_THREADS, len(jobs)))
        if count == 1:
            work()
        else:
            with ThreadPoolExecutor(count, thread_name_prefix="weights") as pool:
                futures = [pool.submit(work) for _ in range(count)]
            for future in futures:
                future.result()
        self._verify(contents)

    def chunks(
        self,
        layout: Layout,
        size: int,
        *,
        buffer: Callable[[int], memoryview] | None = None,
    ) -> Iterator[tuple[int, memoryview]]:
        """The packed weights in order, in pieces of `size` bytes, for streaming through a ring.

        The digest is verified after the last piece: only when the iterator ends without an exception is what was
        streamed valid.

        Args:
            layout: The layout of this bundle.
            size: Bytes of each piece but the last, above 0.
            buffer: Called with a number of bytes for a writable buffer of at least that size to read a piece into, such
                as the next slot of a ring. By default one buffer is used for all pieces, so that each piece is valid
                until the next is asked for.

        Yields:
            Offset within the packed image, and the bytes from there on.

        Raises:
            BundleError: As for `read_into`.
            ValueError: `size` is not above 0, or `layout` is not this bundle's.
        """
        if size <= 0:
            raise ValueError(f"pieces of {size} bytes; they have at least 1")
        self._check_layout(layout)
        own = bytearray(min(size, layout.nbytes)) if buffer is None else b""
        hashes = [blake3() for _ in self._entries]
        first = 0
        for start in range(0, layout.nbytes, size):
            stop = min(start + size, layout.nbytes)
            piece = _bytes_view(memoryview(own) if buffer is None else buffer(stop - start), stop - start)
            cursor = start
            while first < len(layout.tensors) and layout.tensors[first].end <= start:
                first += 1
            for index in range(first, len(layout.tensors)):
                placed = layout.tensors[index]
                low, high = max(placed.offset, start), min(placed.end, stop)
                if placed.offset >= stop:
                    break
                if low >= high:
                    continue
                _zero(piece[cursor - start : low - start])
                target = piece[low - start : high - start]
                self._read(self._fd, self._entries[index].start + low - placed.offset, target)
                hashes[index].update(target)
                cursor = high
            _zero(piece[cursor - start :])
            yield start, piece
        self._verify([content.digest() for content in hashes])

    @contextlib.contextmanager
    def _own_description(self) -> Iterator[int]:
        """The file opened once more, where that is possible: the kernel reads ahead for each description by itself, and
        tensors that are read at the same time lie apart.
        """
        try:
            fd = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            yield self._fd
            return
        try:
            yield fd
        finally:
            os.close(fd)

    def _read_tensor(
        self,
        fd: int,
        entry: Entry,
        target: memoryview,
        prepare: Callable[[memoryview], None] | None,
        report: Callable[[int], None],
        stop: threading.Event,
    ) -> bytes:
        content = blake3()
        for offset in range(0, len(target), READ_BYTES):
            if stop.is_set():
                break
            piece = target[offset : offset + READ_BYTES]
            if prepare is not None:
                prepare(piece)
            self._read(fd, entry.start + offset, piece)
            content.update(piece)
            report(len(piece))
        return content.digest()

    def _read(self, fd: int, offset: int, target: memoryview) -> None:
        done = 0
        while done < len(target):
            count = os.preadv(fd, [target[done:]], offset + done)
            if count == 0:
                size = os.fstat(self._fd).st_size
                raise BundleError(
                    "SourceChanged",
                    f"{self._shown} became shorter while it was read: {size} bytes, {self.identity.size} when it was opened",
                )
            done += count

    def _verify(self, contents: Sequence[bytes]) -> None:
        digest = weights_digest([entry.spec for entry in self._entries], contents)
        status = os.fstat(self._fd)
        now = FileIdentity.of(self._fd)
        # Unlinking or renaming over the open file moves its ctime too; then the link count tells, and the digest decides.
        same_time = now.ctime_ns == self.identity.ctime_ns or status.st_nlink != self._links
        if (now.size, now.mtime_ns) != (self.identity.size, self.identity.mtime_ns) or not same_time:
            raise BundleError(
                "SourceChanged", f"{self._shown} was written to while it was read; replace files by renaming over them"
            )
        if digest != self._digest:
            raise BundleError(
                "SourceChanged" if self._replaced else "BundleInvalid",
                f"{self._shown} has weights digest {digest}, the manifest says {self._digest}; "
                "copy the file again, or pack the bundle again",
            )

    def _check_layout(self, layout: Layout) -> None:
        if tuple(placed.spec for placed in layout.tensors) != tuple(entry.spec for entry in self._entries):
            raise ValueError(f"{self._shown}: the layout is not the one of this bundle")


def _bytes_view(buffer: memoryview, nbytes: int) -> memoryview:
    if buffer.readonly or not buffer.c_contiguous:
        raise ValueError("the buffer is not writable contiguous memory")
    if buffer.nbytes < nbytes:
        raise ValueError(f"the buffer has {buffer.nbytes} bytes, {nbytes} are needed")
    return (buffer if buffer.format == "B" and buffer.ndim == 1 else buffer.cast("B"))[:nbytes]


def _zero(piece: memoryview) -> None:
    if len(piece):
        piece[:] = bytes(len(piece))
