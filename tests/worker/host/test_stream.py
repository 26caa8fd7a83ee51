# SPDX-License-Identifier: Apache-2.0
"""Streaming through a ring: read ahead, take turns, leave nothing behind."""

from __future__ import annotations

import threading

import pytest
from helpers.plain_bundles import packed_bytes

from ballast_worker.bundle.errors import BundleError
from ballast_worker.host.segments import PageLocker
from ballast_worker.host.stream import RESERVED, Ring, Stream

KIB = 1 << 10


@pytest.fixture
def ring():
    """Eight buffers of 16 KiB."""
    made = Ring(8 * 16 * KIB, locker=None)
    yield made
    made.close()
    assert sorted(made._free) == list(range(8)), "buffers were lost"


def stream(ring, bundle):
    return Stream(ring, bundle.open_weights(), bundle.layout)


def test_a_stream_brings_the_packed_bytes_once_and_in_order(ring, bundle, read):
    one = bundle("a", 0.5)
    transfer = stream(ring, one)
    assert not transfer.kept
    assert read(transfer) == packed_bytes(one)
    transfer.join()


def test_streams_read_ahead_while_another_is_copied_and_leave_it_its_buffers(ring, bundle, read):
    """With a slow source, the reads of models that wait for their turn overlap."""
    bundles = [bundle(name, 0.5) for name in "abc"]
    streams = [stream(ring, one) for one in bundles]
    with ring._changed:
        assert ring._changed.wait_for(lambda: len(ring._free) <= RESERVED, 10)
    for one, transfer in zip(bundles, streams, strict=True):
        assert read(transfer) == packed_bytes(one)
        transfer.join()


def test_no_stream_reads_far_ahead_while_another_cannot_begin(ring):
    class Reading:
        closed = copied = False

    first, second = Reading(), Reading()
    ring.enter(first)
    ring.enter(second)
    slots = [ring.take(first) for _ in range(5)]
    assert not ring._may_take(first)
    assert ring._may_take(second)
    ring.leave(second)
    assert ring._may_take(first)
    for slot in slots:
        ring.give(slot, first)
    ring.leave(first)


def test_closing_early_gives_every_buffer_back(ring, bundle):
    transfer = stream(ring, bundle("a", 0.5))
    chunks = transfer.chunks()
    next(chunks).release()
    transfer.close()
    transfer.join()
    transfer.close()
    assert not transfer.reading


def test_a_stream_that_is_never_copied_gives_every_buffer_back(ring, bundle):
    transfer = stream(ring, bundle("a", 0.5))
    transfer.close()
    transfer.join()


def test_a_digest_that_is_wrong_is_found_after_the_last_chunk(ring, bundle, read):
    """Other bytes of the same size."""
    one = bundle("a", 0.25)
    path = one.path / one.manifest.weights.file
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    transfer = stream(ring, one)
    with pytest.raises(BundleError) as caught:
        read(transfer)
    transfer.close()
    transfer.join()
    assert caught.value.reason == "SourceChanged"


def test_the_ring_is_locked_whole_and_unlocked_at_its_end():
    calls = []

    def lock(address, nbytes):
        calls.append((address, nbytes))
        return True

    ring = Ring(1 << 20, locker=PageLocker(lock, calls.append))
    assert ring.locked
    ring.close()
    (address, nbytes), unlocked = calls
    assert (nbytes, unlocked) == (1 << 20, address)


def test_a_tiny_ring_still_has_a_buffer_for_reading_ahead():
    ring = Ring(1, locker=None)
    assert len(ring._free) > RESERVED
    ring.close()


def test_a_closed_stream_does_not_wait_for_a_buffer(ring, bundle):
    other = _Copied()
    taken = [ring.take(other) for _ in range(8)]
    transfer = stream(ring, bundle("a", 0.25))
    closer = threading.Thread(target=transfer.close)
    closer.start()
    closer.join(10)
    transfer.join()
    for slot in taken:
        ring.give(slot, other)


class _Copied:
    closed = False
    copied = True
