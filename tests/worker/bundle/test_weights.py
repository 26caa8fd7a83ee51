# SPDX-License-Identifier: Apache-2.0
"""Reading weights into place, and what happens when the file changes meanwhile."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from ballast_worker.bundle import weights as module
from ballast_worker.bundle.digests import weights_digest
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.layout import TensorSpec, pack
from ballast_worker.bundle.reader import open_bundle
from ballast_worker.bundle.safetensors import build_header, read_header
from ballast_worker.bundle.weights import WeightsFile

SPECS = [
    TensorSpec("large", "float32", (300, 100)),
    TensorSpec("empty", "float32", (0, 3)),
    TensorSpec("byte", "bool", (1,)),
    TensorSpec("odd", "bfloat16", (77,)),
    TensorSpec("aligned", "int8", (512,)),
]


@pytest.fixture(autouse=True)
def small_reads(monkeypatch):
    monkeypatch.setattr(module, "READ_BYTES", 4096)


def write(path, specs=SPECS, *, seed=0):
    """A weights file with random content; its packed image and digest."""
    random = np.random.default_rng(seed)
    contents = [random.integers(0, 256, spec.nbytes, np.uint8).tobytes() for spec in specs]
    path.write_bytes(build_header(list(specs)) + b"".join(contents))
    layout = pack(specs)
    image = bytearray(layout.nbytes)
    for placed, content in zip(layout.tensors, contents, strict=True):
        image[placed.offset : placed.end] = content
    return bytes(image), weights_digest(specs, [blake3(content).digest() for content in contents])


def opened(path, specs=SPECS, *, digest) -> WeightsFile:
    fd = os.open(path, os.O_RDONLY)
    header = read_header(fd, file="w")
    return WeightsFile(fd, entries=[header.entries[spec.name] for spec in specs], digest=digest, shown="w")


def read(file: WeightsFile, specs=SPECS, **options) -> bytes:
    layout = pack(specs)
    buffer = bytearray(b"\xaa" * layout.nbytes)
    with file:
        file.read_into(memoryview(buffer), layout=layout, **options)
    return bytes(buffer)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_tensors_lie_at_their_places_with_zeros_between(tmp_path, threads):
    image, digest = write(tmp_path / "w")
    assert read(opened(tmp_path / "w", digest=digest), threads=threads) == image


@given(
    st.lists(
        st.builds(
            TensorSpec,
            name=st.uuids().map(str),
            dtype=st.sampled_from(["int8", "float16", "float32"]),
            shape=st.lists(st.integers(0, 60), max_size=2).map(tuple),
        ),
        max_size=8,
    ),
    st.integers(1, 5),
    st.integers(1, 5000),
)
def test_whole_and_streamed_reads_give_the_packed_image(tmp_path_factory, specs, threads, size):
    path = tmp_path_factory.getbasetemp() / "weights"
    image, digest = write(path, specs)
    assert read(opened(path, specs, digest=digest), specs, threads=threads) == image
    streamed = bytearray()
    with opened(path, specs, digest=digest) as file:
        for offset, piece in file.chunks(pack(specs), size):
            assert offset == len(streamed)
            streamed += piece
    assert streamed == image


def test_argument_order_need_not_be_file_order(tmp_path):
    _, _ = write(tmp_path / "w")
    backwards = SPECS[::-1]
    data = (tmp_path / "w").read_bytes()
    with (tmp_path / "w").open("rb") as file:
        header = read_header(file.fileno(), file="w")
    contents = [data[header.entries[spec.name].start : header.entries[spec.name].stop] for spec in backwards]
    digest = weights_digest(backwards, [blake3(content).digest() for content in contents])
    image = read(opened(tmp_path / "w", backwards, digest=digest), backwards)
    for placed, content in zip(pack(backwards).tensors, contents, strict=True):
        assert image[placed.offset : placed.end] == content


def test_pieces_can_be_read_into_the_slots_of_a_ring(tmp_path):
    image, digest = write(tmp_path / "w")
    ring = memoryview(bytearray(3 * 8192))
    asked = []

    def slot(nbytes: int) -> memoryview:
        asked.append(nbytes)
        start = (len(asked) - 1) % 3 * 8192
        return ring[start : start + 8192]

    layout = pack(SPECS)
    with opened(tmp_path / "w", digest=digest) as file:
        seen = b"".join(bytes(piece) for _, piece in file.chunks(layout, 8192, buffer=slot))
    assert seen == image
    assert sum(asked) == layout.nbytes
    assert len(asked) > 3


def test_progress_adds_up_and_is_never_called_by_two_threads_at_once(tmp_path):
    _, digest = write(tmp_path / "w")
    lock = threading.Lock()
    seen = []

    def progress(nbytes: int) -> None:
        assert lock.acquire(blocking=False)
        seen.append(nbytes)
        lock.release()

    read(opened(tmp_path / "w", digest=digest), threads=4, progress=progress)
    assert sum(seen) == sum(spec.nbytes for spec in SPECS)
    assert max(seen) <= 4096


@pytest.mark.parametrize("threads", [1, 3])
def test_what_progress_raises_ends_the_read(tmp_path, threads):
    _, digest = write(tmp_path / "w")

    def cancel(_: int) -> None:
        raise InterruptedError("cancelled")

    with pytest.raises(InterruptedError, match="cancelled"):
        read(opened(tmp_path / "w", digest=digest), threads=threads, progress=cancel)


def test_other_bytes_are_refused_with_both_digests(tmp_path):
    _, digest = write(tmp_path / "w")
    other = write(tmp_path / "w", seed=1)[1]
    with pytest.raises(BundleError, match=f"weights digest {other}, the manifest says {digest}") as caught:
        read(opened(tmp_path / "w", digest=digest))
    assert caught.value.reason == "BundleInvalid"
    with opened(tmp_path / "w", digest=digest) as file, pytest.raises(BundleError, match="weights digest"):
        list(file.chunks(pack(SPECS), 4096))


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: TensorSpec("renamed", spec.dtype, spec.shape),
        lambda spec: TensorSpec(spec.name, "int32", spec.shape),
        lambda spec: TensorSpec(spec.name, spec.dtype, (100, 300)),
    ],
)
def test_the_digest_covers_names_dtypes_and_shapes(change):
    contents = [blake3(spec.name.encode()).digest() for spec in SPECS]
    assert weights_digest([change(SPECS[0]), *SPECS[1:]], contents) != weights_digest(SPECS, contents)
    assert weights_digest(SPECS[::-1], contents[::-1]) != weights_digest(SPECS, contents)


class Once:
    """A progress callback that does something after the first piece."""

    def __init__(self, action) -> None:
        self.action = action

    def __call__(self, _: int) -> None:
        if self.action:
            action, self.action = self.action, None
            action()


def test_truncation_while_reading_is_a_change_of_the_source(tmp_path):
    _, digest = write(tmp_path / "w")
    with pytest.raises(BundleError, match="became shorter while it was read: 5000 bytes, 12") as caught:
        read(opened(tmp_path / "w", digest=digest), threads=1, progress=Once(lambda: os.truncate(tmp_path / "w", 5000)))
    assert caught.value.reason == "SourceChanged"


def test_appending_while_reading_is_a_change_of_the_source(tmp_path):
    _, digest = write(tmp_path / "w")

    def append() -> None:
        with (tmp_path / "w").open("ab") as file:
            file.write(b"more")

    with pytest.raises(BundleError, match="was written to while it was read") as caught:
        read(opened(tmp_path / "w", digest=digest), threads=1, progress=Once(append))
    assert caught.value.reason == "SourceChanged"


def test_writing_in_place_with_the_time_set_back_is_a_change_of_the_source(tmp_path):
    path = tmp_path / "w"
    _, digest = write(path)
    before = path.stat()

    def rewrite() -> None:
        # The clock of file times ticks every few milliseconds: go on until it did.
        while path.stat().st_ctime_ns == before.st_ctime_ns:
            with path.open("r+b") as file:
                first = file.read(1)
                file.seek(0)
                file.write(first)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_mtime_ns == before.st_mtime_ns

    with pytest.raises(BundleError, match="was written to while it was read") as caught:
        read(opened(path, digest=digest), threads=1, progress=Once(rewrite))
    assert caught.value.reason == "SourceChanged"


@pytest.mark.parametrize("replacement", ["rename", "unlink"])
def test_renaming_over_an_open_file_leaves_its_bytes_readable(tmp_path, replacement):
    path = tmp_path / "w"
    image, digest = write(path)
    write(tmp_path / "new", seed=1)
    before = path.stat().st_ctime_ns

    def replace() -> None:
        kept = os.open(path, os.O_RDONLY)
        if replacement == "rename":
            (tmp_path / "new").rename(path)
        else:
            path.unlink()
        assert os.fstat(kept).st_nlink == 0
        assert os.fstat(kept).st_ctime_ns >= before
        os.close(kept)

    assert read(opened(path, digest=digest), threads=1, progress=Once(replace)) == image


def test_weights_replaced_after_opening_by_the_same_bytes_are_read(bundle_path):
    bundle = open_bundle(bundle_path)
    path = bundle_path / "weights.safetensors"
    (bundle_path / "copy").write_bytes(path.read_bytes())
    (bundle_path / "copy").rename(path)
    assert read(bundle.open_weights(), [placed.spec for placed in bundle.layout.tensors])


def test_weights_replaced_after_opening_by_other_bytes_are_a_change_of_the_source(bundle_path):
    bundle = open_bundle(bundle_path)
    path = bundle_path / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    (bundle_path / "copy").write_bytes(data)
    (bundle_path / "copy").rename(path)
    with pytest.raises(BundleError, match="weights digest") as caught:
        read(bundle.open_weights(), [placed.spec for placed in bundle.layout.tensors])
    assert caught.value.reason == "SourceChanged"


@pytest.mark.parametrize("content", ["shorter", "other tensors", "gone"])
def test_weights_with_another_header_after_opening_are_refused_before_they_are_read(bundle_path, content):
    bundle = open_bundle(bundle_path)
    path = bundle_path / "weights.safetensors"
    if content == "shorter":
        os.truncate(path, 100)
    elif content == "other tensors":
        write(path)
    else:
        path.unlink()
    with pytest.raises(BundleError) as caught:
        bundle.open_weights()
    assert caught.value.reason == ("SourceNotFound" if content == "gone" else "SourceChanged")


def test_buffers_that_do_not_fit_are_programming_errors(tmp_path):
    _, digest = write(tmp_path / "w")
    layout = pack(SPECS)
    with opened(tmp_path / "w", digest=digest) as file:
        with pytest.raises(ValueError, match="are needed"):
            file.read_into(memoryview(bytearray(layout.nbytes - 1)), layout=layout)
        with pytest.raises(ValueError, match="not writable"):
            file.read_into(memoryview(bytes(layout.nbytes)), layout=layout)
        with pytest.raises(ValueError, match="layout is not the one of this bundle"):
            file.read_into(memoryview(bytearray(layout.nbytes)), layout=pack(SPECS[1:]))
        with pytest.raises(ValueError, match="at least 1"):
            next(file.chunks(layout, 0))


def test_what_lies_beyond_the_layout_is_left_alone(tmp_path):
    image, digest = write(tmp_path / "w")
    layout = pack(SPECS)
    buffer = np.full((layout.nbytes + 64) // 4, 7, np.int32)
    with opened(tmp_path / "w", digest=digest) as file:
        file.read_into(memoryview(buffer), layout=layout)
    assert buffer.tobytes()[: layout.nbytes] == image
    assert (buffer[layout.nbytes // 4 :] == 7).all()


def test_closing_twice_closes_once(tmp_path):
    _, digest = write(tmp_path / "w")
    file = opened(tmp_path / "w", digest=digest)
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        read(file)
